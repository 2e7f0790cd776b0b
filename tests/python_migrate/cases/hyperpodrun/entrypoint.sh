#!/bin/bash
exec hyperpodrun --nnodes=2:2 --nproc_per_node=8 --rdzv-backend hyperpod \
    --inprocess-restart --inprocess-timeout 600 --shutdown-signal SIGTERM --shutdown-timeout 30 \
    --pre-train-script prepare.sh --pre-train-args "--data /data" \
    --server-port 8080 \
    train.py --config llama.toml

#!/bin/bash
torchrun --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 --rdzv-id=42 \
    --rdzv-backend=etcd-v2 --rdzv-endpoint=etcd.internal:2379 train.py

#!/bin/bash
NNODES=2
ARGS="--lr 3e-4 --steps 1000"
torchrun \
    --nnodes=$NNODES \
    --node_rank="$NODE_RANK" \
    --nproc-per-node=gpu \
    --rdzv-id=llama \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$MASTER_ADDR:29500" \
    --rdzv-conf=join_timeout=1200,read_timeout=30 \
    train.py $ARGS

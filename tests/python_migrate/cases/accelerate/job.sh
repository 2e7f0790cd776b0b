#!/bin/bash
MACHINES=2
accelerate launch --multi_gpu --mixed_precision=bf16 --num_processes 16 --num_machines $MACHINES \
    --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500 \
    --same_network --num_cpu_threads_per_process 4 --dynamo_backend inductor \
    train.py --lr 3e-4
accelerate launch --config_file one.yaml evaluate.py

#!/bin/sh
# A node with 8 GPUs.
set -e
cd /tmp
export OMP_NUM_THREADS=4

torchrun --standalone --nproc_per_node=8 --redirect 3 \
    --log-dir logs --monitor-interval 5 \
    train.py --lr 3e-4 > out.txt 2>&1

python3 -u -m torch.distributed.run --nproc_per_node 2 --max_restarts=5 -m package.evaluate --all
echo "torchrun is done"

#!/bin/bash
cat > inner.sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=$NODES --ntasks-per-node=1
srun torchrun --nnodes=$NODES --nproc-per-node=4 train.py
EOF
sbatch inner.sbatch

"""The options of `accelerate launch` (1.15), and what becomes of each."""

from __future__ import annotations

SHORT = {"q": "quiet", "m": "module", "t": "tee"}

_FLAGS = {
    "quiet", "cpu", "multi-gpu", "tpu", "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic",
    "dynamo-use-regional-compilation", "use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm",
    "same-network", "module", "no-python", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "downcast-bf16",
    "fp8-use-autocast-during-eval", "debug",
}  # fmt: skip

# The same in torchrun, and treated like torchrun's.
AS_TORCHRUN = {
    "tee", "log-dir", "role", "rdzv-backend", "rdzv-conf", "max-restarts", "monitor-interval", "module", "no-python",
}  # fmt: skip

# Say how many processes run where.
PLACES = {"num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port"}

# Reach the script as variables of the environment: their name, and the value of a flag.
ENVIRONMENT = {
    "cpu": ("ACCELERATE_USE_CPU", "true"),
    "mixed-precision": ("ACCELERATE_MIXED_PRECISION", ""),
    "num-cpu-threads-per-process": ("OMP_NUM_THREADS", ""),
    "gpu-ids": ("CUDA_VISIBLE_DEVICES", ""),
    "debug": ("ACCELERATE_DEBUG_MODE", "true"),
    "enable-cpu-affinity": ("ACCELERATE_CPU_AFFINITY", "1"),
}

NOT_NEEDED = {
    "quiet": "keepstep prints the first traceback of the rank that failed first",
    "multi-gpu": "--nproc-per-node says how many ranks there are",
    "same-network": "node 0 listens at --rdzv-endpoint in any case",
}


def known(word: str) -> tuple[str, bool]:
    """The long name of the option, and whether a value follows."""
    if not word.startswith("--"):
        name = SHORT.get(word[1:2], word[1:2])
        return name, name not in _FLAGS and len(word) == 2
    name = word[2:].replace("_", "-")
    return name, name not in _FLAGS

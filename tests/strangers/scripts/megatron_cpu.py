"""Megatron-core on a machine without a GPU: where it asks for CUDA's tensors it gets those of the CPU.

What runs is Megatron's own Python code; its fused kernels and NCCL do not.
"""

import logging

import torch
from megatron.core.tensor_parallel import random as megatron_random
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _is_cuda(device):
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


class OnCpu(TorchFunctionMode):
    """Stays on from here on."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to:
            args = tuple(CPU if _is_cuda(each) else each for each in args)
        found = function(*args, **kwargs)
        if function is torch.Tensor.type and len(args) == 1 and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.", 1)  # as it compares them
        return found


def on_cpu():
    torch.cuda.current_device = lambda: CPU
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.Stream = lambda *_, **__: None  # made for several instances, used where gradients overlap only
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)  # the CPU's are the GPU's here
    OnCpu().__enter__()

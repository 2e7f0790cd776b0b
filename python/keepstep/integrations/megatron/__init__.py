"""Megatron-core under keepstep (tested with 0.16 on CPU tensors).

from keepstep.integrations.megatron import recoverable

@recoverable
def build():  # with a rank: initialize_model_parallel, the model in Megatron's DDP, its optimizer and scheduler
    ...
    return model, optimizer, scheduler

@build.training
def train(model, optimizer, scheduler):
    for iteration in build.iterations(1000):
        ...
        optimizer.step()  # all ranks vote; then it counts on all or on none
"""

from __future__ import annotations

from keepstep.integrations.megatron.training import Recoverable, recoverable

__all__ = ["Recoverable", "recoverable"]

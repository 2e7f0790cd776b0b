"""What reproducible mode requires of a process and a model, and its error messages.

For bits that do not depend on the number of ranks, a fixed order of sums is not enough: each micro-batch must give the
same gradient wherever it is computed. So it may depend on the weights, its samples and its own random numbers, and on
nothing that a rank accumulates from one micro-batch to the next.
"""

from __future__ import annotations

import os

import torch
from torch.nn.modules.batchnorm import _NormBase

from keepstep._errors import KeepstepError

BufferMarks = dict[str, tuple[int, int]]  # by name: which tensor, and how often it was changed in place

_WAY_OUT = (
    "use LayerNorm or GroupNorm, set track_running_stats=False (statistics of one micro-batch are reproducible), or "
    "put the module into eval()"
)


def check_process() -> None:
    """Raises if the number of threads depends on the number of ranks: it affects bits."""
    if torch.get_num_threads() > 1 and "OMP_NUM_THREADS" not in os.environ:
        raise KeepstepError(
            f"reproducible: this process computes with {torch.get_num_threads()} threads as nothing else was said, "
            "with several ranks it would be 1, and other numbers of threads give other bits. Start every job of this "
            "training with the same OMP_NUM_THREADS"
        )


def check_module(module: torch.nn.Module) -> None:
    """Raises for modules whose forward pass keeps something from one micro-batch to the next, as far as is known."""
    for name, part in module.named_modules():
        where = f"'{name}' is a {type(part).__qualname__}" if name else f"this is a {type(part).__qualname__}"
        if isinstance(part, torch.nn.SyncBatchNorm):
            raise KeepstepError(f"reproducible: {where}, whose statistics are those of all ranks' batches; {_WAY_OUT}")
        if isinstance(part, _NormBase) and part.training and part.track_running_stats:
            raise KeepstepError(
                f"reproducible: {where}, whose running statistics depend on which micro-batches its rank had, and in "
                f"which order; {_WAY_OUT}"
            )


def mark_buffers(module: torch.nn.Module) -> BufferMarks:
    """Records the buffers for `check_buffers`."""
    return {name: (id(buffer), buffer._version) for name, buffer in module.named_buffers()}


def check_buffers(module: torch.nn.Module, before: BufferMarks) -> None:
    """Raises when a forward pass changed a buffer since `before`."""
    changed = sorted(name for name, mark in mark_buffers(module).items() if before.get(name) != mark)
    if changed:
        raise KeepstepError(
            f"reproducible: forward changed the buffer {', '.join(repr(name) for name in changed[:8])}: its value "
            f"depends on which micro-batches this rank had. If it is a normalization's, {_WAY_OUT}; else change it in "
            "the update, from what all ranks have"
        )


def check_gradients(module: torch.nn.Module, mapped: set[int]) -> None:
    """Raises if a gradient is left from before the step, or if other parameters than `mapped` require gradients."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad != (id(parameter) in mapped):
            raise KeepstepError(
                f"reproducible: '{name}' {'requires' if parameter.requires_grad else 'does not require'} a gradient, "
                "which was otherwise when the model was wrapped; the map from gradients to buckets is fixed. Freeze "
                "before wrapping, or wrap again"
            )
        if parameter.grad is not None:
            raise KeepstepError(
                f"reproducible: '{name}' has a gradient from before the step, which would be added to the first "
                "micro-batch of this rank; use optimizer.zero_grad(set_to_none=True)"
            )

"""Leaving an interrupted step early: cheap checks at the block boundaries of a model.

Without them a survivor would compute the rest of its forward and backward for nothing. With DDP an exit in the middle
of a backward is safe as long as the wrapper is made anew (design section 7).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from keepstep._errors import Interruption
from keepstep._session import Session

_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def coarse_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of `model`: members of its lists and sequences, else its children, at most a few dozen."""
    blocks: list[torch.nn.Module] = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            blocks.extend(module.children())
    if not blocks:
        blocks = list(model.children()) or [model]
    most = 64
    return blocks[:: max(1, len(blocks) // most)]


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)
    elif isinstance(output, dict):
        for item in output.values():
            yield from _tensors(item)


def install(model: torch.nn.Module, session: Session) -> None:
    """Puts the checks into `model`; once per model and process."""
    if model in _hooked:
        return
    _hooked.add(model)
    engine = session.engine
    blocks = coarse_modules(model)
    middle = blocks[len(blocks) // 2] if blocks else None

    def check(phase: str, module: torch.nn.Module | None) -> None:
        if engine.interrupted():
            raise Interruption("the generation ended")
        if session.injector.active and module is middle:
            from keepstep.torch.run import current_step

            session.injector.at(phase, current_step())

    def before_forward(module: torch.nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            check("forward", module)

    def after_forward(module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return

        def before_backward(_gradient: torch.Tensor) -> None:
            check("backward", module)

        for tensor in itertools.islice(_tensors(output), 1):
            if tensor.requires_grad:
                tensor.register_hook(before_backward)  # type: ignore[no-untyped-call]

    for block in blocks:
        block.register_forward_pre_hook(before_forward)
        block.register_forward_hook(after_forward)

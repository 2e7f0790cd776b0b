"""Leaving an interrupted step early: cheap checks at the block boundaries of a model.

Without them a survivor would compute the rest of its forward and backward for nothing. With DDP an exit in the middle
of a backward is safe as long as the wrapper is made again (docs/design/interruption.md).
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from keepstep._errors import Interruption
from keepstep._session import Session
from keepstep.torch.current_run import before_forward, current_step

_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def coarse_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of `model`: members of its lists, dicts and sequences, else its children; at most a few dozen."""
    blocks: list[torch.nn.Module] = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)):
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


class _Checks:
    """The hooks of one block, before and after its forward.

    They belong to this process. In a saved model a no-op function of the standard library replaces them, so loading it
    does not need keepstep. A copy of the model in this process shares them.
    """

    def __init__(self, session: Session, middle: bool) -> None:
        self._session = session
        self._middle = middle  # of the model's blocks: faults are injected here

    def check(self, phase: str) -> None:
        engine = self._session.engine
        if engine.interrupted() and not engine.updating():  # a decided update runs to its end
            raise Interruption("the generation ended")
        if self._middle and self._session.injector.active:
            self._session.injector.at(phase, current_step())

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, _memo: Any) -> _Checks:
        return self


class _BeforeForward(_Checks):
    def __call__(self, _module: torch.nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.check("forward")


class _AfterForward(_Checks):
    def __call__(self, _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        for tensor in itertools.islice(_tensors(output), 1):
            if tensor.requires_grad:
                tensor.register_hook(lambda _gradient: self.check("backward"))  # type: ignore[no-untyped-call]


class _BeforeAll(_Checks):
    """Before the forward of a whole model: checks that it uses what was committed."""

    def __call__(self, module: torch.nn.Module, _inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            before_forward(module)


def install(model: torch.nn.Module, session: Session) -> None:
    """Installs the checks in `model`, once per model and process. The current run hears of each forward of the model,
    and of a model that it only wraps (``average.module``)."""
    if model in _hooked:
        return
    _hooked.add(model)
    for whole in (model, getattr(model, "module", None)):
        if isinstance(whole, torch.nn.Module):
            whole.register_forward_pre_hook(_BeforeAll(session, middle=False))
    blocks = coarse_modules(model)
    for number, block in enumerate(blocks):
        middle = number == len(blocks) // 2
        block.register_forward_pre_hook(_BeforeForward(session, middle))
        block.register_forward_hook(_AfterForward(session, middle))

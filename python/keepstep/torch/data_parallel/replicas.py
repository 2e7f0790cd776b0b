"""The wrappers of this process, DDP's and our own: made per generation, dropped at its end.

An old wrapper and a fresh one on a newcomer would not match, so every generation wraps again around the kept model
(docs/design/interruption.md). DDP by itself changes its bucket layout after a wrapper's first iteration. With three
ranks or more the layout decides in which order NCCL adds up an element, so the first step after a fault would differ in
its bits from the same step of an undisturbed job. `track` therefore gives each wrapper its final layout when it is
made: the reverse order of definition, which is about the order in which gradients arrive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from keepstep._errors import KeepstepError
from keepstep.torch.data_parallel import replicate
from keepstep.torch.data_parallel.replicate import Replicate
from keepstep.torch.distributed import agreement

_kept_groups: list[dist.ProcessGroup] = []  # of what run.setup(sharded=True) built: they live as long as that
_kept_names = 1  # group names counted then

UNWRAPPED = "no model is wrapped by run.ddp, DistributedDataParallel or Replicate"
_replicas: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
around_wrap: Callable[[torch.nn.Module], AbstractContextManager[object]] = nullcontext  # while one is made


def track() -> None:
    """From here on, wrappers that users make by hand are tracked too."""
    if getattr(DistributedDataParallel.__init__, "_keepstep", False):
        return
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: DistributedDataParallel, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        with around_wrap(module):
            original(self, module, *args, **kwargs)
            _lay_out_for_good(self)
        self.register_forward_pre_hook(_expect_nothing_of_frozen)
        self.register_forward_hook(_expect_again, always_call=True)
        _replicas.add(self)

    init._keepstep = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    DistributedDataParallel._ddp_init_helper = _reversed(  # type: ignore[method-assign]
        DistributedDataParallel._ddp_init_helper
    )
    if "_unsafe_preserve_version_counter" not in DistributedDataParallel._sync_buffers.__code__.co_names:
        broadcast = DistributedDataParallel._sync_module_buffers
        DistributedDataParallel._sync_module_buffers = _uncounted(broadcast)  # type: ignore[method-assign]


def _lays_out_anew(replica: DistributedDataParallel, static_graph: bool) -> bool:
    """Whether `_lay_out_for_good` is for this wrapper. Not for a static graph: in its first iteration DDP reduces each
    bucket as if it were the first one (torch 2.15), which would mislead communication hooks."""
    return not replica.find_unused_parameters and not static_graph


def _reversed(make_reducer: Callable[..., None]) -> Callable[..., None]:
    """`_lay_out_for_good` fills buckets in the order in which the reducer has the parameters."""

    @functools.wraps(make_reducer)
    def ddp_init_helper(
        self: DistributedDataParallel,
        parameters: list[torch.nn.Parameter],
        expect_sparse_gradient: list[bool],
        names: dict[int, str],
        static_graph: bool,
    ) -> None:
        if _lays_out_anew(self, static_graph):
            parameters, expect_sparse_gradient = parameters[::-1], expect_sparse_gradient[::-1]
            names = {len(parameters) - 1 - index: name for index, name in names.items()}
        make_reducer(self, parameters, expect_sparse_gradient, names, static_graph)

    return ddp_init_helper


def _lay_out_for_good(replica: DistributedDataParallel) -> None:
    """Does at once what DDP does after its first iteration. A collective."""
    if hasattr(replica, "reducer") and _lays_out_anew(replica, replica.static_graph):  # none: all gradients are delayed
        replica.reducer._push_all_rebuilt_params()
        replica._has_rebuilt_buckets = replica.reducer._rebuild_buckets()


def _uncounted(broadcast: Callable[..., None]) -> Callable[..., None]:
    """Up to torch 2.11 each forward of DDP counts its broadcast as a write to every buffer, also where nothing changes:
    as if the function had changed what is protected. Newer ones leave the count as it was, and so does this."""

    @functools.wraps(broadcast)
    def sync_module_buffers(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(self.modules_buffers)):
            broadcast(self, *args, **kwargs)

    return sync_module_buffers


def _expect_nothing_of_frozen(replica: Any, _inputs: Any) -> None:
    """A forward while everything is frozen (a GAN's critic) makes no gradients.

    DDP would still expect some until the next step: it would reduce there before the last micro-batch, and a wrapper
    made in between would not, so sums would round differently.
    """
    if replica.require_backward_grad_sync and not any(p.requires_grad for p in replica._module_parameters):
        replica.require_backward_grad_sync = False
        replica._expects_again = True


def _expect_again(replica: Any, _inputs: Any, _output: Any) -> None:
    if replica.__dict__.pop("_expects_again", False):
        replica.require_backward_grad_sync = True


def wrap(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """Wraps `model` in DDP in the current generation; its state is already equal on all ranks."""
    if not dist.is_initialized():
        raise RuntimeError("no process group")
    # Views save a copy of all gradients in every step, and their memory again in every new generation.
    return DistributedDataParallel(model, init_sync=False, **{"gradient_as_bucket_view": True, **options})


def wrap_reproducibly(model: torch.nn.Module, **options: Any) -> Replicate:
    """`Replicate` in reproducible mode; the model's state is equal on all ranks already."""
    with around_wrap(model):
        return Replicate(model, reproducible=True, init_sync=False, **options)


def synchronize_on(last: bool) -> None:
    """Whether the coming forward and backward synchronizes gradients (only a step's last micro-batch needs to)."""
    for replica in _replicas:
        replica.require_backward_grad_sync = last
    for ours in replicate.live():
        ours.require_backward_grad_sync = last


def reproducible() -> list[Replicate]:
    """The wrappers in reproducible mode. Raises if there are others as well."""
    ours = replicate.live()
    found = [replica for replica in ours if replica.reproducible]
    if found and (len(found) < len(ours) or len(_replicas)):
        raise KeepstepError(
            "reproducible: one model is wrapped reproducibly and another one is not, whose gradients depend on the "
            "number of ranks; wrap all of them with run.ddp(model, reproducible=True)"
        )
    return found


def wrapped_parameters() -> set[int]:
    """The ids of the parameters whose gradients the wrappers make equal on all ranks."""
    found: set[int] = set()
    for replica in _replicas:
        ignored: set[str] = getattr(replica, "parameters_to_ignore", set())
        found.update(id(p) for name, p in replica.module.named_parameters() if name not in ignored)
    for ours in replicate.live():
        found.update(id(parameter) for parameter in ours.module.parameters())
    return found


def divide_by_counts(count: int, parts: int) -> None:
    """Turns gradients that are sums over `parts` into means over all ranks' sum of `count`, after the last backward.

    Only for wrapped models; nothing else is averaged over ranks either.
    """
    wrappers: list[torch.nn.Module] = [*_replicas, *replicate.live()]
    if not wrappers:
        raise KeepstepError(
            "step.backward(count=...): no model is wrapped by run.ddp, DistributedDataParallel or Replicate, so "
            "the counts of other ranks mean nothing for these gradients"
        )
    total = agreement.sum_of_ranks(count)
    if total == 0:
        return  # nothing was counted anywhere: the sums are zero
    gradients = {id(p): p.grad for wrapper in wrappers for p in wrapper.parameters() if p.grad is not None}
    for gradient in gradients.values():
        gradient.mul_(parts / total)


def why_gradients_may_differ(world_size: int) -> str | None:
    """Why the wrappers of this process may leave different gradients on each rank; None if they do not."""
    ours = replicate.live()
    if not len(_replicas) and not ours:
        return UNWRAPPED
    for replica in _replicas:
        if getattr(replica, "_comm_hooks", None):
            return "a wrapper has a communication hook, after which each rank may hold something else"
        if replica.process_group.size() != world_size:
            return "a model is wrapped for some of the ranks only"
    if any(each.ranks != world_size for each in ours):
        return "a model is wrapped for some of the ranks only"
    return None


def drop_all() -> None:
    """Ends all wrappers: their hooks must not fire in the backward of the next generation."""
    for replica in list(_replicas):
        # The logger holds the reducer too; with both gone its autograd hooks go as well.
        for name in ("logger", "reducer"):
            if hasattr(replica, name):
                delattr(replica, name)
    _replicas.clear()
    for ours in replicate.live():
        ours.drop()


def keep_groups() -> None:
    """The process groups that ``run.setup(with_rank=True)`` made stay as long as the world's."""
    global _kept_names
    from torch.distributed import distributed_c10d as c10d

    _kept_groups[:] = [group for group in c10d._world.pg_map if group is not c10d.GroupMember.WORLD]
    _kept_names = c10d._world.group_count


def groups_away(keep_world: bool) -> None:
    """Destroys process groups: newcomers will make them again, under the same names.

    `keep_world`: the world's group was made by keepstep and lives as long as the process. One that the training
    function made itself goes too, because the function will make it again.
    """
    from torch.distributed import distributed_c10d as c10d

    if not dist.is_initialized():
        return
    global _kept_names
    if not keep_world:
        dist.destroy_process_group()
        _kept_groups.clear()
        _kept_names = 1
        return
    world = c10d.GroupMember.WORLD
    for group in [group for group in c10d._world.pg_map if group is not world and group not in _kept_groups]:
        dist.destroy_process_group(group)
    c10d._world.group_count = _kept_names

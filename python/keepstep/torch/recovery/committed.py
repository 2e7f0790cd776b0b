"""What the last commit left, recorded cheaply enough to do so at every commit. It restores that state when the function
was left, and detects changes of protected state outside a commit (docs/design/left_anywhere.md).

Everything is walked and listed once; after that a commit makes a few calls that loop over lists in C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.sharded import fsdp
from keepstep.torch.state.registry import Registry, parameters_of, with_state
from keepstep.torch.state.update import Snapshot
from keepstep.torch.tensors import dtensor

PIECE_BYTES = 64  # read of each tensor, from its middle
QUICK_TENSORS = 16  # of all, checked before each forward in a validation
STATE_PARAMETERS = 16  # whose state is checked, of each optimizer
MAX_NEW_STATES = 8  # an optimizer that replaces its state's tensors more often than that is not checked

_version = attrgetter("_version")
_place = torch.Tensor.data_ptr
_requires_grad = attrgetter("requires_grad")
_training = attrgetter("training")
_state = attrgetter("state")


def line_to_write(name: str, where: str) -> str:
    """The error text for a protected tensor that was changed outside a commit."""
    return (
        f"'{name}' was changed outside of step.commit; {where}. A rank that is replaced, or left at any line, would go "
        "on with other values than an undisturbed run. If it is to count, move it into step.commit(...), or give it to "
        "run.prepare(..., schedule=...), ReduceLROnPlateau as plateau=. If it is temporary (averaged weights, an "
        "optimizer's eval()), write:\n\n"
        "    with run.restored():\n        ...  # swap, evaluate\n\nwhich puts everything back at its end, bit for bit."
    )


class Pieces:
    """A fixed list of tensors, of which 64 bytes each are read; keeps the tensors' memory alive."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []  # each one's memory when it was listed
        self._here: list[memoryview] = []
        self._moved: list[int] = []  # indices of those that had other memory when it was made
        self._elsewhere: dict[torch.device, list[torch.Tensor]] = {}
        self._number: dict[str, list[int]] = {"cpu": []}  # by device: the tensors that the parts belong to
        for name, tensor in named:
            if tensor.is_inference():
                continue
            held = dtensor.local(tensor).detach()
            if type(held) is not torch.Tensor or held.layout is not torch.strided or held.numel() == 0:
                continue
            self.names.append(name)
            self.tensors.append(tensor)
            self.memory.append(held)
            if (part := _middle(held)) is None:
                continue
            if held.device.type != "cpu":
                self._elsewhere.setdefault(held.device, []).append(part)
            self._number.setdefault(str(held.device), []).append(len(self.names) - 1)
        # A DTensor is only checked through its memory: FSDP2 moves what it holds.
        self._placed = [
            held if dtensor.is_dtensor(tensor) else tensor
            for tensor, held in zip(self.tensors, self.memory, strict=True)
        ]
        self._watch = _engine.TensorWatch(self.tensors, self._placed)
        self._taken_elsewhere: dict[torch.device, torch.Tensor] = {}
        self._find()

    def _find(self) -> None:
        """Their current addresses. Memory itself may move: ``share_memory()`` and ``resize_()`` move a storage."""
        now, own = map(_place, self._placed), map(_place, self.memory)
        self._moved = [number for number, (a, b) in enumerate(zip(now, own, strict=True)) if a != b]
        parts = [_part(self.memory[number]) for number in self._number["cpu"]]
        self._here = [memoryview((ctypes.c_ubyte * size).from_address(at) if size else b"") for at, size in parts]
        self._watch.settle(parts)

    def spread(self, most: int) -> Pieces:
        """At most `count` of them, spread over the list."""
        every = list(zip(self.names, self.tensors, strict=True))
        return Pieces(every[:: max(1, -(-len(every) // most))])

    def take(self) -> bool:
        """Records what they hold now. Returns whether all have the memory that they had when they were listed."""
        if self._moved or not self._watch.take():  # where memory was freed, only _find knows what may be read
            self._find()
            self._watch.take()
        self._taken_elsewhere = {device: torch.cat(parts) for device, parts in self._elsewhere.items()}
        return not self._moved

    def moved(self) -> list[int]:
        """Indices of those whose memory is not the one from when they were listed."""
        if not self._watch.in_place():
            self._find()
        return self._moved

    def _holds_same(self, number: int) -> bool:
        """Whether the new memory holds the same bytes: cuDNN moves the weights of an LSTM in each forward."""
        now, own = self.tensors[number].detach(), self.memory[number]
        if (now.shape, now.dtype, now.device) != (own.shape, own.dtype, own.device):
            return False
        return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (now, own)))

    def first_changed(self, quick: bool = False, written: bool = True) -> str | None:
        """The name of the first that changed since the last `take`. `quick`: never waits for a device. Without
        `written`, a tensor that was written to but has the same bytes does not count as changed."""
        found = [] if not self._moved and self._watch.same(written) else self._changed_here(written)
        if not quick:
            for device, parts in self._elsewhere.items():
                before, now = self._taken_elsewhere[device], torch.cat(parts)
                if not torch.equal(now, before):
                    found += self._different(str(device), parts, bytes(before.tolist()), bytes(now.tolist()))
        return self.names[min(found)] if found else None

    def _changed_here(self, written: bool) -> list[int]:
        self._find()
        same = {number for number in self._moved if self._holds_same(number)}
        versions = zip(self._watch.versions, map(_version, self.tensors), strict=True)
        touched = [number for number, (before, now) in enumerate(versions) if before != now] if written else []
        found = [number for number in self._moved + touched if number not in same]
        return found + self._different("cpu", self._here, self._watch.bytes, b"".join(self._here))

    def _different(self, device: str, parts: Sequence[Any], before: bytes, now: bytes) -> list[int]:
        if len(before) == len(now) and (int.from_bytes(before, "big") ^ int.from_bytes(now, "big")).bit_count() == 1:
            return []  # hardware, not code: digests find this rank, and it is replaced (docs/design/corruption.md)
        found, at = [], 0
        for number, part in zip(self._number[device], parts, strict=True):
            end = at + len(part)
            if before[at:end] != now[at:end]:
                found.append(number)
            at = end
        return found


class Slots:
    """A fixed list of dict entries: checks ``dict.get(key) is value`` for all in a few calls."""

    def __init__(self, found: Iterable[tuple[dict[Any, Any], Any, Any]] = ()) -> None:
        self._dicts: list[dict[Any, Any]] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        for holder, key, value in found:
            self._dicts.append(holder)
            self._keys.append(key)
            self._values.append(value)

    def others(self) -> list[int]:
        """Indices of those that hold something else now."""
        now = [*map(dict.get, self._dicts, self._keys)]
        if all(map(is_, now, self._values)):
            return []
        return [number for number, (a, b) in enumerate(zip(now, self._values, strict=True)) if a is not b]

    def put_back(self) -> None:
        for number in self.others():
            self._dicts[number][self._keys[number]] = self._values[number]


class Schedules:
    """The learning-rate schedules among `objects`, and how many steps each has made."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._named = {name: item for name, item in objects.items() if isinstance(item, LRScheduler)}
        self._steps = self._now()

    def _now(self) -> list[Any]:
        return [getattr(item, "last_epoch", None) for item in self._named.values()]

    def stepped(self) -> str | None:
        """The name of one that has made more steps since."""
        return next((n for n, was, now in zip(self._named, self._steps, self._now(), strict=True) if was != now), None)


class OptimizerStates:
    """Some tensors of each optimizer's state: walking all would take longer than the rest of a commit.

    `objects`: by name; only optimizers are used.
    """

    def __init__(self, objects: dict[str, Any]) -> None:
        self.named: list[tuple[str, torch.Tensor]] = []
        optimizers = {owner: item for owner, item in objects.items() if isinstance(item, Optimizer)}
        self._holders = [with_state(optimizer) for optimizer in optimizers.values()]  # those in partitioned ones
        self._states: list[Any] = [*map(_state, self._holders)]
        self._sized = [*self._states]  # these, and the dicts in them that are looked at
        self._owners = [*optimizers]
        self._names: list[str] = []  # of slots
        slots: list[tuple[dict[Any, Any], Any, Any]] = []
        for (owner, optimizer), states in zip(optimizers.items(), self._states, strict=True):
            parameters = list(enumerate(parameters_of(optimizer)))
            for index, parameter in parameters[:: max(1, -(-len(parameters) // STATE_PARAMETERS))]:
                state = states.get(parameter)
                if not isinstance(state, dict):
                    continue
                self._sized.append(state)
                name = f"{owner}/state/{index}"
                if isinstance(states, dict):
                    self._names.append(name)
                    slots.append((states, parameter, state))
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.named.append((f"{name}/{key}", value))
                        self._names.append(f"{name}/{key}")
                        slots.append((state, key, value))
        self._slots = Slots(slots)
        self._sizes = [*map(len, self._sized)]

    def others(self) -> bool:
        """Whether the tensors, or their number, have changed."""
        return [*map(len, self._sized)] != self._sizes or self.replaced() is not None

    def replaced(self) -> str | None:
        """The name of a state that was removed or replaced (``optimizer.state.clear()``)."""
        for owner, now, state in zip(self._owners, map(_state, self._holders), self._states, strict=True):
            if now is not state:
                return f"{owner}/state"
        others = self._slots.others()
        return self._names[others[0]] if others else None


def _middle(tensor: torch.Tensor) -> torch.Tensor | None:
    """Up to 64 bytes from the middle of a tensor's memory; None if they cannot be read this way."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = min(span, max(1, PIECE_BYTES // tensor.element_size()))
    try:
        return tensor.as_strided((count,), (1,), tensor.storage_offset() + (span - count) // 2).view(torch.uint8)
    except RuntimeError:
        return None  # a storage that is not there, or a dtype without bytes of its own


def _part(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and size of `_middle` in main memory; size 0 if its storage was freed."""
    part = _middle(tensor)
    return (0, 0) if part is None else (part.data_ptr(), part.numel())


class Manner(NamedTuple):
    """The settings of modules and optimizers at one moment: all but the tensors that they hold."""

    training: list[bool]  # of each module
    requires_grad: list[bool]  # of each parameter
    wrapped: dict[int, bool]  # requires_grad by parameter, when DDP was made around it
    groups: list[dict[str, Any]]  # of all optimizers
    options: dict[int, tuple[int, torch.Tensor]]  # by id, of options that are tensors: version, and a copy


class Holders:
    """Modules and optimizers, walked once: their settings can be taken and restored. `without`: ids of buffers to leave
    out, because the capsule has them."""

    def __init__(self, registry: Registry, without: Iterable[int] = ()) -> None:
        self._registry = registry
        self.modules: list[torch.nn.Module] = []
        self.parameters: list[torch.nn.Parameter] = []
        self.named: list[tuple[str, torch.Tensor]] = []  # parameters, buffers, tensors
        buffers: list[tuple[str, dict[str, Any], str, torch.Tensor]] = []  # slots in which modules hold theirs
        self._paths: list[str] = []  # of modules
        self.optimizers = list(registry.optimizers())
        fsdp.reshard(registry.modules())  # parameters that a forward without backward left whole are freed later
        self.untrained: set[int] = set()  # indices of protected modules without a parameter of an optimizer
        stepped = {id(parameter) for optimizer in self.optimizers for parameter in parameters_of(optimizer)}
        seen = set(without)
        for owner, item in registry.objects.items():
            if isinstance(item, torch.nn.Module):
                first = len(self.modules)
                buffers += self._walk(owner, item, seen)
                if not any(id(parameter) in stepped for parameter in item.parameters()):
                    self.untrained.update(range(first, len(self.modules)))
            elif isinstance(item, torch.Tensor) and id(item) not in seen:
                self.named.append((owner, item))
        self._buffer_names = [name for name, *_ in buffers]
        self._buffers = Slots((slots, key, buffer) for _, slots, key, buffer in buffers)

    def _walk(
        self, owner: str, root: torch.nn.Module, seen: set[int]
    ) -> Iterator[tuple[str, dict[str, Any], str, torch.Tensor]]:
        for path, module in root.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            self.modules.append(module)
            self._paths.append(f"{owner}/{path}" if path else owner)
            prefix = f"{owner}/{path}." if path else f"{owner}/"
            if type(module).__name__ == "FullyShardedDataParallel":
                continue  # FSDP1 frees and refills the memory of what it holds
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters.append(parameter)
                    self.named.append((prefix + key, parameter))
            for key, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self.named.append((prefix + key, buffer))
                    if isinstance(module._buffers, dict):
                        yield prefix + key, module._buffers, key, buffer

    def take(self, wrapped: dict[int, bool]) -> Manner:
        """Their current settings."""
        groups = [*map(dict, self._groups())]
        options = {
            id(value): (value._version, value.detach().clone())
            for group in groups
            for value in group.values()
            if isinstance(value, torch.Tensor)
        }
        requires_grad = [*map(_requires_grad, self.parameters)]
        return Manner(self.modes(), requires_grad, wrapped, groups, options)

    def modes(self) -> list[bool]:
        """Whether each module is in training mode."""
        return [*map(_training, self.modules)]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def put_back(self, manner: Manner, with_groups: bool = True) -> None:
        """Restores their settings, whatever was done to them since."""
        for module, training in zip(self.modules, manner.training, strict=True):
            module.training = training
        for parameter, wanted in zip(self.parameters, manner.requires_grad, strict=True):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
        self._buffers.put_back()
        groups = self._groups()
        if with_groups and len(groups) == len(manner.groups):
            for group, values in zip(groups, manner.groups, strict=True):
                for key, value in values.items():
                    if key != "params":
                        group[key] = value
                    if isinstance(value, torch.Tensor):
                        version, copy = manner.options[id(value)]
                        if value._version != version:
                            with torch.no_grad():
                                value.copy_(copy)
                            manner.options[id(value)] = value._version, copy

    def replaced(self) -> str | None:
        """The name of a buffer that was replaced by another tensor (``module.buffer = ...``)."""
        others = self._buffers.others()
        return self._buffer_names[others[0]] if others else None

    def late_change(self, manner: Manner) -> str | None:
        """Which option of an optimizer, or ``requires_grad`` of a parameter, differs from `manner`."""
        groups = self._groups()
        if len(groups) == len(manner.groups) and (manner.options or not _same(groups, manner.groups)):
            for group, values in zip(groups, manner.groups, strict=True):
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        same = _as_copied(value, manner.options) and group.get(key) is value
                    else:
                        same = key == "params" or _same(group.get(key), value)
                    if not same:
                        return f"the optimizer's option '{key}'"
        if [*map(_requires_grad, self.parameters)] != manner.requires_grad:
            for parameter, wanted in zip(self.parameters, manner.requires_grad, strict=True):
                if parameter.requires_grad != wanted:
                    return f"requires_grad of '{self._name(parameter)}'"
        return None

    def _name(self, parameter: torch.Tensor) -> str:
        return next(name for name, tensor in self.named if tensor is parameter)

    def other_modes(self, training: list[bool]) -> list[int]:
        """Indices of modules whose mode differs from `training`."""
        now = self.modes()
        if now == training:
            return []
        return [number for number, (a, b) in enumerate(zip(training, now, strict=True)) if a != b]

    def modes_since(self, manner: Manner) -> str | None:
        """What differs from `manner` in its mode, or in whether it needs gradients."""
        found = [f"the mode of '{self._paths[number]}'" for number in self.other_modes(manner.training)]
        now = zip(self.parameters, manner.requires_grad, strict=True)
        found += [f"requires_grad of '{self._name(p)}'" for p, before in now if p.requires_grad != before]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(found[:3]) + more if found else None

    def whole(self, number: int) -> bool:
        """Whether this module was protected itself, not as a part of another one."""
        return "/" not in self._paths[number]

    def around(self, numbers: Iterable[int]) -> set[int]:
        """Ids of the objects that contain these modules, and of what those objects only wrap."""
        owners = {self._paths[number].partition("/")[0] for number in numbers}
        wholes = [self._registry.objects[owner] for owner in owners]
        return {id(module) for whole in wholes for module in (whole, getattr(whole, "module", whole))}

    def path(self, number: int) -> str:
        """The path of a module."""
        return self._paths[number]


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):
        return False  # of tensors and arrays


def _as_copied(value: torch.Tensor, options: dict[int, tuple[int, torch.Tensor]]) -> bool:
    """Whether an option has the value in `Manner.options`; it may have been written to."""
    version, copy = options[id(value)]
    if value._version == version:
        return True
    if not torch.equal(value, copy):
        return False
    options[id(value)] = (value._version, copy)
    return True


def point_back(pieces: Pieces) -> None:
    """Gives tensors back their own memory, after ``parameter.data = ...``."""
    for number in pieces.moved():
        pieces.tensors[number].data = pieces.memory[number]


class Committed:
    """What the last commit left in this process. For the main thread."""

    def __init__(
        self,
        registry: Registry,
        capsule_ids: Callable[[], set[int]],
        capsule_versions: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._registry = registry
        self._capsule_ids = capsule_ids
        self._capsule_versions = capsule_versions
        self.position = 0  # batches that the committed steps took from the loader of `run.prepare`, over all ranks
        self.forget()

    def forget(self) -> None:
        """Everything is built and protected again."""
        self.wrapped: dict[int, bool] = {}  # the current `Manner.wrapped`
        self._holders: Holders | None = None
        self._manner = Manner([], [], {}, [], {})
        self._loop = [0, 0]  # how many ranks commit in this loop, and where it ends (`begin_loop`)
        self._committed_in = [0, 0]  # the loop of the last commit; no ranks: none since the job was started
        self._came_to_it = False  # this entry has reached that loop: from here on all is as in an undisturbed run
        self._began: tuple[int, Manner] | None = (
            None  # how much was done, and settings, where an undisturbed run began a loop
        )
        self._set_between: str | None = None  # what such a run changed between two loops
        self._modes: list[bool] = []  # in which a step may begin, of each module
        self._pieces = self._quick = Pieces([])
        self._states = OptimizerStates({})
        self._schedules = Schedules({})
        self._new_states = 0  # how often they had changed
        self._looked = False  # since the last commit, before a forward
        self._in_capsule: dict[str, Any] = {}  # its versions
        self._late_modes: list[int] = []  # modules that began the step in another mode than the commit had left
        self._late_wholes: set[int] = set()  # ids of what contains them, if no optimizer trains it

    # ---- the end of a commit, and of joining a generation ----

    def commit(self, list_again: bool = False) -> None:
        """Like `record`, at a commit."""
        self._committed_in = self._loop
        # An average that a validation used keeps its earlier mode, as in an entry after a fault.
        late, modes = self._late_untrained(), self._modes
        self.record(list_again=list_again)
        for number in late:
            self._manner.training[number] = modes[number]

    def start(self) -> None:
        """The job started from a checkpoint: what its function sets holds, even if commits had left other settings."""
        self._committed_in = [0, 0]

    def record(self, manner: bool = True, list_again: bool = False) -> None:
        """Records the current state as what the commit left; without `manner`, the tensors only. `list_again`: the
        capsule now has other buffers."""
        in_place = self._pieces.take()
        if self._holders is None or list_again or not in_place or self._holders.replaced() or self._other_states():
            self._list()
            self._pieces.take()
        assert self._holders is not None
        if manner:
            self._manner = self._holders.take(self.wrapped)
            self._modes = self._manner.training
        self._schedules = Schedules(self._registry.objects)
        self._in_capsule = self._capsule_versions()
        self._looked = False

    def begin_loop(self, done: int, world: int, until: int, version: int) -> str | None:
        """Called before each loop of an entry. Returns a warning for the user if an undisturbed run may have begun the
        loop with other modes and options.

        If no commit was made since this start and with this many ranks, what the entry sets holds. Otherwise the last
        commit was made in one of the loops: up to the end of that loop an undisturbed run has what the commit left;
        after it, it does what this entry does.

        Args:
            done: how much was committed, in steps, or in any unit in which a loop has a fixed end.
            world: how many ranks there are.
            until: where this loop ends, in that unit.
            version: how many steps were committed, for messages.

        Raises:
            KeepstepError: protected state was changed, or an undisturbed run began this loop with other options.
        """
        self._loop = [world, until]
        ranks, last = self._committed_in
        came_to_it = self._came_to_it
        self._came_to_it = came_to_it or ranks != world or until > done or until >= last
        if version == 0:
            joined = self._manner
            self._holders = None  # modules may have other parts now; every entry does it again on all ranks
            self.record()
            if [*map(len, joined[:2])] == [*map(len, self._manner[:2])]:
                self._manner = joined  # and it changes the options and modes of these
            return None
        if name := self.changed():
            where = f"this entry of the function, which begins at step {version}, did it"
            if came_to_it:
                where = f"what follows the loop that ended with step {version} did it"
            raise KeepstepError(line_to_write(name, where))
        assert self._holders is not None
        self._modes = modes = self._holders.modes()
        doubt = None
        if ranks == world and not came_to_it and (done < last or until <= done):
            self._holders.put_back(self._manner)
            self._modes = self._manner.training
        elif ranks == world and not came_to_it:
            doubt = self._another_beginning(done, version)
        elif ranks == world and done < last:
            self._refuse_after_break(version)
            self._modes = self._manner.training
        elif ranks == world and done == last:
            self._began = done, self._holders.take({})
            self._set_between = self.late_change() or self._set_between
            untrained = self._holders.untrained
            left = set(self._holders.other_modes(self._manner.training)) - untrained
            # If a whole module is in evaluation mode, a validation left it that way.
            of_commit = any(self._holders.whole(n) and not modes[n] for n in left)
            both = enumerate(zip(self._manner.training, modes, strict=True))
            self._modes = [was if of_commit or number in untrained else now for number, (was, now) in both]
        self.record(manner=False, list_again=bool(self._pieces.moved()))  # same values, other memory: a memory format
        return doubt

    def continue_loop(self, until: int) -> None:
        """The loop ends there, and not where it was said to: a step that began in it goes on."""
        self._loop = [self._loop[0], until]

    def _another_beginning(self, done: int, version: int) -> str | None:
        """The entry begins with this loop; the last commit's loop ended before it. See `begin_loop`."""
        assert self._holders is not None
        before = self._began
        if before and before[0] == done and (what := self._holders.late_change(before[1])):
            raise KeepstepError(
                f"{what} is another one in front of the loop that begins at step {version} than it was before the "
                "fault. What changes between two loops must follow from the step alone, and be set in front of the "
                'next one. Write group["lr"] = base * 0.1 ** (epoch // 30) in front of run.steps, not '
                'group["lr"] *= 0.1 behind it; what only the beginning of training needs belongs into build()'
            )
        if what := self.late_change():
            return (
                f"{what} stays as it was set in front of the loop that begins at step {version}; the commit of that "
                "step left another"
            )
        if self._set_between:
            return (
                f"{self._set_between} was changed between earlier loops, but not in front of the one that begins at "
                f"step {version}, where the function was entered after a fault. If it changes after each loop, this "
                "change is missing: set it in front of run.steps, by a rule that follows from the step"
            )
        return None

    def _refuse_after_break(self, version: int) -> None:
        """Refuses: the last commit's loop was left by `break`, so after a fault the function is in the middle of it."""
        if what := self.late_change():
            raise KeepstepError(
                f"{what} was changed after a loop was left at step {version}, before its end. A fault puts it back as "
                "the commit left it, so the job would go on differently. Write "
                f"run.steps(last_step={version}), without break, for a loop that ends here, or set it at the "
                "beginning of the step"
            )

    def _list(self) -> None:
        self._holders = Holders(self._registry, self._capsule_ids())
        named = self._holders.named
        self._states = OptimizerStates(self._registry.objects if self._new_states < MAX_NEW_STATES else {})
        self._pieces = Pieces([*named, *self._states.named])
        self._quick = Pieces(named).spread(QUICK_TENSORS)

    def _other_states(self) -> bool:
        """Whether optimizers have replaced listed tensors. Those that replace them in each step are left out."""
        if self._new_states >= MAX_NEW_STATES or not self._states.others():
            return False
        self._new_states += 1
        return True

    # ---- what was changed since ----

    def changed(self, written: bool = True) -> str | None:
        """The name of the first protected tensor or schedule that is not as the commit left it, as far as can be
        seen."""
        if self._holders is None:
            return None
        return (
            self._holders.replaced()
            or self._states.replaced()
            or self._schedules.stepped()
            or self._pieces.first_changed(written=written)
        )

    def changed_in_capsule(self) -> str | None:
        """The name of a buffer of the capsule that a forward has changed since the commit."""
        now = self._capsule_versions()
        return next((name for name, version in now.items() if self._in_capsule.get(name, version) != version), None)

    def late_change(self) -> str | None:
        """What else differs from what the commit left, and would be lost in a fault; None also before a commit."""
        return None if self._holders is None else self._holders.late_change(self._manner)

    def begin_step(self) -> None:
        """The loop's body begins: a mode that it does not set itself was left by code after the commit."""
        late = [] if self._holders is None else self._holders.other_modes(self._modes)
        if late != self._late_modes:
            self._late_modes = late
            self._late_wholes = set() if self._holders is None else self._holders.around(self._late_untrained())

    def left_mode(self) -> str | None:
        """The path of a trained module that has been in another mode since before the step began."""
        if self._holders is None or not self._late_modes:
            return None
        still = self._still_late() - self._holders.untrained
        return self._holders.path(min(still)) if still else None

    def left_mode_of_untrained(self, module: torch.nn.Module) -> str | None:
        """The same for a part of `module` that no optimizer trains: its mode matters when it computes in a step."""
        if id(module) not in self._late_wholes:
            return None
        assert self._holders is not None
        parts = {id(part) for part in module.modules()}
        late = [number for number in self._late_untrained() if id(self._holders.modules[number]) in parts]
        return self._holders.path(min(late)) if late else None

    def _late_untrained(self) -> set[int]:
        return set() if self._holders is None or not self._late_modes else self._still_late() & self._holders.untrained

    def _still_late(self) -> set[int]:
        assert self._holders is not None
        return set(self._holders.other_modes(self._modes)) & set(self._late_modes)

    def changed_before_forward(self) -> str | None:
        """The same, before the first forward after a commit; before later ones for some tensors only."""
        if self._holders is None:
            return None
        if not self._looked:
            self._looked = True
            self._quick.take()
            return self.changed()
        return self._quick.first_changed(quick=True)

    # ---- the function was left ----

    def manner(self) -> Manner | None:
        """The current settings of modules and optimizers; None before the first loop."""
        return None if self._holders is None else self._holders.take(self.wrapped)

    def left(self) -> None:
        """The function was left: the next entry starts from its first loop."""
        self._came_to_it = False
        self.put_back()

    def put_back(self, manner: Manner | None = None) -> None:
        """Restores the settings of modules and optimizers, and the tensors' memory, but not its contents. Without
        `manner`, as the commit left them."""
        if self._holders is None:
            return
        point_back(self._pieces)
        self._holders.put_back(self._manner if manner is None else manner)

    def put_back_manner(self) -> None:
        """Restores the settings of modules and optimizers as the commit left them."""
        if self._holders is not None:
            self._holders.put_back(self._manner)

    @contextmanager
    def modes_kept(self) -> Iterator[None]:
        """Restores modes, and what needs gradients, at the end."""
        manner = self.manner()
        yield
        if self._holders is not None and manner is not None and len(manner.training) == len(self._holders.modules):
            self._holders.put_back(manner, with_groups=False)

    @contextmanager
    def as_wrapped(self, module: torch.nn.Module) -> Iterator[None]:
        """Used while DDP wraps `module`: DDP waits for the parameters that need gradients at that time.

        Before the last commit's loop these are the same as when DDP was made before, even if the commit left others (a
        GAN's frozen critic), unless this entry has changed them itself.
        """
        before = {} if self._came_to_it else self._manner.wrapped
        known = (
            dict(zip(map(id, self._holders.parameters), self._manner.requires_grad, strict=True))
            if self._holders
            else {}
        )
        unchanged = self._holders is not None and self.changed() is None
        turned = []
        for parameter in module.parameters():
            was = before.get(id(parameter), parameter.requires_grad)
            if was != parameter.requires_grad == known.get(id(parameter)):
                parameter.requires_grad_(was)
                turned.append(parameter)
        self.wrapped = self.wrapped | {id(parameter): parameter.requires_grad for parameter in module.parameters()}
        try:
            yield
        finally:
            for parameter in turned:
                parameter.requires_grad_(not parameter.requires_grad)
            if unchanged and self.changed(written=False) is None:
                self.record(manner=False)  # DDP made by hand broadcasts what is already equal

    # ---- for newcomers ----

    def value(self) -> dict[str, Any]:
        """The settings of all protected modules, in order, for JSON."""
        if self._holders is None:
            return {}
        wrapped = [self._manner.wrapped.get(id(parameter), 2) for parameter in self._holders.parameters]
        return {
            "training": bytes(self._manner.training).hex(),
            "requires_grad": bytes(self._manner.requires_grad).hex(),
            "wrapped": bytes(wrapped).hex(),
            "committed_in": self._committed_in,
            **({"position": self.position} if self.position else {}),
        }

    def load(self, value: dict[str, Any]) -> None:
        """Loads the `value` of a peer or a checkpoint; does nothing if it belongs to other modules."""
        if not value:
            return
        self._committed_in = value.get("committed_in", [0, 0])
        self.position = value.get("position", 0)
        holders = Holders(self._registry)
        training, requires_grad, wrapped = (
            bytes.fromhex(value[key]) for key in ("training", "requires_grad", "wrapped")
        )
        if len(training) != len(holders.modules) or {len(requires_grad), len(wrapped)} != {len(holders.parameters)}:
            return
        manner = Manner([*map(bool, training)], [*map(bool, requires_grad)], {}, [], {})
        holders.put_back(manner, with_groups=False)
        self.wrapped = {
            id(parameter): bool(was) for parameter, was in zip(holders.parameters, wrapped, strict=True) if was != 2
        }


@contextmanager
def restored(registry: Registry) -> Iterator[Callable[[], bool]]:
    """Restores everything protected at the end, bit for bit; needs as much memory as the protected state.

    What it yields says afterwards whether everything was restored.
    """
    back = False
    holders = Holders(registry)
    pieces = Pieces(holders.named)
    manner = holders.take({})
    snapshot = Snapshot(registry)
    try:
        yield lambda: back
    finally:
        point_back(pieces)
        holders.put_back(manner)
        snapshot.restore()
        back = True

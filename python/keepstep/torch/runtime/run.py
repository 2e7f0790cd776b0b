"""The handle a recoverable training function gets: `Run`."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from keepstep import _engine
from keepstep._destination import Destination
from keepstep._engine import Assignment
from keepstep._entry import Entry
from keepstep._errors import Interruption, KeepstepError
from keepstep._options import RecoverOptions
from keepstep._redundancy import Parity
from keepstep._session import Session
from keepstep._state import State, protected_fields
from keepstep.torch import seeds
from keepstep.torch.checkpoint import settings as checkpoint_settings
from keepstep.torch.current_run import current, set_current
from keepstep.torch.data.map_dataset import MapDataset
from keepstep.torch.data_parallel import replicas
from keepstep.torch.data_parallel.replicate import Replicate
from keepstep.torch.distributed import agreement, foreign_groups, nccl, nccl_world
from keepstep.torch.integrity import bit_flip, checks, digests
from keepstep.torch.integrity.rechecks import Rechecks
from keepstep.torch.recovery import membership, parked, rehearsal
from keepstep.torch.recovery.committed import Committed, Holders, restored
from keepstep.torch.runtime import log_values
from keepstep.torch.runtime.commit import FLAG_VETO, Commit
from keepstep.torch.runtime.evaluations import Evaluations
from keepstep.torch.runtime.guards import Guards
from keepstep.torch.runtime.hooks import Hooks
from keepstep.torch.runtime.publications import Publication, Publications
from keepstep.torch.runtime.step_loops import StepLoops, interruptible
from keepstep.torch.sharded import fsdp, pipelining
from keepstep.torch.sharded.shards import ShardCounts, Shards
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry
from keepstep.torch.step import early_exit
from keepstep.torch.step.batch_sizes import Batches, checked_position
from keepstep.torch.step.open_step import CommittedStep, OpenStep
from keepstep.torch.step.steps import Step
from keepstep.torch.step.stream_plan import plan_for
from keepstep.torch.step.without_loss import WithoutLoss
from keepstep.torch.tensors import cuda, dtensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from torch.utils.data import DataLoader

    from keepstep.scaling import PerWorld
    from keepstep.torch.checkpoint.manager import CheckpointManager
    from keepstep.torch.data.cached import CachedLoader

T = TypeVar("T")
S = TypeVar("S", bound=State)

MAX_LOG_BYTES = 100_000


def _before_forward(module: torch.nn.Module) -> None:
    """Asks the current run: a module may come from an earlier function."""
    run = current()
    if isinstance(run, Run):
        run._guards.before_forward(module, run._in_step)
        if run._in_step and run._loops.step is not None and torch.is_grad_enabled():
            run._loops.step._before_forward()


def _checked(built: object) -> State:
    if not isinstance(built, State):
        raise KeepstepError(
            f"run.setup: build() returned a {type(built).__qualname__}; return "
            "keepstep.State(model=model, optimizer=optimizer)"
        )
    return built


class Run:
    """A training run as one rank sees it. Made by `keepstep.recoverable`; use from the main thread.

    The order in a training function: ``setup``, ``checkpoint``, ``ddp``, ``steps``. The first thing that needs a rank
    (``rank``, ``world_size``, ``ddp``, ``steps``) waits until this process has one: a spare waits there.
    """

    def __init__(self, session: Session, options: RecoverOptions, function: Callable[..., Any]) -> None:
        self._session = session
        self._engine = session.engine
        self._options = options
        self._registry = Registry()
        session.choose_flip = functools.partial(bit_flip.choose, self._registry)
        self._capsule: Capsule | None = None
        self._states: dict[str, State] = {}  # what run.setup built, by name
        self._states_of_rank: set[str] = set()  # names of those that need a rank to be built
        self._set_up: set[str] = set()  # their names, in this entry
        self._spoilt: rehearsal.Spoilt | None = None  # by this process's rehearsal
        if isinstance(options.redundancy, Parity) and session.welcome.elastic:
            raise KeepstepError(
                "recoverable(redundancy=Parity(...)): this job is elastic (--nnodes MIN:MAX or --min-replicas), and "
                "parity groups cannot follow another number of ranks yet; use keepstep.Copies(2) or more"
            )
        self._shards = self._no_shards()
        self._checkpoints: CheckpointManager | None = None
        self._save_settings: checkpoint_settings.Settings = {}  # of run.checkpoint; empty: not called
        self._assigned = False  # the entry starts with the assignment that has already arrived
        session.capsule_ids = self._capsule_ids
        self._store: object | None = None  # of the process group that ddp() made
        self._world = nccl_world.WorldConnection(session)
        self._ready = False  # a spare: to park
        self._joined = False  # once: then the registry is complete
        self._cuda_devices: list[torch.device] = []  # of the protected state, for the votes
        self._votes = digests.Digests(session, self._registry)
        self._checks = checks.Checks(session, self._registry, function)
        self._without_loss = WithoutLoss(session)
        self._committed = Committed(self._registry, self._capsule_ids, lambda: self._commit.versions())
        self._commit = Commit(session, self._registry, self._committed, lambda: self._capsule)
        self._guards = Guards(session, self._committed, self._commit, lambda: self._capsule)
        self._registry.beside = self._committed
        replicas.around_wrap = self._committed.as_wrapped
        self._entering = False  # left, and put back; the entry has not yet reached what needs peers
        self._loops = StepLoops(self)
        self._evaluations = Evaluations(self)
        self._publications = Publications(self)
        self._hooks = Hooks()
        self._rechecks: Rechecks | None = None
        set_current(self)

    # ---- what others may ask of the current run (current_run.py) ----

    @property
    def _step_now(self) -> int:
        """The step that this process is computing, or evaluating after its commit; 0 outside one."""
        return self._evaluations.step or (0 if self._loops.step is None else self._loops.step.number)

    @property
    def _step_committed(self) -> bool:
        """Whether that step is already committed."""
        return self._evaluations.step > 0 or (self._loops.step is not None and self._loops.step.committed)

    @property
    def _in_step(self) -> bool:
        """Whether it is computing a step that is not committed yet."""
        step = self._loops.step
        return step is not None and not step.committed

    @property
    def _world_changes(self) -> bool:
        """Whether all ranks know that the world changes after the last committed step."""
        return self._engine.pauses

    # ---- who we are ----

    def _assignment(self, what: str) -> Assignment:
        return self._session.need_rank(what)

    @property
    def rank(self) -> int:
        """This process's rank. Asking for it in ``build`` is an error: the rank is not known yet."""
        return self._assignment("run.rank").rank

    @property
    def world_size(self) -> int:
        """Ranks of the current generation."""
        return self._assignment("run.world_size").world_size

    @property
    def generation(self) -> int:
        """The generation's number, from 1; each fault starts a new one."""
        return self._assignment("run.generation").generation

    @property
    def rehearsing(self) -> bool:
        """Whether a spare is only rehearsing its first step (see `RecoverOptions.rehearse`).

        Its rank is then the world's last, its generation 0, and it leaves the function at ``step.commit``.
        """
        return self._session.rehearsing

    @property
    def entry(self) -> Entry:
        """Why the function was entered this time."""
        return Entry(self._assignment("run.entry").entry)

    @property
    def because(self) -> str:
        """The same as a sentence of the coordinator."""
        return self._assignment("run.because").because

    @property
    def seed(self) -> int:
        """The job's seed (``--seed``)."""
        return self._session.welcome.seed

    @property
    def version(self) -> int:
        """Committed steps so far."""
        return self._engine.version

    # ---- state ----

    def setup(self, build: Callable[[], S], *, name: str = "", sharded: bool = False, with_rank: bool = False) -> S:
        """The `State` that ``build()`` returned: built once per process, the same object in every entry.

        Every field is protected under its name: it is what a replacement receives from its peers. All ranks must build
        the same names with the same shapes and dtypes. Random numbers are seeded with the job's seed first, so that
        every process builds the same.

        Call it in every entry, before the first thing that needs peers. A second state needs a `name`; its fields are
        protected as ``name.field``.

        Normally ``build`` runs before this process has a rank, and must not ask for one: spares run it in advance.

        With `with_rank`, ``build`` runs when the process has a rank: for libraries that want a process group before
        they build a model. The process group is there, and ``run.rank`` and ``run.world_size`` are known.
        **Collectives in it do nothing**, because a replacement builds alone. Derive the same values on all ranks from
        the seed, and load weights from a file. A recovery then waits for ``build``.

        With `sharded` (which includes `with_rank`) ranks hold different parts: meshes, ``fully_shard``,
        ``parallelize_module``. The state is copied in every step, or protected by parity (`RecoverOptions.redundancy`).
        When an elastic job changes its size, everything is built again in the same process, and the state moves into
        it. Stages and schedules of ``torch.distributed.pipelining`` begin every entry as they were built.

        Raises:
            KeepstepError: a field cannot be sent to another process; a second state has no name.
        """
        if name in self._set_up:
            which = f"'{name}'" if name else "without a name"
            raise KeepstepError(
                f"run.setup: the state {which} is set up already in this entry; give this one a name of its own: "
                "run.setup(build, name=...)"
            )
        if "/" in name or "." in name:
            raise KeepstepError(f"run.setup: the name '{name}' holds a '/' or a '.'")
        state = self._states.get(name)
        if state is None:
            if self._session.formed:
                raise KeepstepError(
                    "run.setup comes too late: this rank trains already; call it before run.ddp, in every entry and on "
                    "all ranks"
                )
            if sharded or with_rank:
                state = self._build_with_rank(build, name, sharded)
                self._states_of_rank.add(name)
            else:
                state = self._build(build, name)
        self._protect(name, state)
        self._states[name] = state
        self._set_up.add(name)
        return state  # type: ignore[return-value]

    def _protect(self, name: str, state: State) -> None:
        fields = {f"{name}.{field}" if name else field: item for field, item in protected_fields(state).items()}
        known = self._registry.objects
        if all(known.get(each) is item for each, item in fields.items()):
            return
        if both := ({name} & known.keys()) | (fields.keys() & self._states.keys()):
            raise KeepstepError(f"run.setup: '{both.pop()}' is the name of a state and of a field; rename one of them")
        if self._spoilt is not None:
            self._spoilt.refuse(self._session, fields)
        for each, item in fields.items():
            self._registry.add(each, item)
        fsdp.check_can_recover(self._registry.modules())
        self._registry.check_carried()  # what cannot be sent is reported now, not at the first fault

    def _build(self, build: Callable[[], State], name: str) -> State:
        self._session.injector.at("build", self.version + 1)
        seeds.seed_all(_engine.mix_seed(self.seed, zlib.crc32(name.encode())))
        self._session.building = True
        try:
            return _checked(build())
        finally:
            self._session.building = False

    def _build_with_rank(self, build: Callable[[], State], name: str, sharded: bool) -> State:
        self._assignment("run.setup(sharded=True)" if sharded else "run.setup(with_rank=True)")
        if self.rehearsing:
            raise rehearsal.NotWorthIt
        from keepstep.torch.distributed.hosts import shard_building

        seeds.seed_all(_engine.mix_seed(self.seed, 1 << 32, zlib.crc32(name.encode())))
        self._session.building_with_rank = True
        try:
            self._init_process_group()
            with dtensor.alone():
                built = _checked(build())
        finally:
            self._session.building_with_rank = False
            shard_building.close()
        replicas.keep_groups()
        pipelining.remember()
        if sharded:
            self._shards.divided = True
            self._engine.built()
        return built

    def checkpoint(
        self, *destinations: Destination | str | os.PathLike[str], memory_every_steps: int | None = None
    ) -> None:
        """Saves the protected state to up to 8 destinations while training goes on, and starts from the newest.

        Call it in every entry, with the same arguments, after ``run.setup`` and before ``run.ddp``. The first entry
        of a job starts from the newest complete checkpoint at any destination: ``run.version`` is its step. The
        last step is saved as well, and so is the step after which a notice stops the job. The files are DCP
        checkpoints; ``keepstep ckpt`` lists and checks them.

        Args:
            destinations: a `Destination`, or its URL alone.
            memory_every_steps: 1: the agents keep copies of replicated state as well, after each step, so that it
                survives the death of all workers at once. They always do so for sharded state; with a larger number
                only after steps that it divides, and when a generation begins: then a lost shard sets all ranks back
                to the newest of these. The same on all ranks. None: 1 for sharded state, none of other state.

        Raises:
            KeepstepError: a destination cannot be used.
        """
        checkpoint_settings.check_memory_every_steps(memory_every_steps, elastic=self._session.welcome.elastic)
        checked = checkpoint_settings.checked(destinations)
        if self._session.witness is not None:
            checked = self._session.witness.redirected(checked)
        if self.rehearsing or self._session.passing:
            return
        if self._checkpoints is None:
            if self._session.formed:
                raise KeepstepError("run.checkpoint comes too late: this rank trains already; call it before run.ddp")
            from keepstep.torch.checkpoint.manager import CheckpointManager

            self._checkpoints = CheckpointManager(self._session, self._registry, checked, lambda: self._shards.wanted)
        elif self._checkpoints.destinations != checked:
            raise KeepstepError("run.checkpoint: other arguments than in the previous entry of the training function")
        self._save_settings = checkpoint_settings.settings_of(checked, memory_every_steps)
        if memory_every_steps == 1:
            self._shards.of_replicas = True
        self._shards.copy_every(memory_every_steps or 1)

    @overload
    def ddp(
        self, model: torch.nn.Module, *, reproducible: Literal[False] = False, **options: Any
    ) -> DistributedDataParallel: ...

    @overload
    def ddp(self, model: torch.nn.Module, *, reproducible: Literal[True], **options: Any) -> Replicate: ...

    @overload
    def ddp(
        self, model: torch.nn.Module, *, reproducible: bool, **options: Any
    ) -> DistributedDataParallel | Replicate: ...

    def ddp(
        self, model: torch.nn.Module, *, reproducible: bool = False, **options: Any
    ) -> DistributedDataParallel | Replicate:
        """Wraps `model` in DistributedDataParallel, over keepstep's backend, and over NCCL for tensors on a GPU.

        `options` go to DistributedDataParallel.

        Call it in every entry: the wrapper belongs to the generation, the model is kept. Gradients are views into DDP's
        buckets unless ``gradient_as_bucket_view=False``.

        With `reproducible`, wraps it in `keepstep.torch.Replicate` instead, which then gets `options`. Gradients,
        ``step.loss`` and random numbers then have the same bits for every number of ranks; what cannot is refused.
        """
        self._form("run.ddp")
        if not self._registry.protects_some_of(model):
            raise KeepstepError(
                f"run.ddp: no parameter of this {type(model).__name__} is protected; wrap a model that build() "
                "returned, as in run.ddp(state.model)"
            )
        self._init_process_group()
        return replicas.wrap_reproducibly(model, **options) if reproducible else replicas.wrap(model, **options)

    def _init_process_group(self) -> None:
        if not dist.is_initialized():
            from keepstep.torch.distributed.store import GenerationStore

            self._store = GenerationStore(self._session)  # torch holds it, but only as a C++ object
            backend = "keepstep"
            options: dict[str, Any] = {}
            if self._registry.cuda_devices():
                nccl.check_usable()
                backend = "cpu:keepstep,cuda:nccl"
                nccl.before_group(self._session, self.world_size)
                if nccl_world.reconfigures(self.world_size):
                    options["enable_reconfigure"] = True
            dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.world_size, **options)
        self._world.connect()

    # ---- the loop ----

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loader: DataLoader[Any] | CachedLoader,
        *,
        schedule: Any = None,
        epoch_schedule: Any = None,
        scaler: torch.amp.GradScaler | None = None,
        plateau: ReduceLROnPlateau | None = None,
        global_batch: int | None = None,
        last_step: int | None = None,
        veto: Callable[[OpenStep], str | bool | None] | None = None,
    ) -> tuple[Any, ...]:
        """(model, optimizer, loader) for a loop that exists already; with `scaler` or `plateau`, these too.

        The loader hands out this rank's batches, behind those of the last committed step. ``optimizer.step()`` is the
        commit: all ranks vote, then optimizers and schedules are updated, and gradients are None. So a step takes the
        batches since the one before, however many. Call it in every entry, after ``run.setup``, instead of
        ``run.steps``; see `PreparedLoader` for epochs.

        Random numbers (torch, random, numpy) are seeded for each batch, from the seed and the batch's number: for the
        loop, and for what the data set draws.

        Args:
            model: is wrapped by `ddp` unless it is wrapped already, or sharded.
            optimizer: a protected one, or several, which come back as a list. They are updated together, once all of
                them have stepped.
            loader: as for one process: over the whole data set, with any sampler whose order follows from the epoch and
                from random numbers. A `DistributedSampler` is taken apart. Its ``batch_size`` is that of a rank. For
                data without numbers give the result of `keepstep.data.cached(loader)`.
            schedule: an LR scheduler or a function, or several: they move in each commit, after the optimizers. Leave
                out their ``step()``.
            epoch_schedule: the same, once in an epoch: in its last commit.
            scaler: a protected GradScaler. Then its ``update()`` is the commit.
            plateau: a protected ReduceLROnPlateau. The one that comes back is stepped with a metric that is the same on
                all ranks, after an evaluation; the next commit begins with its move.
            global_batch: samples of a step over all ranks, at every number of ranks; a multiple of the loader's
                ``batch_size``. Then the loop divides the loss by ``loader.accumulation`` and steps where
                ``loader.ends_step``. An elastic job needs it, and gets sizes that share the batches evenly. None: a
                step takes what the loop takes.
            last_step: the loader ends after this one; None: when the loop does.
            veto: as for ``step.commit``.

        Raises:
            KeepstepError: something cannot be guarded; says what to write instead.
        """
        from keepstep.torch.prepared.prepare import prepare

        return prepare(
            self, model, optimizer, loader, schedule, epoch_schedule, scaler, plateau, global_batch, last_step, veto
        )

    def steps(
        self,
        dataset: MapDataset | CachedLoader,
        *,
        global_batch: int | PerWorld[int],
        micro_batch: int | PerWorld[int],
        last_step: int,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        position: torch.Tensor | None = None,
        mesh: DeviceMesh | None = None,
    ) -> Iterator[Step]:
        """The steps that this job still has to make, from the last committed one to `last_step`.

        Args:
            dataset: map-style; sample i is ``dataset[i]``. Or the result of `keepstep.data.cached(loader)`: each of its
                batches is one micro-batch, in the loader's order and collated by it.
            global_batch: samples per step over all ranks. A number: the same for every world size. Or
                ``keepstep.scale_config(...).value("global_batch")``; then `position` is needed.
            micro_batch: samples per forward; must divide `global_batch`. A number, or by world size, too.
            last_step: the number of the last step, counted over the whole job.
            shuffle: a different order each epoch, from the job's seed; else the dataset's own order.
            collate: turns a list of samples into a batch; default: ``dataset.make_batch(numbers)`` if it exists, else
                torch's default_collate.
            position: how many samples the committed steps have taken: an int64 tensor of one element, in main memory,
                a field of the state. Each commit advances it; training continues
                from it. None: the steps so far times `global_batch`.
            mesh: a one-dimensional mesh of the ranks that share the samples: the data-parallel part of a larger mesh
                (``mesh["dp"]``). Ranks with the same coordinate in it get the same samples and random numbers.
                None: all ranks.

        Random numbers (torch, random, numpy) are seeded at the start of each step from (seed, step, rank); in
        reproducible mode at the start of each micro-batch from (seed, step, micro-batch).
        """
        self._form("run.steps")
        if self._committed.position:
            raise KeepstepError(
                "run.steps: this function's steps so far used the loader that run.prepare returned; use that, or "
                "run.steps, for all of them"
            )
        foreign_groups.refuse("run.steps")
        if self._session.witness is not None:
            last_step = self._session.witness.bounded(last_step)
        batches = Batches.of(global_batch, micro_batch)
        place, parts = (self.rank, self.world_size) if mesh is None else (mesh.get_local_rank(), mesh.size())
        even = fsdp.check_can_recover(self._registry.modules())
        sizes = batches.even_sizes(self.world_size // parts) if even else []
        self._loops.tell_useful(batches.max_ranks, sizes)
        fits = batches.feeds(self.world_size) and (not sizes or self.world_size in sizes)
        if self.version < last_step and not fits and self._may_change_size():
            self._loops.pause()
        position = checked_position(position, self._registry, batches)
        origin = None if position is None else (self.version + 1, int(position.item()))
        plan = plan_for(dataset, *batches.at(self.world_size), shuffle, collate, self.seed, place, parts, origin)
        if even and plan.micro_batches % parts:
            raise KeepstepError(
                f"run.steps: {plan.micro_batches} micro-batches a step cannot be shared evenly by {parts} ranks, and "
                "FSDP2 needs each rank to have as many forward and backward passes as the others; choose global_batch "
                "and micro_batch so that they can"
            )
        if self.rehearsing:
            self._session.rehearsal.begin_steps()
            plan = plan.shortened(rehearsal.MICRO_BATCHES)
        self._enter_loop()
        loops = self._loops
        if not self.rehearsing:
            loops.begin(self.version, last_step)
        while loops.goes_on(last_step):
            number = self.version + 1
            self._session.injector.at("between", number)
            plan.read_ahead(number)
            step = Step(self, plan, number, position)
            loops.open(step)
            try:
                yield step
            except GeneratorExit:
                loops.left(step)
                raise
            if not step.committed:
                raise KeepstepError(f"step {number} ended without step.commit(...); every step must be committed")
            loops.finish_body(more=number < last_step)
        loops.end()
        if self.version == last_step:  # else this loop ended before this entry
            self._save_last()

    def _enter_loop(self) -> None:
        """Looks at what is protected, once before each loop: that takes longer than the rest of a commit."""
        self._registry.list_parameters()
        self._cuda_devices = self._registry.cuda_devices()
        pipelining.ask_quietly()
        for module in self._registry.modules():
            early_exit.install(module, self._session, _before_forward)
        self._commit.refuse_steps_outside(self._refusing_step)

    def _refusing_step(self) -> int:
        return self._step_now if self._in_step and not self._guards.borrowed else 0

    def _save_last(self) -> None:
        """At the end of the loop: saves what was not saved yet, and waits for it."""
        checkpoints = self._checkpoints
        if checkpoints is None or self.rehearsing:
            return
        self._guards.changed("the last checkpoint found it")  # no further commit would do it
        with self.slow("the last checkpoint"):
            checkpoints.save_last(self.version, self._capsule_ids())

    def _may_change_size(self) -> bool:
        return self._session.welcome.elastic and not self.rehearsing

    def _commit_step(
        self,
        step: OpenStep,
        update: tuple[Callable[[], Any], ...],
        communicates: bool,
        veto: Callable[[Any], str | bool | None] | None,
    ) -> None:
        """`Step.commit`, for any loop's steps."""
        if step is not self._loops.step or step.committed:
            raise KeepstepError(f"step {step.number} is over; call step.commit once, inside the loop over run.steps")
        if self.rehearsing:
            raise rehearsal.Over
        if self._guards.borrowed:
            raise KeepstepError("step.commit inside run.restored(): what it commits would be put back")
        if step.voted:
            raise KeepstepError(
                f"step {step.number} was voted on and its update failed: let the exception pass, so that this rank's "
                "state is hydrated again"
            )
        engine = self._engine
        number = step.number
        if self._capsule is not None:
            if not self._capsule.empty:
                self._capsule.save(engine, number)
            engine.copy_capsule(number)
        step._check_complete()
        if self._shards.wanted:
            self._shards.wait(number - 1)
        self._wait_copied()
        engine.record_loss(number, *step._loss_to_record())
        if waited := step.data_waits.line(self.rank):
            engine.log(number, waited)
        self._checks.at_commit(number)
        self._guards.changed(f"step.commit of step {number} found it")
        self._guards.mode(self._committed.left_mode())
        if self._session.witness is not None:
            self._session.witness.computed(number, step.sample_ids)
        self._session.injector.at("before_vote", number)
        flags = 0 if veto is None else self._ask(veto, step)
        self._votes.record(number)
        step.voted = True
        commit = self._commit.update_and_vote if communicates else self._commit.vote_and_update
        all_flags = commit(update, number, functools.partial(self._vote, flags), step._move_position)
        step.vetoed = bool(all_flags & FLAG_VETO)
        step.committed = True
        if not step.keeps_gradients:
            self._registry.drop_gradients()
        if self._rechecks is not None:
            self._rechecks.after(number, self._changed_on_any_rank)
        if self._shards.wanted:
            self._shards.protect(number)
        if self._checkpoints is not None:
            self._checkpoints.after_step(number, all_flags, self._capsule_ids())
        step._global_loss = engine.mean_loss(number)
        if isinstance(step, Step) and not self._shards.wanted:  # of a pipeline only the last stage has a loss
            self._without_loss.after(step)
        if self._session.witness is not None:
            self._session.witness.committed(number, step.loss, self._registry, self._capsule_ids())
        self._checks.after()
        self._publications.after(number)

    def _changed_on_any_rank(self, here: set[str], known: set[str]) -> set[str]:
        """Names that are `here` on any rank, where ranks hold different parts; else `here`."""
        if not self._shards.divided:
            return here
        found = agreement.names_on_any_rank(here, known)
        self._check_interrupted()
        return found

    def _ask(self, veto: Callable[[Any], str | bool | None], step: OpenStep) -> int:
        """The flags of this rank's vote."""
        reason = veto(step)
        if not reason:
            return 0
        text = reason if isinstance(reason, str) else "its veto function said so"
        self._session.note("veto", step.number, f"rank {self.rank} vetoes the update of step {step.number}: {text}")
        return FLAG_VETO

    def _vote(self, flags: int) -> int:
        """Votes and returns the flags of all ranks. Raises if the step does not count."""
        if broken := self._engine.broken_link():
            raise RuntimeError(broken)  # the failure may have spoilt the gradients, so no vote for them
        if self._cuda_devices:
            cuda.settle(self._cuda_devices, nccl.backends())
        if self._checkpoints is not None:
            flags |= self._checkpoints.flags()
        return interruptible(functools.partial(self._engine.vote, flags))

    def _log(self, number: int, values: dict[str, Any]) -> None:
        """`Step.log`, also during an evaluation."""
        over = current() is not self or self._session.engine.finished
        if number != (self._step_now or (0 if over else self.version)):
            raise KeepstepError(f"step {number} is over; call step.log before the next step begins")
        text = log_values.object_text(values)
        if len(text) > MAX_LOG_BYTES:
            raise KeepstepError(f"step.log: {', '.join(values)} take more than {MAX_LOG_BYTES} bytes; log less at once")
        if not self.rehearsing:
            self._engine.log(number, text)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores everything protected at the end of the section, bit for bit, however it is left.

        For temporary changes of protected state: averaged weights that are swapped in, a schedule-free optimizer's
        ``eval()``. Tensors keep their memory and get their values back, and so do modes, ``requires_grad`` and the
        optimizers' options. Needs as much memory as the protected state. Do not call ``step.commit`` in it.

        Raises:
            KeepstepError: protected state was changed before the section.
        """
        if not self._guards.borrowed and not self._commit.updating:
            self._guards.changed("run.restored() found it when it was entered")
            if self._session.formed and not self.rehearsing and not self._in_step:
                self._guards.outside_of_a_step(self._loops.first)
        if self._shards.wanted and self._session.formed and not self.rehearsing:
            self._shards.wait(self.version)  # what is being copied after a commit must not change
        self._wait_copied()
        self._guards.borrowed += 1
        entered = self._commit.versions()
        put_back: Callable[[], bool] = functools.partial(bool, True)
        try:
            with restored(self._registry) as put_back:
                yield
        finally:
            self._guards.borrowed -= 1
            if self._commit.updating:
                self._commit.unchanged_since(entered)
            elif self._session.formed and not self.rehearsing:
                if put_back():
                    self._committed.record(manner=False)
                else:
                    self._engine.drop_state()  # only half of it was restored

    def evaluate(self, function: Callable[[CommittedStep], Any], *, every_steps: int) -> None:
        """Calls ``function(step)`` on all ranks after every committed step that `every_steps` divides.

        A call that was interrupted on any rank is repeated on all ranks, as soon as the training function is entered
        again; one that ended on all ranks is not. Afterwards modules have the modes from before the call. Call
        `evaluate` in every entry, before ``run.steps``; several functions are called in that order. A ``break`` right
        after ``step.commit`` skips the calls of that step.
        """
        self._evaluations.add(function, every_steps)

    def publish(
        self, name: str, module: torch.nn.Module | None = None, *, every_steps: int, only_trained: bool = False
    ) -> None:
        """Publishes the weights of `module` after every committed step that `every_steps` divides, and at the start.

        Processes that are no ranks, such as evaluators and rollout workers, read them by `keepstep.subscribe`: whole
        versions only, mapped from memory on the job's machines. Each node holds the newest version in main memory,
        beside those that a reader still has. Copying is done in the background of the next step; DTensors are gathered
        first, by all ranks. Call it in every entry, on all ranks, after ``run.setup`` and before ``run.steps``.

        Args:
            name: what subscribers ask for.
            module: its parameters and persistent buffers, as in ``module.state_dict()``; not wrapped by DDP. None: the
                only module with parameters that ``run.setup`` protects.
            only_trained: leave out parameters that do not require gradients, such as the base of a LoRA model.

        Raises:
            KeepstepError: a tensor cannot be published. Whether ranks hold different modules, as the stages of a
                pipeline, is found when the loop begins.
        """
        if module is None:
            modules = [each for state in self._states.values() for each in protected_fields(state).values()]
            modules = [each for each in modules if isinstance(each, torch.nn.Module) and [*each.parameters()]]
            if len(modules) != 1:
                raise KeepstepError(
                    f"run.publish({name!r}): run.setup protects {len(modules)} modules; say which one, as in "
                    f"run.publish({name!r}, state.model, every_steps={every_steps})"
                )
            (module,) = modules
        self._publications.add(Publication(name, module, every_steps, only_trained))

    @contextmanager
    def slow(self, what: str) -> Iterator[None]:
        """Marks a section that may take much longer than a step on this rank, while others wait for it.

        Within ``with run.slow("evaluation"):`` this rank is never considered hung. What all ranks do alike needs no
        mark, however long it takes. What only some of them do needs one, unless `once` calls it. `what` is for the
        reader of the script.
        """
        if not what:
            raise KeepstepError('run.slow: say what takes long, as in run.slow("evaluation")')
        self._engine.slow(1)
        try:
            yield
        finally:
            self._engine.slow(-1)

    def wait_for(self, condition: Callable[[], T], *, every_s: float = 0.01) -> T:
        """Calls ``condition()`` until its result is true, and returns that: for what comes from outside the job.

        Use it instead of a loop of your own: a fault interrupts it, and a rank in it is not considered hung. A spare
        that rehearses does not wait: its rehearsal ends here.
        """
        if self.rehearsing:
            raise rehearsal.NotWorthIt
        with self.slow("run.wait_for"):
            while not (found := condition()):
                if self._session.formed:
                    self._check_interrupted()
                time.sleep(every_s)
        return found

    def once(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Calls `function` on the first rank that gets here, once in the whole job, however often it is re-entered.

        Returns its result there and None elsewhere; the others do not wait. If that process dies during the call,
        the call is not repeated. It may take long, like a section of `slow`.
        """
        if self.rehearsing or self._session.passing:
            return None
        if not self._session.claim_once(self._session.key(f"once/{name}")):
            return None
        with self.slow(name or "once"):
            return function(*args, **kwargs)

    # ---- a notice: the job has to stop soon ----

    @property
    def notice(self) -> str | None:
        """Why the job stops after the step that was just committed; None if it goes on. The same on all ranks.

        A notice is a signal to a launcher: SIGUSR1, under Slurm also SIGTERM.
        """
        if not self._engine.stops:
            return None
        return self._engine.notice() or "a notice came to another node"

    def on(self, event: Literal["interrupt", "notice", "resize", "finish"], function: Callable[..., Any]) -> None:
        """Calls `function` at an event. Call this in every entry; several functions are called in that order.

        - ``"interrupt"``: after a fault made this process leave the training function; gets the reason, one line.
        - ``"notice"``: on every rank after the last step of a job that a notice stops. The place to save: all ranks
          hold the same ``run.version``, and peers can be reached. Then the job ends with exit code 75; the code after
          the loop does not run. If a fault happens meanwhile, all ranks do one more step and call it again.
        - ``"resize"``: in each process that continues in another world, before its next entry; gets the old and the new
          number of ranks (equal if the world changed back before a step was done). Peers cannot be reached yet. Its
          changes to optimizers' options last, also on processes that join. Most loops need nothing: ``run.steps``
          hands out the new split.
        - ``"finish"``: on every rank once all ranks returned from the training function.
        """
        self._hooks.add(event, function)

    def _stop_on_notice(self) -> None:
        """Leaves the loop for good, together with all other ranks. Does not return."""
        self._loops.end()
        self._save_last()
        self._wait_copied()
        with self.slow("notice"):
            self._hooks.call("notice")
        interruptible(self._engine.stop)  # raises JobEnded, which unwinds the script

    # ---- an elastic job: the world changes ----

    def _leave_shard(self) -> None:
        """Before the world changes: makes sure that what only this rank holds is on a node that stays."""
        if self._shards.wanted:
            self._shards.wait(self.version)
            self._engine.leave_shard(self.version)

    def _no_shards(self) -> Shards:
        return Shards(self._session, self._registry, self._options.redundancy)

    def _divide_anew(self) -> None:
        """Sharded state is divided in a new way from now on: builds everything again and moves the state into it."""
        self._states.clear()
        self._set_up.clear()
        self._hooks.clear()
        self._registry.clear()
        self._shards = self._no_shards()
        self._capsule = None
        self._checks.forget()
        self._votes = digests.Digests(self._session, self._registry)
        self._committed.forget()
        self._cuda_devices = []
        self._joined = False
        if self._checkpoints is not None:
            self._checkpoints.forget()
        self._engine.let_go()
        gc.collect()  # modules keep themselves alive through their hooks, and their memory is needed now

    # ---- sharded state ----

    def shard_counts(self) -> ShardCounts:
        """What the copies of this rank's shard have cost in this generation."""
        return ShardCounts(*self._engine.shard_counts())

    def _capsule_ids(self) -> set[int]:
        return set() if self._capsule is None else self._capsule.ids

    # ---- membership ----

    def _check_interrupted(self) -> None:
        if self._engine.interrupted():
            raise Interruption("the generation ended")

    def _check_results(self) -> None:
        """Raises if the generation ended and cut a collective short: what it returned must not be used."""
        from keepstep.torch.distributed.hosts import communication

        # Called for each event of a loop: looking for NCCL's groups, which are aborted without a word, comes last.
        if self._engine.interrupted() and (communication.cut_short or nccl.backends()):
            self._check_interrupted()

    def _form(self, what: str) -> None:
        """Joins the generation if this process has not yet: waits for a rank and for the state."""
        if self._session.formed or self._session.building_with_rank:
            if self._entering and self._session.formed:
                self._entering = False
                set_here = self._committed.late_change()
                self._committed.put_back_manner()  # as on a newcomer, which joins here
                if set_here and self.entry == "resize" and self.rank == 0:
                    print(
                        f"keepstep: {set_here} was set before {what}, where a newcomer gets what its peers have, so it "
                        "was put back. What is meant for the new number of ranks belongs between run.ddp and "
                        "run.steps",
                        file=sys.stderr,
                    )
            return
        if self._session.spare and self._session.assignment is None and self._session.rehearsal is None:
            self._get_ready()
        self._session.need_rank(what)
        if self.rehearsing:
            self._session.rehearsal.enter()
        else:
            self._join()

    def _require_peers(self, what: str) -> None:
        """``run.setup(sharded=True)`` made the process group; but only what is computed once this process has joined
        its peers is computed from the state as it was trained."""
        if self._set_up and not self._session.formed:
            raise KeepstepError(
                f"{what} between run.setup and the loop: this process may hold the state as it was built, and not as "
                "it was trained. Do it in the loop over run.steps, or in a function given to run.evaluate"
            )

    def _get_ready(self) -> None:
        if not self._ready:
            self._ready = True
            self._spoilt = None  # what build() returned was compared with it
            parked.get_ready_quietly(self._registry)

    def _join(self) -> None:
        """Joins the current generation, or a newer one if this one is interrupted."""
        from keepstep.torch.distributed.hosts import communication

        if self._capsule is None:
            self._capsule = Capsule(self._registry)
        if not self._joined:
            self._rechecks = Rechecks(self._registry)
        self._shards.check()
        if not self._joined:
            checkpoint_settings.require_same(self._session, self.rank, self._save_settings)
        load = None if self._checkpoints is None else functools.partial(self._load, self._checkpoints, self._capsule)
        while True:
            try:
                if self._checkpoints is not None and self.rank == 0 and self._assignment("join").version == 0:
                    self._checkpoints.announce()
                membership.join(self._session, self._registry, self._capsule, self._shards, load)
            except _engine.Interrupted:
                if self._next_assignment():
                    self._assigned = True
                    raise Interruption("the state is divided anew") from None
                continue
            break
        self._spoilt = None
        communication.attach(self._session)
        if self._checkpoints is not None:
            self._checkpoints.enter()
            if self.version == 0:
                self._began_with(0)
        self._joined = True
        self._guards.stale_copy(self._shards.wanted)
        self._committed.record()
        self._votes.enter(self.rank, self.world_size)
        self._checks.forget()
        self._checks.search_again()
        if self._assignment("checks").generation > 1:
            self._checks.stop()

    def _load(self, checkpoints: CheckpointManager, capsule: Capsule, version: int) -> None:
        holders = Holders(self._registry)
        manner = holders.take({})
        checkpoints.load(version, capsule)
        if self._began_with(version) != version:
            return
        self._committed.start()
        if self.rank == 0 and (what := holders.modes_since(manner)):
            print(
                f"keepstep: the checkpoint of step {version} changed {what}: what it holds counts. What is to be "
                "otherwise from here on belongs between run.ddp and run.steps",
                file=sys.stderr,
            )

    def _began_with(self, version: int) -> int:
        """The step from which the job started; `version` if this process is the first to ask."""
        pair = f"0:{version}".encode()
        answered, _, _, value = self._session.store(
            "compare_set", self._session.key("began"), pair, ends_with_generation=False
        )
        return int(value) if answered and value else version

    def _unwind(self, reason: str) -> None:
        """Leaves the interrupted generation and joins the next one."""
        self._leave_peers(keep_world=self._store is not None)
        self._call_users_hooks(reason)
        self._session.injector.at("recovery", self.version + 1)
        self._committed.left()  # before functions of "resize": their changes to options are meant to last
        if not self._assigned:
            self._next_assignment()
        else:
            gc.collect()  # the function was left only now, with all that it held
        self._assigned = False
        if self._joined:
            self._entering = True
            self._guards.left()
            self._join()  # at once, whatever the function does first; else it still has to protect its state
        self._hooks.clear()  # the next entry brings its own

    def _wait_copied(self) -> None:
        """Before protected state changes: waits for those who copy it in the background."""
        if self._checkpoints is not None:
            self._checkpoints.wait_copied()
        self._publications.wait_copied()

    def _leave_peers(self, keep_world: bool) -> None:
        """Ends what belonged to this generation. `keep_world`: keep the world's process group, where possible."""
        from keepstep.torch.distributed.hosts import communication

        nccl.leave()
        cuda.synchronize()
        self._wait_copied()
        communication.detach()
        stays = self._world.can_stay()
        self._world.forget_abandoned()
        self._drop_generation(keep_world and stays)

    def _next_assignment(self) -> bool:
        """Waits for it. True: the function must be entered before this process joins, to build again."""
        self._session.next_assignment()
        moved = self._engine.moved
        if moved.regroup:
            # torch keeps a group's rank and size from its creation: DDP divides by that size, and scripts trust it.
            replicas.groups_away(keep_world=False)
        if moved.put_back:
            self._committed.put_back()
        if moved.resized:
            self._hooks.call("resize", moved.resized_from, self.world_size)
        if moved.rebuild:
            self._divide_anew()
        return moved.rebuild

    def _drop_generation(self, keep_world: bool) -> None:
        """The function was left: nothing of this entry may show in the next one. The communicator is already gone."""
        self._loops.clear()
        self._set_up.clear()
        self._engine.leave()
        self._evaluations.clear()
        self._publications.clear()
        replicas.drop_all()
        fsdp.reset_iteration(self._registry.modules())
        pipelining.as_built()
        replicas.groups_away(keep_world)
        self._registry.drop_gradients()
        for item in self._registry.objects.values():
            if isinstance(item, torch.amp.GradScaler):
                # An unscale_ of the interrupted step must not count in its redo.
                item._per_optimizer_states = defaultdict(torch.amp.grad_scaler._refresh_per_optimizer_state)

    def _call_users_hooks(self, reason: str) -> None:
        self._hooks.call_quietly("interrupt", reason)
        self._hooks.drop_all_but("resize")  # closures would keep the memory of what is built again
        if self._options.health_check is not None:
            try:
                self._options.health_check()
            except Exception as error:
                traceback.print_exc()
                raise SystemExit(1) from error  # this process is unhealthy: it ends and is replaced

    def _returned(self) -> None:
        """The function returned on this rank; it joins now if nothing in it needed peers."""
        self._form("the end of the training function")
        self._wait_copied()
        if self._loops.saves_at_return:
            self._save_last()

    def _states_without_rank(self) -> dict[str, State]:
        """The states that any process can build."""
        return {name: state for name, state in self._states.items() if name not in self._states_of_rank}

    def _leave_for_good(self) -> None:
        """The function is over; another one begins."""
        self._leave_peers(keep_world=False)
        self._hooks.clear()
        self._commit.close()

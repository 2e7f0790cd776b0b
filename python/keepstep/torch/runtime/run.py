"""The handle a recoverable training function gets: `Run`."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from keepstep._destination import Destination
from keepstep._entry import Entry
from keepstep._errors import Interruption, KeepstepError
from keepstep._options import RecoverOptions
from keepstep._redundancy import Parity
from keepstep._session import Session
from keepstep._state import State
from keepstep.torch.current_run import set_current
from keepstep.torch.data.map_dataset import MapDataset
from keepstep.torch.data_parallel import replicas
from keepstep.torch.data_parallel.replicate import Replicate
from keepstep.torch.distributed import nccl
from keepstep.torch.integrity import bit_flip
from keepstep.torch.recovery import rehearsal
from keepstep.torch.recovery.committed import Committed, restored
from keepstep.torch.runtime.commit import Commit
from keepstep.torch.runtime.entries import Entries
from keepstep.torch.runtime.evaluations import Evaluations
from keepstep.torch.runtime.guards import Guards
from keepstep.torch.runtime.hooks import Hooks
from keepstep.torch.runtime.publications import Publications
from keepstep.torch.runtime.run_steps import run_steps
from keepstep.torch.runtime.saves import Saves
from keepstep.torch.runtime.states import States
from keepstep.torch.runtime.step_commits import StepCommits
from keepstep.torch.runtime.step_loops import StepLoops
from keepstep.torch.sharded.shards import ShardCounts, Shards
from keepstep.torch.state.registry import Registry
from keepstep.torch.step.open_step import CommittedStep, OpenStep
from keepstep.torch.step.steps import Step

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from torch.utils.data import DataLoader

    from keepstep.scaling import PerWorld
    from keepstep.torch.data.cached import CachedLoader

T = TypeVar("T")
S = TypeVar("S", bound=State)


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
        if isinstance(options.redundancy, Parity) and session.welcome.elastic:
            raise KeepstepError(
                "recoverable(redundancy=Parity(...)): this job is elastic (--nnodes MIN:MAX or --min-replicas), and "
                "parity groups cannot follow another number of ranks yet; use keepstep.Copies(2) or more"
            )
        self._shards = Shards(session, self._registry, options.redundancy)
        self._entries = Entries(self)
        session.capsule_ids = self._entries.capsule_ids
        self._states = States(self)
        self._saves = Saves(self)
        self._committed = Committed(self._registry, self._entries.capsule_ids, lambda: self._commit.versions())
        self._commit = Commit(session, self._registry, self._committed, lambda: self._entries.capsule)
        self._step_commits = StepCommits(self, function)
        self._guards = Guards(session, self._committed, self._commit, lambda: self._entries.capsule)
        self._registry.beside = self._committed
        replicas.around_wrap = self._committed.as_wrapped
        self._loops = StepLoops(self)
        self._evaluations = Evaluations(self)
        self._publications = Publications(self)
        self._hooks = Hooks()
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

    def _form(self, what: str) -> None:
        """Joins the generation if this process has not yet: waits for a rank and for the state. `what` needs them."""
        self._entries.form(what)

    def _require_peers(self, what: str) -> None:
        """Raises in an entry that has set up its state and not yet joined its peers."""
        self._entries.require_peers(what)

    def _before_forward(self, module: torch.nn.Module) -> None:
        """The forward of a protected module begins. Raises where it would use what no commit left."""
        self._guards.before_forward(module, self._in_step)
        if self._in_step and self._loops.step is not None and torch.is_grad_enabled():
            self._loops.step._before_forward()

    def _check_interrupted(self) -> None:
        if self._engine.interrupted():
            raise Interruption("the generation ended")

    def _check_results(self) -> None:
        """Raises if the generation ended and cut a collective short: what it returned must not be used."""
        from keepstep.torch.distributed.hosts import communication

        # Called for each event of a loop: looking for NCCL's groups, which are aborted without a word, comes last.
        if self._engine.interrupted() and (communication.cut_short or nccl.backends()):
            self._check_interrupted()

    # ---- the process and its rank ----

    @property
    def rank(self) -> int:
        """This process's rank. Asking for it in ``build`` is an error: the rank is not known yet."""
        return self._session.need_rank("run.rank").rank

    @property
    def world_size(self) -> int:
        """Ranks of the current generation."""
        return self._session.need_rank("run.world_size").world_size

    @property
    def generation(self) -> int:
        """The generation's number, from 1; each fault starts a new one."""
        return self._session.need_rank("run.generation").generation

    @property
    def rehearsing(self) -> bool:
        """Whether a spare is only rehearsing its first step (see `RecoverOptions.rehearse`).

        Its rank is then the world's last, its generation 0, and it leaves the function at ``step.commit``.
        """
        return self._session.rehearsing

    @property
    def entry(self) -> Entry:
        """Why the function was entered this time."""
        return Entry(self._session.need_rank("run.entry").entry)

    @property
    def because(self) -> str:
        """The same as a sentence of the coordinator."""
        return self._session.need_rank("run.because").because

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
        return self._states.setup(build, name, sharded, with_rank)  # type: ignore[return-value]

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
        self._saves.begin(destinations, memory_every_steps)

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
        self._entries.init_process_group()
        return replicas.wrap_reproducibly(model, **options) if reproducible else replicas.wrap(model, **options)

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
        return run_steps(self, dataset, global_batch, micro_batch, last_step, shuffle, collate, position, mesh)

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
        self._saves.wait_copied()
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
        self._publications.add(name, module, every_steps, only_trained)

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

    # ---- sharded state ----

    def shard_counts(self) -> ShardCounts:
        """What the copies of this rank's shard have cost in this generation."""
        return ShardCounts(*self._engine.shard_counts())

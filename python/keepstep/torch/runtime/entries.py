"""How a process comes into a generation and out of it again: what an entry of the training function begins with, and
what it must leave behind."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from keepstep import _engine
from keepstep._errors import Interruption, KeepstepError
from keepstep.torch.data_parallel import replicas
from keepstep.torch.distributed import nccl, nccl_world
from keepstep.torch.recovery import membership, parked, rehearsal
from keepstep.torch.recovery.manner import Holders
from keepstep.torch.sharded import fsdp, pipelining
from keepstep.torch.sharded.shards import Shards
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.tensors import cuda

if TYPE_CHECKING:
    from keepstep.torch.checkpoint.manager import CheckpointManager
    from keepstep.torch.runtime.run import Run


class Entries:
    """Of one process. For the main thread. `capsule`: what forward changes; None before this process joined."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run._session
        self._engine = run._engine
        self._registry = run._registry
        self.capsule: Capsule | None = None
        self._assigned = False  # the entry starts with the assignment that has already arrived
        self._store: object | None = None  # of the process group that this made
        self._world = nccl_world.WorldConnection(self._session)
        self._ready = False  # a spare: to park
        self._joined = False  # once: then the registry is complete
        self._entering = False  # left, and put back; the entry has not yet reached what needs peers

    def capsule_ids(self) -> set[int]:
        return set() if self.capsule is None else self.capsule.ids

    # ---- into it ----

    def form(self, what: str) -> None:
        """Joins the generation if this process has not yet: waits for a rank and for the state. `what` needs them."""
        if self._session.formed or self._session.building_with_rank:
            if self._entering and self._session.formed:
                self._entering = False
                self._put_back_manner(what)
            return
        if self._session.spare and self._session.assignment is None and self._session.rehearsal is None:
            self.get_ready()
        self._session.need_rank(what)
        if self._run.rehearsing:
            self._session.rehearsal.enter()
        else:
            self._join()

    def _put_back_manner(self, what: str) -> None:
        """As on a newcomer, which joins here and gets what its peers have."""
        run = self._run
        set_here = run._committed.late_change()
        run._committed.put_back_manner()
        if set_here and run.entry == "resize" and run.rank == 0:
            print(
                f"keepstep: {set_here} was set before {what}, where a newcomer gets what its peers have, so it was put "
                "back. What is meant for the new number of ranks belongs between run.ddp and run.steps",
                file=sys.stderr,
            )

    def require_peers(self, what: str) -> None:
        """``run.setup(sharded=True)`` made the process group; but only what is computed once this process has joined
        its peers is computed from the state as it was trained."""
        if self._run._states.set_up and not self._session.formed:
            raise KeepstepError(
                f"{what} between run.setup and the loop: this process may hold the state as it was built, and not as "
                "it was trained. Do it in the loop over run.steps, or in a function given to run.evaluate"
            )

    def get_ready(self) -> None:
        """A spare is about to wait for a rank, or to rehearse."""
        if not self._ready:
            self._ready = True
            self._run._states.spoilt = None  # what build() returned was compared with it
            parked.get_ready_quietly(self._registry)

    def init_process_group(self) -> None:
        run = self._run
        if not dist.is_initialized():
            from keepstep.torch.distributed.store import GenerationStore

            self._store = GenerationStore(self._session)  # torch holds it, but only as a C++ object
            backend = "keepstep"
            options: dict[str, Any] = {}
            if self._registry.cuda_devices():
                nccl.check_usable()
                backend = "cpu:keepstep,cuda:nccl"
                nccl.before_group(self._session, run.world_size)
                if nccl_world.reconfigures(run.world_size):
                    options["enable_reconfigure"] = True
            dist.init_process_group(backend, store=self._store, rank=run.rank, world_size=run.world_size, **options)
        self._world.connect()

    def _join(self) -> None:
        """Joins the current generation, or a newer one if this one is interrupted."""
        from keepstep.torch.distributed.hosts import communication

        run = self._run
        saves = run._saves.manager
        if self.capsule is None:
            self.capsule = Capsule(self._registry)
        if not self._joined:
            run._step_commits.built()
        run._shards.check()
        if not self._joined:
            run._saves.require_same()
        load = None if saves is None else functools.partial(self._load, saves, self.capsule)
        while True:
            try:
                if saves is not None and run.rank == 0 and self._session.need_rank("join").version == 0:
                    saves.announce()
                membership.join(self._session, self._registry, self.capsule, run._shards, load)
            except _engine.Interrupted:
                if self._next_assignment():
                    self._assigned = True
                    raise Interruption("the state is divided anew") from None
                continue
            break
        run._states.spoilt = None
        communication.attach(self._session)
        if saves is not None:
            saves.enter()
            if run.version == 0:
                self._began_with(0)
        self._joined = True
        run._guards.stale_copy(run._shards.wanted)
        run._committed.record()
        run._step_commits.enter_generation()

    def _load(self, saves: CheckpointManager, capsule: Capsule, version: int) -> None:
        """Fills the state from the checkpoint of `version`."""
        run = self._run
        holders = Holders(self._registry)
        manner = holders.take({})
        saves.load(version, capsule)
        if self._began_with(version) != version:
            return
        run._committed.start()
        if run.rank == 0 and (what := holders.modes_since(manner)):
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

    # ---- out of it ----

    def unwind(self, reason: str) -> None:
        """The function was left in an interrupted generation. Joins the next one."""
        run = self._run
        self._leave_peers(keep_world=self._store is not None)
        self._call_users_hooks(reason)
        self._session.injector.at("recovery", run.version + 1)
        run._committed.left()  # before functions of "resize": their changes to options are meant to last
        if not self._assigned:
            self._next_assignment()
        else:
            gc.collect()  # the function was left only now, with all that it held
        self._assigned = False
        if self._joined:
            self._entering = True
            run._guards.left()
            self._join()  # at once, whatever the function does first; else it still has to protect its state
        run._hooks.clear()  # the next entry brings its own

    def returned(self) -> None:
        """The function returned on this rank; it joins now if nothing in it needed peers."""
        run = self._run
        self.form("the end of the training function")
        run._saves.wait_copied()
        if run._loops.saves_at_return:
            run._saves.save_last()

    def leave_for_good(self) -> None:
        """The function is over; another one begins."""
        self._leave_peers(keep_world=False)
        self._run._hooks.clear()
        self._run._commit.close()

    def leave_rehearsal(self) -> None:
        """The function was left by a rehearsal."""
        self._drop_entry(keep_world=False)
        self._run._hooks.clear()
        self._store = None

    def build_again(self, spoilt: rehearsal.Spoilt) -> None:
        """A rehearsal spoilt what was built."""
        self._run._states.spoilt = spoilt
        self._divide_again()
        self._ready = False

    def _leave_peers(self, keep_world: bool) -> None:
        """Ends what belonged to this generation. `keep_world`: keep the world's process group, where possible."""
        from keepstep.torch.distributed.hosts import communication

        nccl.leave()
        cuda.synchronize()
        self._run._saves.wait_copied()
        communication.detach()
        stays = self._world.can_stay()
        self._world.forget_abandoned()
        self._drop_entry(keep_world and stays)

    def _drop_entry(self, keep_world: bool) -> None:
        """The function was left: nothing of this entry may show in the next one. The communicator is already gone."""
        run = self._run
        run._loops.clear()
        run._states.clear()
        self._engine.leave()
        run._evaluations.clear()
        run._publications.clear()
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
        run = self._run
        run._hooks.call_quietly("interrupt", reason)
        run._hooks.drop_all_but("resize")  # closures would keep the memory of what is built again
        if run._options.health_check is not None:
            try:
                run._options.health_check()
            except Exception as error:
                traceback.print_exc()
                raise SystemExit(1) from error  # this process is unhealthy: it ends and is replaced

    def _next_assignment(self) -> bool:
        """Waits for it. True: the function must be entered before this process joins, to build again."""
        self._session.next_assignment()
        moved = self._engine.moved
        if moved.regroup:
            # torch keeps a group's rank and size from its creation: DDP divides by that size, and scripts trust it.
            replicas.groups_away(keep_world=False)
        if moved.put_back:
            self._run._committed.put_back()
        if moved.resized:
            self._run._hooks.call("resize", moved.resized_from, self._run.world_size)
        if moved.rebuild:
            self._divide_again()
        return moved.rebuild

    def _divide_again(self) -> None:
        """Sharded state is divided in another way from now on: builds everything again and moves the state into it."""
        run = self._run
        run._states.forget()
        run._hooks.clear()
        self._registry.clear()
        run._shards = Shards(self._session, self._registry, run._options.redundancy)
        self.capsule = None
        run._step_commits.forget()
        run._committed.forget()
        self._joined = False
        if run._saves.manager is not None:
            run._saves.manager.forget()
        self._engine.let_go()
        gc.collect()  # modules keep themselves alive through their hooks, and their memory is needed now

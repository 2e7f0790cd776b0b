"""Which worker holds which rank, and what each is doing, according to the journal."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.report.journal import Line

STARTING, PARKED, TRAINING, FINISHED = "starting", "parked", "training", "finished"
LEAVING, WAITING, SENDING, HYDRATING, HYDRATED = "leaving", "waiting", "sending", "hydrating", "hydrated"
FIRST_STEP = "first step"
KILLED = "killed"
FAULTS = {"death": "died", "exception": "failed", "hang": "hangs", "node": "lost", "corruption": "corrupt"}
ENDED = {KILLED, *FAULTS.values()}


@dataclass
class Worker:
    """One process. `doing` is one of the words above."""

    number: int
    spare: bool
    doing: str = STARTING
    pid: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class Card:
    """A worker and its place in the row. `replaced`: the pid of the process that held this rank before, if any."""

    name: str
    doing: str
    pid: int | None
    node: int | None
    replaced: int | None


class Members:
    """`read` accepts the lines of all nodes."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}
        self._ranks: list[int] = []
        self._generation = 0
        self._replaced: dict[int, int | None] = {}

    def read(self, line: Line) -> None:
        handler = getattr(self, f"_on_{line.event}", None)
        if handler is not None:
            handler(line)

    def row(self) -> list[Card]:
        """The ranks in order, then the living workers without a rank."""
        ranks = [self._card(f"rank {rank}", self._workers[number], rank) for rank, number in enumerate(self._ranks)]
        return ranks + [
            self._card("spare" if worker.spare else f"worker {worker.number}", worker, None)
            for worker in self._workers.values()
            if worker.number not in self._ranks and worker.doing in (STARTING, PARKED)
        ]

    def kill_node(self, node: int) -> None:
        """The node's launcher and all its workers were killed from outside, which no journal line reports."""
        for worker in self._workers.values():
            if worker.node == node:
                worker.doing = KILLED

    def pid_of(self, rank: int) -> int | None:
        return self._workers[self._ranks[rank]].pid

    def _card(self, name: str, worker: Worker, rank: int | None) -> Card:
        replaced = None if rank is None else self._replaced.get(rank)
        return Card(name, worker.doing, worker.pid, worker.node, replaced)

    def _worker(self, number: int) -> Worker:
        return self._workers.setdefault(number, Worker(number, spare=False))

    def _of(self, line: Line) -> Worker | None:
        number = line.integer("worker")
        return None if number is None else self._worker(number)

    def _now(self, ranks: list[int], doing: str) -> None:
        for rank in ranks:
            if rank < len(self._ranks):
                self._worker(self._ranks[rank]).doing = doing

    def _all(self) -> list[int]:
        return list(range(len(self._ranks)))

    def _on_spawn_requested(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None:
            worker.spare = line.fields.get("spare") is True

    def _on_spawned(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None:
            worker.pid, worker.node = line.integer("pid"), line.integer("node")

    def _on_parked(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None and worker.number not in self._ranks:
            worker.doing, worker.pid = PARKED, line.integer("pid")

    def _on_generation_prepared(self, line: Line) -> None:
        workers, newcomers = line.integers("workers"), line.integers("newcomers")
        for rank, number in enumerate(workers):
            if rank in newcomers and rank < len(self._ranks):
                self._replaced[rank] = self._worker(self._ranks[rank]).pid
            self._worker(number).doing = WAITING if rank in newcomers else LEAVING
        self._ranks = workers
        self._generation = line.generation

    def _on_rank_ready(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None and line.generation == self._generation:
            worker.doing = WAITING

    def _on_activated(self, line: Line) -> None:
        self._now(line.integers("sources"), SENDING)
        self._now(line.integers("targets"), HYDRATING)

    def _on_hydrated(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None and worker.doing == HYDRATING:  # another node's line may be read after `formed`
            worker.doing = HYDRATED

    def _on_formed(self, line: Line) -> None:
        self._now(self._all(), FIRST_STEP)

    def _on_first_commit(self, line: Line) -> None:
        if line.generation == self._generation and line.integer("node") == 0:
            self._now([rank for rank in self._all() if self._workers[self._ranks[rank]].doing == FIRST_STEP], TRAINING)

    def _on_injected(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None and line.text("fault") == "kill":
            worker.doing = KILLED

    def _on_fault_detected(self, line: Line) -> None:
        gone = line.integers("workers")
        number = line.integer("worker")
        for each in gone if number is None else [number]:
            worker = self._worker(each)
            if worker.doing != KILLED:
                worker.doing = FAULTS.get(line.text("kind") or "death", "failed")

    def _on_finished(self, line: Line) -> None:
        self._now(self._all(), FINISHED)

    def _on_exit_confirmed(self, line: Line) -> None:
        worker = self._of(line)
        if worker is not None and worker.doing in (STARTING, PARKED):
            worker.doing = FAULTS["death"]

"""The systematic set of faults: what is tried on a job of a given shape, and what cannot be tried, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

PHASES = ("forward", "backward", "allreduce", "before_vote", "after_vote", "update", "between")
PASSING_S = 0.3  # duration of faults that end on their own


@dataclass(frozen=True)
class Shape:
    """The job's shape, which decides what faults make sense. ``steps``: how many it makes."""

    world: int
    nodes: int
    spares: int
    spare_nodes: int
    steps: int
    python: bool  # not a program of --no-python
    digests: bool  # this keepstep compares digests among ranks

    @property
    def step(self) -> int:
        """The step of the faults: after the checked first steps, with some steps to follow."""
        return max(2, (self.steps + 1) // 2)


@dataclass(frozen=True)
class Trial:
    """One job with faults. ``passes``: they end on their own, and no rank should be replaced.

    ``options``: further options of ``keepstep run`` for this job.
    """

    name: str
    says: str
    faults: tuple[str, ...]
    passes: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotTried:
    name: str
    because: str


def trials(shape: Shape) -> list[Trial | NotTried]:
    """All trials in the order in which they run. Ranks take turns as victims."""
    found: list[Trial | NotTried] = []
    for number, trial in enumerate((*_deaths(), *_errors(), *_hangs(), *_passing(), *_corruption())):
        rank = (shape.world - 1 - number) % shape.world
        faults = tuple(fault.format(rank=rank, step=shape.step) for fault in trial.faults)
        found.append(replace(trial, faults=faults))
    found += _several(shape)
    found += _nodes(shape)
    return [_possible(trial, shape) for trial in found]


def _deaths() -> Iterator[Trial]:
    where = {
        "forward": "in the middle of forward",
        "backward": "in the middle of backward",
        "allreduce": "just after an all_reduce was started",
        "before_vote": "before its vote",
        "after_vote": "after its vote",
        "update": "in the middle of the update",
        "between": "between two steps",
    }
    for phase in PHASES:
        yield _trial(f"kill-{phase}", f"SIGKILL {where[phase]}", f"kill:phase={phase}")
    yield _trial("segv", "a segmentation fault in native code", "segv:phase=backward")
    yield _trial("exit", "a library ends the process", "exit:phase=forward")


def _trial(name: str, says: str, fault: str, passes: bool = False) -> Trial:
    """A trial of one fault, whose rank and step are filled in later."""
    kind, _, rest = fault.partition(":")
    return Trial(name, says, (f"{kind}:rank={{rank}},step={{step}},{rest}",), passes)


def _errors() -> Iterator[Trial]:
    yield _trial("exception", "an exception in the training function", "exception:phase=forward")
    yield _trial("oom", "MemoryError", "oom:phase=forward,mib=64")
    yield _trial("oom-kill", "the kernel ends the process for its memory", "oom:phase=backward,what=kill,mib=64")


def _hangs() -> Iterator[Trial]:
    yield _trial("stop", "SIGSTOP, for ever", "stop:phase=forward")
    yield _trial("gil", "native code holds the GIL, for ever", "gil:phase=backward")
    yield _trial("loop", "an endless loop in Python", "loop:phase=forward")
    yield _trial("deadlock", "two threads, two locks", "deadlock:phase=between")


def _passing() -> Iterator[Trial]:
    yield _trial("slow", "computes three times as long for two steps", "slow:factor=3,times=2", True)
    yield _trial("agent-stop", "the launcher stands still", f"agent-stop:phase=between,seconds={PASSING_S}", True)
    yield _trial("disk-full", "the journal's disk is full", f"disk-full:phase=between,seconds={PASSING_S}", True)


def _corruption() -> Iterator[Trial]:
    yield _trial("flip-gradient", "one bit of a gradient flips", "flip:what=gradient,seed=1")
    # A job of certify is shorter than the usual interval between two comparisons of the state.
    flipped = _trial("flip-parameter", "one bit of a parameter flips", "flip:what=parameter,seed=1")
    yield replace(flipped, options=("--digest-every", "1"))


def _several(shape: Shape) -> Iterator[Trial | NotTried]:
    step = shape.step
    if shape.world < 2:
        yield NotTried("two-at-once", "there is one rank only")
        return
    first, second = shape.world - 1, 0
    yield Trial(
        "newcomer", "the process that replaces a dead one dies while it takes the state",
        (f"kill:rank={first},step={step},phase=allreduce", f"kill:rank={first},step={step},phase=hydrate"),
    )  # fmt: skip
    yield Trial(
        "in-a-row", "a death in each of two steps in a row",
        (f"kill:rank={first},step={step},phase=backward", f"kill:rank={second},step={step + 1},phase=backward"),
    )  # fmt: skip
    if shape.world < 3:
        yield NotTried("two-at-once", "there are two ranks only: without both no clean state is left")
        yield NotTried("survivor", "there are two ranks only: without both no clean state is left")
        return
    yield Trial(
        "two-at-once", "two ranks die in the same step",
        (f"kill:rank={first},step={step},phase=allreduce", f"kill:rank={second},step={step},phase=allreduce"),
    )  # fmt: skip
    yield Trial(
        "survivor", "a survivor dies while it leaves the interrupted step",
        (f"kill:rank={first},step={step},phase=allreduce", f"kill:rank={second},step={step},phase=recovery"),
    )  # fmt: skip


def _nodes(shape: Shape) -> Iterator[Trial | NotTried]:
    step, last = shape.step, shape.world - 1  # the last rank is on the last node, which has no coordinator
    links = (
        (
            "link-drop",
            "the connections between two nodes are cut",
            f"link-drop:rank={last},step={step},phase=between",
            False,
        ),
        ("link-delay", "a slow network", f"link-delay:rank={last},step={step},phase=between,ms=5", True),
    )
    if shape.nodes < 2:
        because = "the job has one node; --nnodes 2 --spare-nodes 1 starts several on this machine"
        for name in ("node", "link-drop", "link-delay"):
            yield NotTried(name, because)
        return
    if shape.spare_nodes < 1:
        yield NotTried("node", "there is no spare node that could take the place of a lost one; --spare-nodes 1")
    else:
        yield Trial("node", "a whole node is lost", (f"agent-kill:rank={last},step={step},phase=between",))
    for name, says, fault, passes in links:
        yield Trial(name, says, (fault,), passes)


def _possible(trial: Trial | NotTried, shape: Shape) -> Trial | NotTried:
    if isinstance(trial, NotTried):
        return trial
    kinds = {fault.partition(":")[0] for fault in trial.faults}
    if "flip" in kinds and not shape.digests:
        return NotTried(trial.name, "this version of keepstep compares no digests: what flips silently stays")
    if "flip" in kinds and shape.world == 1:
        return NotTried(trial.name, "what flips silently is found by comparing ranks; there is one rank only")
    if trial.name == "flip-parameter" and shape.world == 2:
        return NotTried(trial.name, "of two ranks with different parameters nobody can tell which is right")
    if not shape.python and not kinds <= {"kill", "segv", "exception", "exit"}:
        return NotTried(trial.name, "a program without Python cannot do this to itself")
    if shape.world == 1 and kinds & {"gil", "loop", "deadlock"}:
        return NotTried(trial.name, "a hang is found where others wait for the rank that hangs; there is one rank only")
    return trial

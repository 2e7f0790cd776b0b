"""What the ranks of one job recorded (`keepstep.torch.integrity.witness`), and the losses in its journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.certify.job import JOB, own_folder
from keepstep.report.journal import as_integer, read_objects

Effect = tuple[str, str]  # what was done, and to what


@dataclass
class Commit:
    """A rank's own view of its state after a commit: digests by tensor name. `loss` is given as bits."""

    step: int
    rank: int
    generation: int
    loss: str
    state: dict[str, str]
    own: dict[str, str]
    values: str


@dataclass
class Evidence:
    """The evidence of one job. ``samples``: those of each step over all ranks, in the generation that committed it."""

    commits: list[Commit] = field(default_factory=list)
    samples: dict[int, list[int]] = field(default_factory=dict)
    losses: dict[int, Any] = field(default_factory=dict)  # from the journal, by step
    effects: Counter[Effect] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)  # printed by the script
    devices: set[str] = field(default_factory=set)

    @property
    def last_step(self) -> int:
        return max((*self.losses, *(commit.step for commit in self.commits)), default=0)

    @property
    def witnessed(self) -> bool:
        """Whether a recoverable Python function ran; otherwise only losses are known."""
        return bool(self.commits)


def read(folder: Path, outputs: list[Path]) -> Evidence:
    """`folder` contains ``witness/`` and ``run/``; `outputs`: files with what the job printed."""
    found = Evidence()
    own = str(own_folder(folder))
    computed: dict[int, dict[int, dict[int, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted((folder / "witness").glob("*.jsonl")):
        for line in read_objects(path)[0]:
            if "committed" in line:
                found.commits.append(_commit(line))
                found.devices.update(line["devices"])
            elif "computed" in line:
                computed[line["computed"]][line["generation"]][line["rank"]] = line["samples"]
            elif "effect" in line:
                found.effects[(line["effect"], line["of"].replace(own, JOB))] += 1
    for step, by_generation in computed.items():
        ranks = by_generation[max(by_generation)]
        found.samples[step] = [sample for rank in sorted(ranks) for sample in ranks[rank]]
    # Each node's file has the loss of all ranks, unless all ranks of that node died before they reported it.
    for path in sorted(folder.glob("run*/metrics*.jsonl")):
        for line in read_objects(path)[0]:
            number = as_integer(line.get("step"))
            if number is not None and (line.get("loss") is not None or number not in found.losses):
                found.losses[number] = line.get("loss")
    for path in outputs:
        found.lines.update(line.replace(own, JOB) for line in _lines(path))
    return found


def _commit(line: dict[str, Any]) -> Commit:
    return Commit(
        line["committed"], line["rank"], line["generation"], line["loss"], line["state"], line["own"], line["values"]
    )


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("keepstep")]


def first_difference(mine: Evidence, reference: Evidence) -> str | None:
    """Where two jobs that should be the same first differ, in words; None if they are the same bit for bit."""
    theirs = {(commit.step, commit.rank): commit for commit in reference.commits}
    for commit in sorted(mine.commits, key=lambda commit: (commit.step, commit.rank)):
        other = theirs.get((commit.step, commit.rank))
        where = f"step {commit.step}, rank {commit.rank}"
        if other is None:
            return f"{where}: the undisturbed run has no such step"
        if commit.loss != other.loss:
            return f"{where}: the loss"
        changed = [name for name in _different(commit.state, other.state)]
        changed += [name for name in _different(commit.own, other.own)]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            return f"{where}: {', '.join(changed[:3])}{more}"
        if commit.values != other.values:
            return f"{where}: numbers of the protected state (a schedule's, an optimizer's groups, a scaler's)"
    for step in sorted(mine.losses.keys() & reference.losses.keys()):
        if mine.losses[step] != reference.losses[step]:
            return f"step {step}: the loss"
    return None


def _different(mine: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


def missing(mine: Evidence, reference: Evidence) -> str | None:
    """What this run lacks of the undisturbed run: steps, final states, samples; None if nothing."""
    if mine.last_step < reference.last_step:
        return f"it ends at step {mine.last_step} and not at {reference.last_step}"
    last = {commit.rank for commit in mine.commits if commit.step == reference.last_step}
    absent = {commit.rank for commit in reference.commits if commit.step == reference.last_step} - last
    if absent:
        return f"rank {min(absent)} did not commit the last step"
    for step, samples in sorted(reference.samples.items()):
        used, expected = Counter(mine.samples.get(step, [])), Counter(samples)
        if used != expected:
            return (
                f"step {step} used {(used - expected).total()} samples too many and left out "
                f"{(expected - used).total()}"
            )
    return None


def unequal_replicas(found: Evidence) -> list[str]:
    """Protected tensors that should be the same on all ranks after a commit, but differ."""
    by_step: dict[int, list[Commit]] = defaultdict(list)
    for commit in found.commits:
        by_step[commit.step].append(commit)
    names: set[str] = set()
    for commits in by_step.values():
        for commit in commits[1:]:
            names.update(_different(commit.state, commits[0].state))
    return sorted(names)

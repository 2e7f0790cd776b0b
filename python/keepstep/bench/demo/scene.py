"""What the demo shows of one job. Input: news from its run directory; output: ranks, steps, events and recoveries.

Pure: it reads no file and no clock. All times are the journal's, and recoveries come from the functions of
`keepstep report`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from keepstep.bench.demo.members import Card, Members
from keepstep.bench.demo.run_files import News
from keepstep.report import words
from keepstep.report.journal import Commit, Line, OutsideFault, RunRecord, as_seconds
from keepstep.report.recovery import PHASE_TITLES, PHASES, Fault, Recovery
from keepstep.report.timeline import recoveries_of

QUARTERS = 4  # of all steps; each produces an event
PLAIN, FAULT, RECOVERED = "plain", "fault", "recovered"


@dataclass(frozen=True)
class Event:
    """A sentence about the job, `t` seconds after its start. `kind`: one of the three above."""

    t: float
    text: str
    kind: str = PLAIN


class Scene:
    """Attributes:

    step: the newest committed step; 0 before the first.
    loss: its loss; None until the metrics contain it.
    events: everything that happened, oldest first.
    """

    def __init__(self, last_step: int) -> None:
        self.last_step = last_step
        self.step = 0
        self.loss: float | None = None
        self.events: list[Event] = []
        self._members = Members()
        self._lines: list[Line] = []
        self._elsewhere: list[Line] = []
        self._outside: list[OutsideFault] = []
        self._recoveries: list[Recovery] = []
        self._quarter = 0
        self._kills: dict[tuple[str, int | None], str] = {}  # by ("pid", pid) or ("node", node)

    @property
    def row(self) -> list[Card]:
        return self._members.row()

    @property
    def t(self) -> float:
        """Time of the newest line, in seconds since the job's start."""
        return self._lines[-1].t if self._lines else 0.0

    @property
    def recovery(self) -> Recovery | None:
        """The newest recovery, complete or not."""
        return self._recoveries[-1] if self._recoveries else None

    @property
    def recoveries(self) -> int:
        return len(self._recoveries)

    def read(self, news: list[News]) -> None:
        """Accepts news in the order in which it happened."""
        for one in news:
            if isinstance(one, Commit):
                self._read_commit(one)
            elif isinstance(one, OutsideFault):
                self._read_outside(one)
            elif one.integer("node") == 0:
                self._read_line(one)
            else:
                self._elsewhere.append(one)
                self._members.read(one)
                if one.event == "hydrated":
                    self._refresh_recoveries()
                    self._tell_hydrated(one)

    def what_was_killed(self, recovery: Recovery) -> list[str]:
        """A sentence for each fault of a recovery."""
        return [self._kill_of(fault) or f"{words.who(fault)}: {fault.how()}" for fault in recovery.faults]

    def _read_commit(self, commit: Commit) -> None:
        if commit.step < self.step:
            return
        self.step, self.loss = commit.step, commit.loss
        if self._lines and QUARTERS * commit.step // self.last_step > self._quarter:
            self._quarter = QUARTERS * commit.step // self.last_step
            loss = "" if commit.loss is None else f", loss {commit.loss:.4f}"
            self.events.append(Event(self._since_start(commit.mono), f"step {commit.step} of {self.last_step}{loss}"))

    def _since_start(self, mono: float) -> float:
        return mono - self._lines[0].mono + self._lines[0].t if self._lines else 0.0

    def _read_outside(self, fault: OutsideFault) -> None:
        self._outside.append(fault)
        if fault.node is None:
            return
        ranks = [str(rank) for rank, card in enumerate(self._ranks()) if card.node == fault.node]
        self._members.kill_node(fault.node)
        said = f"node {fault.node} killed with SIGKILL: its launcher and ranks {', '.join(ranks)}"
        self._kills["node", fault.node] = said
        self.events.append(Event(self._since_start(fault.mono), said, FAULT))

    def _read_line(self, line: Line) -> None:
        self._lines.append(line)
        self._members.read(line)
        self._refresh_recoveries()
        tell = getattr(self, f"_tell_{line.event}", None)
        if tell is not None:
            tell(line)

    def _refresh_recoveries(self) -> None:
        """A journal has some ten lines per fault, so reading all of them again takes less than a millisecond."""
        record = RunRecord(Path(), self._lines, self._elsewhere, [], [], self._outside, 0)
        self._recoveries, _ = recoveries_of(record)

    def _ranks(self) -> list[Card]:
        return [card for card in self.row if card.name.startswith("rank")]

    def _kill_of(self, fault: Fault) -> str | None:
        return self._kills.get(("pid", fault.pid)) or self._kills.get(("node", fault.node))

    def _tell(self, line: Line, text: str, kind: str = PLAIN) -> None:
        self.events.append(Event(line.t, text, kind))

    def _tell_job_started(self, line: Line) -> None:
        self._tell(line, f"the job starts with {line.integer('world_size')} ranks")

    def _tell_parked(self, line: Line) -> None:
        recovering = self.recovery is not None and not self.recovery.complete  # a rank is waiting for it
        if not recovering and any(card.pid == line.integer("pid") and card.name == "spare" for card in self.row):
            self._tell(line, f"a spare is ready (pid {line.integer('pid')})")

    def _tell_injected(self, line: Line) -> None:
        rank, step, given = line.integer("rank"), line.integer("step"), line.because
        if line.text("fault") != "kill" or rank is None:
            self._tell(line, f"a fault as asked for: {given}", FAULT)
            return
        phase = dict(part.split("=", 1) for part in given.partition(":")[2].split(",") if "=" in part).get("phase")
        pid = self._members.pid_of(rank)
        said = f"rank {rank} (pid {pid}) killed with SIGKILL in {f'its {phase} of' if phase else ''} step {step}"
        self._kills["pid", pid] = said
        at = as_seconds(line.fields.get("at_mono"))
        self.events.append(Event(line.t if at is None else self._since_start(at), said, FAULT))

    def _tell_fault_detected(self, line: Line) -> None:
        recovery = self.recovery
        fault = recovery.faults[-1] if recovery is not None and recovery.faults else None
        if fault is None or fault.mono != line.mono:
            self._tell(line, f"a spare was lost: {line.because}", FAULT)
            return
        how = "" if self._kill_of(fault) else f"{fault.how()}, "
        later = "" if fault.happened_mono is None else f" after {_ms(fault.mono - fault.happened_mono)} ms"
        self._tell(line, f"{words.who(fault)}: {how}detected by {fault.detected_by}{later}", FAULT)

    def _tell_verdict(self, line: Line) -> None:
        done = "is redone" if line.text("verdict") == "redo" else "counts"
        self._tell(line, f"verdict: step {line.integer('step')} {done}, as {line.because}")

    def _tell_restart(self, line: Line) -> None:
        lost = line.integer("lost_steps") or 0
        self.step -= lost
        self._tell(line, f"all ranks start again, {lost} steps lost: {line.because}", FAULT)

    def _tell_generation_prepared(self, line: Line) -> None:
        if self.recovery is None:
            return
        how = {"spare": "a spare", "zygote": "forked from the zygote"}.get(line.text("replaced_by") or "", "started")
        for rank in line.integers("newcomers"):
            self._tell(line, f"rank {rank} is now pid {self._members.pid_of(rank)}, {how}")

    def _tell_hydrated(self, line: Line) -> None:
        recovery = self.recovery
        if recovery is not None and line.generation == recovery.to_generation and recovery.hydrations:
            self._tell(line, f"state pulled: {words.moved(recovery.hydrations[-1])}")

    def _tell_first_commit(self, line: Line) -> None:
        step = line.integer("step") or 0
        if step > self.step:
            self.step, self.loss = step, None  # the metrics contain it a little later
        recovery = self.recovery
        if recovery is None:
            self._tell(line, "all ranks train")
        elif recovery.complete and recovery.to_generation == line.generation:
            phases = ", ".join(f"{PHASE_TITLES[name]} {_ms(recovery.phases_s()[name])}" for name in PHASES)
            said = f"step {step} committed by all ranks {_ms(recovery.total_s)} ms after the fault: {phases}"
            self._tell(line, said, RECOVERED)

    def _tell_finished(self, line: Line) -> None:
        self._tell(line, "all ranks finished")

    def _tell_job_ended(self, line: Line) -> None:
        if line.integer("exit_code") != 0:
            self._tell(line, f"the job ended with exit code {line.integer('exit_code')}: {line.because}", FAULT)


def _ms(seconds: float | None) -> str:
    return words.milliseconds(seconds)

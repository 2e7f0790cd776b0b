"""From journal lines to recoveries: one pass, in the order of the journal."""

from __future__ import annotations

from dataclasses import replace

from keepstep.report.journal import Line, RunRecord, as_integer, as_seconds
from keepstep.report.recovery import Fault, Hydration, Recovery


class _Reader:
    def __init__(self, record: RunRecord) -> None:
        self.recoveries: list[Recovery] = []
        self.spares_lost: list[Fault] = []
        self._open: Recovery | None = None
        self._generation = 0
        self._injected = [
            (line.integer("worker"), at)
            for line in record.lines
            if line.event == "injected" and (at := as_seconds(line.fields.get("at_mono"))) is not None
        ]
        self._outside = record.outside_faults
        self._exits = {line.integer("pid"): line for line in record.lines if line.event == "exit_confirmed"}

    def read(self, line: Line) -> None:
        handler = getattr(self, f"_on_{line.event}", None)
        if handler is not None:
            handler(line)

    def _on_fault_detected(self, line: Line) -> None:
        fault = self._fault(line)
        if fault.rank is None and not fault.ranks and fault.kind != "digests" and self._open is None:
            self.spares_lost.append(fault)
            return
        recovery = self._current(line)
        recovery.faults.append(fault)
        if recovery.marks.detected is None:
            recovery.marks.detected = line.mono
            recovery.marks.fault = fault.happened_mono
        else:
            recovery.marks.forget_attempt()

    def _on_corruption(self, line: Line) -> None:
        """Names the rank that caused differing digests, or, after a redo, the rank that had been wrong before it."""
        ranks, workers = line.integers("ranks"), line.integers("workers")
        if not ranks:
            return
        recovery = self._current(line)
        if recovery.marks.detected is None:
            recovery.marks.detected = line.mono
        recovery.faults = [fault for fault in recovery.faults if fault.kind != "digests"]
        found = self._fault(line)
        recovery.faults += [
            replace(found, rank=rank, worker=worker, kind="corruption", detected_by="vote", ranks=[])
            for rank, worker in zip(ranks, workers, strict=False)
        ]

    def _on_rung(self, line: Line) -> None:
        # The rung that ends a job is not a recovery.
        rung = line.text("rung")
        if self._open is not None and rung is not None:
            self._open.rungs.append(rung)

    def _on_verdict(self, line: Line) -> None:
        if self._open is None:
            return
        self._open.marks.verdict = line.mono
        self._open.verdict = line.text("verdict")
        self._open.verdict_because = line.because
        self._open.step = line.integer("step")
        self._open.redone_steps += line.integer("redone_steps") or 0

    def _on_restart(self, line: Line) -> None:
        recovery = self._current(line)
        if recovery.marks.detected is None:
            recovery.marks.detected = line.mono
        recovery.lost_steps += line.integer("lost_steps") or 0
        recovery.marks.verdict = line.mono
        recovery.verdict = "restart"
        recovery.verdict_because = line.because
        recovery.hydrations.clear()

    def _on_orphan_save(self, line: Line) -> None:
        if self._open is not None:
            self._open.lost_steps = max(0, self._open.lost_steps - (line.integer("regained_steps") or 0))

    def _on_restart_with_state(self, line: Line) -> None:
        # Its second half begins when the first has formed: the same recovery, unless there was a step in between.
        recovery = self._current(line)
        if recovery.marks.detected is None:
            recovery.marks.detected = line.mono
        recovery.marks.forget_attempt()
        recovery.marks.verdict = line.mono

    def _on_generation_prepared(self, line: Line) -> None:
        self._generation = line.generation
        if self._open is None:
            return
        self._open.to_generation = line.generation
        self._open.newcomers = line.integers("newcomers")
        self._open.marks.interrupted = None
        how = line.text("replaced_by")
        if how is not None and how not in self._open.replaced_by:
            self._open.replaced_by.append(how)

    def _on_rank_ready(self, line: Line) -> None:
        if self._open is None or self._open.marks.verdict is None:
            return
        if line.integer("rank") not in self._open.newcomers:
            ready = line.mono - (as_seconds(line.fields.get("waited")) or 0.0)
            self._open.marks.interrupted = max(ready, self._open.marks.interrupted or ready)

    def _on_activated(self, line: Line) -> None:
        if self._open is None:
            return
        self._open.marks.activated = line.mono
        if self._open.marks.interrupted is None:  # no survivors, so no rank to interrupt
            self._open.marks.interrupted = self._open.marks.verdict

    def _on_hydrated(self, line: Line) -> None:
        rank, moved = line.integer("rank"), line.integer("bytes")
        if self._open is not None and rank is not None and moved is not None:
            self._open.hydrations.append(_hydration(line, rank, moved))

    def read_elsewhere(self, line: Line) -> None:
        """A line of another node: a rank that was hydrated there belongs to the recovery that made its generation."""
        rank, moved = line.integer("rank"), line.integer("bytes")
        if line.event != "hydrated" or rank is None or moved is None:
            return
        for recovery in self.recoveries:
            if recovery.to_generation == line.generation:
                recovery.hydrations.append(_hydration(line, rank, moved))

    def _on_formed(self, line: Line) -> None:
        if self._open is not None:
            self._open.marks.formed = line.mono

    def _on_first_commit(self, line: Line) -> None:
        # A generation's first step that was in progress when the next fault was detected does not end that recovery.
        if self._open is None or self._open.marks.formed is None:
            return
        committed = as_seconds(line.fields.get("committed_mono"))
        self._open.marks.first_commit = line.mono if committed is None else committed
        self._open = None

    def _current(self, line: Line) -> Recovery:
        if self._open is None:
            self._open = Recovery(started_t=line.t, from_generation=self._generation)
            self.recoveries.append(self._open)
        return self._open

    def _fault(self, line: Line) -> Fault:
        worker, pid, node = line.integer("worker"), line.integer("pid"), line.integer("lost_node")
        signal, exit_code = line.integer("signal"), line.integer("exit_code")
        happened = self._happened(worker, pid, node, line.mono)
        idle_s = as_seconds(line.fields.get("idle_s"))
        if happened is None and idle_s is not None:
            happened = line.mono - idle_s  # unknown when a hang began, but not before the last progress
        confirmed = self._exits.get(pid)
        if (signal is None or signal < 0) and confirmed is not None:
            # A robust mutex shows that a process died; its exit status shows how.
            signal, exit_code = as_integer(confirmed.fields.get("signal")), confirmed.integer("exit_code")
        return Fault(
            mono=line.mono,
            rank=line.integer("rank"),
            worker=worker,
            pid=pid,
            kind=line.text("kind") or "death",
            detected_by=line.text("detected_by") or "?",
            signal=signal,
            exit_code=exit_code,
            step=line.integer("step"),
            because=line.because,
            happened_mono=happened,
            node=node,
            ranks=line.integers("ranks"),
        )

    def _happened(self, worker: int | None, pid: int | None, node: int | None, detected_mono: float) -> float | None:
        """The newest recorded cause in that process or on that node that is not later than the detection."""
        causes = [at for injected, at in self._injected if injected == worker and worker is not None]
        causes += [fault.mono for fault in self._outside if fault.pid == pid and pid is not None]
        causes += [fault.mono for fault in self._outside if fault.node == node and node is not None]
        return max((at for at in causes if at <= detected_mono), default=None)


def _hydration(line: Line, rank: int, moved: int) -> Hydration:
    seconds = as_seconds(line.fields.get("seconds")) or 0.0
    return Hydration(rank, moved, seconds, line.integers("sources"), line.integers("bytes_from"))


def recoveries_of(record: RunRecord) -> tuple[list[Recovery], list[Fault]]:
    """The recoveries of a run, oldest first, and the faults that cost only a spare."""
    reader = _Reader(record)
    for line in record.lines:
        reader.read(line)
    for line in record.elsewhere:
        reader.read_elsewhere(line)
    return reader.recoveries, reader.spares_lost

"""Runs a certification: two undisturbed runs, then one job per fault."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar
from keepstep.certify import evidence
from keepstep.certify.certificate import Certificate
from keepstep.certify.job import Launch, Ran, Running, run_job
from keepstep.certify.judge import LOST, RESTARTS, Outcome, References, analysis_of, how_it_ended, judge
from keepstep.certify.options import LEAST_STEPS, Options, options_of_run
from keepstep.certify.trials import NotTried, Shape, Trial, trials
from keepstep.report.journal import read_objects

DIGESTS_OPTION = "--digests"  # exists if this keepstep compares digests among ranks


class _Session:
    def __init__(self, chosen: Options, command: str, processes: Processes) -> None:
        self._chosen, self._processes = chosen, processes
        self._jobs = chosen.out / "jobs"
        self._digests = DIGESTS_OPTION in options_of_run(command)
        self.launch = Launch(
            command,
            tuple(chosen.run),
            tuple(chosen.script),
            chosen.number("--nnodes", 1),
            chosen.number("--spare-nodes", 0),
            chosen.steps or None,
        )
        self.found = Certificate(" ".join(chosen.script))

    def run(self) -> Certificate:
        with progress_bar() as self._bar:
            self._task = self._bar.add_task("certify", total=2, note="undisturbed")
            self._certify()
        return self.found

    def _job(self, name: str, **how: Any) -> Ran:
        self._bar.update(self._task, note=name)
        ran = run_job(self._processes, self.launch, self._jobs / name, timeout_s=self._chosen.timeout_s, **how)
        self._bar.advance(self._task)
        return ran

    def _certify(self) -> None:
        checked = self._job("undisturbed", extra=["--check"])
        analysis = analysis_of(checked)
        if checked.exit_code != 0:
            said = _checking_said(checked)
            self.found.blocked = said or (
                f"the undisturbed run failed: {how_it_ended(checked, analysis)}; {checked.outputs[0]} has its output"
            )
            return
        again = self._job("undisturbed-again")
        if again.exit_code != 0:
            self.found.blocked = f"the second undisturbed run failed: {how_it_ended(again, analysis_of(again))}"
            return
        references = References(
            evidence.read(checked.folder, checked.outputs), evidence.read(again.folder, again.outputs)
        )
        self._describe(analysis, references)
        if references.first.last_step == 0:
            self._plain(checked, again)
        else:
            self._recoverable(references)

    def _describe(self, analysis: Any, references: References) -> None:
        found = self.found
        found.world, found.nodes = (analysis.world_size if analysis else 0), self.launch.nodes
        found.spares, found.spare_nodes = (analysis.spares if analysis else 0), self.launch.spare_nodes
        found.steps = references.first.last_step
        found.differs, found.replicas = references.differs, references.replicas
        found.devices = sorted(references.first.devices)
        found.witnessed = references.first.witnessed

    def _recoverable(self, references: References) -> None:
        found = self.found
        if found.steps < LEAST_STEPS:
            found.blocked = f"the script makes {found.steps} steps; at least {LEAST_STEPS} are needed"
            return
        shape = Shape(
            found.world, found.nodes, found.spares, found.spare_nodes, found.steps,
            "--no-python" not in self._chosen.values, self._digests,
        )  # fmt: skip
        chosen = self._pick(trials(shape))
        found.not_tried += [each for each in chosen if isinstance(each, NotTried)]
        if "cuda" not in found.devices:
            found.not_tried.append(NotTried("faults of a GPU", "no protected state is on one"))
        to_run = [each for each in chosen if isinstance(each, Trial)]
        self._bar.update(self._task, total=2 + len(to_run))
        for trial in to_run:
            ran = self._job(trial.name, faults=trial.faults, extra=trial.options)
            outcome = judge(trial, ran, references)
            if outcome.verdict == "not tried":
                found.not_tried.append(NotTried(trial.name, outcome.because))
            else:
                found.outcomes.append(outcome)

    def _pick(self, known: list[Trial | NotTried]) -> list[Trial | NotTried]:
        if not self._chosen.only:
            return known
        unknown = set(self._chosen.only) - {each.name for each in known}
        if unknown:
            raise BenchError(f"there is no fault {', '.join(sorted(unknown))}; `keepstep certify --list` has them")
        return [each for each in known if each.name in self._chosen.only]

    def _plain(self, checked: Ran, again: Ran) -> None:
        """Without a recoverable function no steps or phases are known, so signals hit a rank halfway through."""
        self.found.recoverable = False
        usual_s = max(checked.seconds, again.seconds)
        self._bar.update(self._task, total=4)
        faults = ((signal.SIGKILL, "kill", "SIGKILL, half-way"), (signal.SIGSTOP, "stop", "SIGSTOP, half-way"))
        for number, name, says in faults:
            strike = _Strike(number, usual_s / 2)
            ran = self._job(name, look=strike)
            analysis = analysis_of(ran)
            if not strike.done:
                self.found.not_tried.append(NotTried(name, f"the job ended before: it takes {usual_s:.1f} s only"))
                continue
            outcome = Outcome(Trial(name, says, ()), RESTARTS, "", ran.seconds, ran.folder, ran.command)
            if analysis is not None:
                outcome.recoveries = len(analysis.recoveries)
            extra_s = max(0.0, ran.seconds - usual_s)
            outcome.because = f"all ranks started again; {extra_s:.1f} s longer than without"
            if ran.exit_code != 0:
                outcome.verdict, outcome.because = LOST, how_it_ended(ran, analysis)
            elif name == "kill":
                self.found.plain_restart_s = extra_s
            self.found.outcomes.append(outcome)
        self.found.not_tried.append(
            NotTried("all other faults", "a script without a @keepstep.recoverable function has no steps and phases")
        )


class _Strike:
    """Sends a signal to the last rank once the job has run for `after_s`."""

    def __init__(self, number: signal.Signals, after_s: float) -> None:
        self._number, self._after_s = number, after_s
        self.done = False

    def __call__(self, running: Running) -> None:
        if self.done or time.monotonic() - running.began < self._after_s:
            return
        pid = _pid_of_last_rank(running.folder / "run" / "journal.jsonl")
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, self._number)
                self.done = True


def _pid_of_last_rank(journal: Path) -> int | None:
    pids: dict[int, int] = {}
    workers: list[int] = []
    for line in read_objects(journal)[0]:
        if line.get("event") == "spawned":
            pids[line["worker"]] = line["pid"]
        elif line.get("event") == "generation_prepared":
            workers = line["workers"]
    return pids.get(workers[-1]) if workers else None


def _checking_said(ran: Ran) -> str | None:
    """What the checking mode found, from the error that ended the job."""
    for path in ran.outputs:
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                at = line.find("check: ")
                if at >= 0:
                    return line[at:]
    return None


def certify(chosen: Options, command: str, processes: Processes) -> Certificate:
    """Runs everything. Raises BenchError if it cannot; a job that fails is a finding."""
    try:
        return _Session(chosen, command, processes).run()
    except subprocess.CalledProcessError as error:
        raise BenchError(f"`{' '.join(map(str, error.cmd))}` failed with exit code {error.returncode}") from error

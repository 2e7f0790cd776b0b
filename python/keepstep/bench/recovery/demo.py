"""``make demo``: the main job in peace, with two ranks killed, and on two nodes of which one is killed.

Rank 2 dies in the middle of a backward pass and is replaced by the spare; soon after it, before another spare is
parked, rank 0 dies and is replaced from the zygote. Then the same ranks train as two nodes and a spare node, all on
this machine: a rank dies, and later a whole node, whose place the spare node takes. Each act ends with a table and
the comparison with the undisturbed run, bit for bit; exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from keepstep._console import Console, shown
from keepstep.bench.harness.environment import BenchError, gpt_example, job_environment, keepstep_command
from keepstep.bench.harness.keepstep_job import losses
from keepstep.bench.harness.keepstep_nodes import NODES, Launchers
from keepstep.bench.harness.processes import Job, Processes
from keepstep.bench.harness.waiting import progress_bar, wait_for
from keepstep.bench.recovery.sample_ids import check_samples
from keepstep.report.analysis import Analysis, analyse
from keepstep.report.html import write_page
from keepstep.report.journal import RunDirectoryError
from keepstep.report.picture import draw_picture
from keepstep.report.tables import print_report

WORLD_SIZE = 4
GLOBAL_BATCH = 16
TIMEOUT_S = 600.0
PATHS = ["spare", "zygote"]  # that the two kills take
PATHS_ON_NODES = ["zygote", "spare"]  # a spare node's workers are spares
KILLED_NODE = 1  # not node 0, which has the coordinator


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep demo", description=__doc__)
    parser.add_argument("--until", type=int, default=120, metavar="STEP", help="the last step (default 120)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="what is written (default demo)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--inject",
        action="append",
        metavar="FAULT",
        help="instead of the two kills, and without the nodes; as for `keepstep run`, may be given several times",
    )
    return parser


def _faults(until: int) -> list[str]:
    """The second kill comes in the step that follows the first: the next spare is not parked by then."""
    first = max(1, until // 3)
    return [f"kill:rank=2,step={first},phase=backward", f"kill:rank=0,step={first + 1},phase=backward"]


class _Demo:
    def __init__(self, chosen: argparse.Namespace, processes: Processes) -> None:
        self.until: int = chosen.until
        self.seed: int = chosen.seed
        self.out: Path = chosen.out
        self.chose_faults = bool(chosen.inject)
        self.faults: list[str] = chosen.inject or _faults(chosen.until)
        self.faults_on_nodes = [f"kill:rank=1,step={max(1, chosen.until // 3)},phase=backward"]
        self.node_killed_after = 2 * chosen.until // 3  # steps
        self._processes = processes

    def train(self, name: str, faults: list[str]) -> Path:
        """One job. Returns its folder, which holds run/, ids/ and digests.json."""
        folder = self.out / name
        folder.mkdir(parents=True)
        command = [
            *(keepstep_command(), "run", "--nproc-per-node", str(WORLD_SIZE), "--spares", "1"),
            *("--journal", str(folder / "run"), *self._options(faults), *self._script(folder)),
        ]
        self._watch(name, folder, self._processes.start(command, job_environment(), folder / "job.log"))
        return folder

    def train_on_nodes(self, name: str) -> Path:
        """The same on two nodes and a spare one, with a rank and then a node killed."""
        folder = self.out / name
        folder.mkdir(parents=True)
        options = ["--spares", "0", *self._options(self.faults_on_nodes)]
        ranks = WORLD_SIZE // NODES
        nodes = Launchers(self._processes, folder, ranks, 1, options, self._script(folder), job_environment())

        def after(steps: int) -> None:
            nodes.check()
            if steps >= self.node_killed_after and KILLED_NODE in nodes.jobs:
                nodes.kill(KILLED_NODE)

        self._watch(name, folder, nodes.jobs[0], after)
        nodes.stop()
        return folder

    def _options(self, faults: list[str]) -> list[str]:
        return ["--seed", str(self.seed), *(part for fault in faults for part in ("--inject", fault))]

    def _script(self, folder: Path) -> list[str]:
        return [
            *(str(gpt_example() / "train.py"), "--until", str(self.until), "--global-batch", str(GLOBAL_BATCH)),
            *("--seed", str(self.seed), "--out", str(folder / "digests.json"), "--ids", str(folder / "ids")),
        ]

    def _watch(self, name: str, folder: Path, job: Job, after: Callable[[int], None] | None = None) -> None:
        """Until the job has ended well. `after` is called again and again with the number of steps so far."""
        with progress_bar() as bar:
            task = bar.add_task(name, total=self.until, note="steps")

            def look() -> int | None:
                steps = _lines(folder / "run" / "metrics.jsonl")
                bar.update(task, completed=steps)
                if after is not None:
                    after(steps)
                return job.process.poll()

            code = wait_for(f"end of the {name} run", None, TIMEOUT_S, look)
        if code != 0:
            raise BenchError(f"the {name} run ended with exit code {code}; {job.log} ends with:\n{job.last_lines()}")


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "digests.json").read_text())
    return found


class _Checks:
    """What must hold, each with what was found."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, bool]] = []

    def add(self, what: str, found: str, holds: bool) -> None:
        self._rows.append((what, found, holds))

    @property
    def all_hold(self) -> bool:
        return all(holds for _, _, holds in self._rows)

    def table(self) -> Table:
        table = Table(title="Against the undisturbed run of the same seed", title_justify="left")
        table.add_column("what")
        table.add_column("found")
        table.add_column("")
        for what, found, holds in self._rows:
            table.add_row(what, found, shown("yes", "green") if holds else shown("NO", "bold red"))
        return table


def _compare(demo: _Demo, peaceful: Path, disturbed: Path, analysis: Analysis, faults: int) -> _Checks:
    checks = _Checks()
    steps = range(1, demo.until + 1)
    ours, theirs = losses(disturbed / "run"), losses(peaceful / "run")
    equal = sum(step in ours and step in theirs and ours[step].hex() == theirs[step].hex() for step in steps)
    checks.add("losses equal, bit for bit", f"{equal} of {demo.until} steps", equal == demo.until)
    our_digests, their_digests = _digests(disturbed), _digests(peaceful)
    same = sum(our_digests.get(name) == digest for name, digest in their_digests.items())
    whole = bool(their_digests) and same == len(their_digests) == len(our_digests)
    checks.add("final parameters equal, bit for bit", f"{same} of {len(their_digests)} tensors", whole)
    samples = check_samples(disturbed / "ids", peaceful / "ids", demo.until, GLOBAL_BATCH)
    checks.add("no sample repeated", f"{samples.repeated} repeated", samples.repeated == 0)
    checks.add("no sample skipped", f"{samples.skipped} skipped", samples.skipped == 0)
    checks.add("no committed step lost", f"{analysis.totals.lost_steps} lost", analysis.totals.lost_steps == 0)
    died = [fault for recovery in analysis.recoveries for fault in recovery.faults]
    recovered = bool(analysis.recoveries) and all(recovery.complete for recovery in analysis.recoveries)
    recovered = recovered and len(died) == faults
    checks.add("every fault recovered", f"{len(died)} of {faults} faults", recovered)
    return checks


def _paths(analysis: Analysis, meant: list[str]) -> str:
    """Which way each kill was replaced; says so if it is not the way that this demo means to show."""
    taken = [", ".join(recovery.replaced_by) or "nobody" for recovery in analysis.recoveries]
    text = f"replaced by: {', then '.join(taken)}"
    if taken == meant:
        return text
    return (
        f"{text}. Meant to be shown: {', then '.join(meant)}. Nothing is lost either way: which path a recovery takes "
        "depends on whether a spare is parked when the rank dies"
    )


def _run(demo: _Demo, console: Console) -> bool:
    console.print(f"A GPT on {WORLD_SIZE} ranks and a spare, {demo.until} steps: first in peace, then with")
    for fault in demo.faults:
        console.print(f"  {fault}")
    peaceful = demo.train("undisturbed", [])
    disturbed = demo.train("disturbed", demo.faults)
    analysis = analyse(disturbed / "run")
    print_report(analysis, console)
    checks = _compare(demo, peaceful, disturbed, analysis, len(demo.faults))
    console.print(checks.table())
    if not demo.chose_faults:
        console.print(_paths(analysis, PATHS))
    draw_picture(analysis, demo.out / "loss.png")
    write_page(analysis, demo.out / "report.html")
    console.print(f"pictures: {demo.out / 'loss.png'} {demo.out / 'report.html'}")
    if demo.chose_faults:
        return checks.all_hold
    return _run_on_nodes(demo, peaceful, console) and checks.all_hold


def _run_on_nodes(demo: _Demo, peaceful: Path, console: Console) -> bool:
    console.print(
        f"\nThe same on {NODES} nodes of {WORLD_SIZE // NODES} ranks and a spare node, all on this machine, with"
    )
    for fault in demo.faults_on_nodes:
        console.print(f"  {fault}")
    console.print(f"  SIGKILL to node {KILLED_NODE}, its launcher and its ranks, after step {demo.node_killed_after}")
    disturbed = demo.train_on_nodes("nodes")
    analysis = analyse(disturbed / "run")
    print_report(analysis, console)
    checks = _compare(demo, peaceful, disturbed, analysis, len(demo.faults_on_nodes) + 1)
    console.print(checks.table())
    console.print(_paths(analysis, PATHS_ON_NODES))
    page = demo.out / "report_nodes.html"
    write_page(analysis, page)
    console.print(f"page: {page}")
    return checks.all_hold


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.until < 5:
        print("keepstep demo: --until must be at least 5", file=sys.stderr)
        return 2
    for name in ("undisturbed", "disturbed", "nodes"):
        shutil.rmtree(chosen.out / name, ignore_errors=True)
    try:
        with Processes() as processes:
            return 0 if _run(_Demo(chosen, processes), Console()) else 1
    except (BenchError, RunDirectoryError) as error:
        print(f"keepstep demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("keepstep demo: stopped; all its processes are ended", file=sys.stderr)
        return 130

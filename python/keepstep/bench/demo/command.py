"""``make demo``: a job with nothing killed, the same with two ranks killed, and on two nodes of which one is killed.

Rank 2 dies in the middle of a backward pass and is replaced by the spare; soon after it, before another spare is
parked, rank 0 dies and is replaced from the zygote. Then the same ranks train as two nodes and a spare node, all on
this machine: a rank dies, and later a whole node, whose place the spare node takes. A terminal shows all of it live.
Tables and the comparison with the undisturbed run, bit for bit, follow; exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from keepstep._console import Console, shown
from keepstep.bench.demo.acts import Act
from keepstep.bench.demo.checks import Checks, compare
from keepstep.bench.demo.jobs import GLOBAL_BATCH, KILLED_NODE, WORLD_SIZE, Jobs
from keepstep.bench.demo.picture import save_picture
from keepstep.bench.demo.show import open_show
from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.keepstep_nodes import NODES
from keepstep.bench.harness.processes import Processes
from keepstep.report.analysis import Analysis, analyse
from keepstep.report.html import write_page
from keepstep.report.journal import RunDirectoryError
from keepstep.report.picture import draw_picture
from keepstep.report.tables import print_report

PATHS = ["spare", "zygote"]  # the ways in which the two killed ranks are replaced
PATHS_ON_NODES = ["zygote", "spare"]  # a spare node's workers are spares


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep demo", description=__doc__)
    parser.add_argument("--until", type=count, default=60, metavar="STEP", help="the last step (default 60)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="what is written (default demo)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="also draw the last screen of each act")
    parser.add_argument(
        "--inject",
        action="append",
        metavar="FAULT",
        help="instead of the two kills, and without the nodes; as for `keepstep run`, may be given several times",
    )
    return parser


@dataclass(frozen=True)
class _Ended:
    """An act that was compared. `meant`: the ways of replacement that it should show; empty if faults were chosen."""

    act: Act
    analysis: Analysis
    checks: Checks
    meant: list[str]


def _kills(until: int) -> list[str]:
    """The second kill comes one step after the first, before the next spare has parked."""
    first = max(1, until // 3)
    return [f"kill:rank=2,step={first},phase=backward", f"kill:rank=0,step={first + 1},phase=backward"]


def _play(chosen: argparse.Namespace, processes: Processes, console: Console) -> list[_Ended]:
    until: int = chosen.until
    faults = chosen.inject or _kills(until)
    on_nodes = [f"kill:rank=1,step={max(1, until // 3)},phase=backward"]
    undisturbed = Act("undisturbed", "nothing is killed")
    disturbed = Act("disturbed", "as given by --inject" if chosen.inject else "two ranks are killed")
    nodes = Act("nodes", f"{NODES} nodes: a rank is killed, then node {KILLED_NODE}")
    acts = [undisturbed, disturbed] if chosen.inject else [undisturbed, disturbed, nodes]
    title = f"keepstep: a GPT on {WORLD_SIZE} ranks, {until} steps, {len(acts)} times with the same seed"
    ended: list[_Ended] = []
    with open_show(title, acts, console) as show:
        jobs = Jobs(processes, show, chosen.out, until, chosen.seed)

        def end(act: Act, holds: bool, said: str) -> None:
            act.holds, act.result = holds, f"{said} ({act.scene.t if act.scene else 0:.1f} s)"
            show.update(act, changed=True)

        def judge(act: Act, folder: Path, faults: int, meant: list[str]) -> None:
            analysis = analyse(folder / "run")
            checks = compare(reference, folder, until, GLOBAL_BATCH, analysis, faults)
            ended.append(_Ended(act, analysis, checks, meant))
            end(act, checks.all_hold, checks.in_a_line())

        reference = jobs.train(undisturbed, [])
        end(undisturbed, True, "what the others are compared with")
        judge(disturbed, jobs.train(disturbed, faults), len(faults), [] if chosen.inject else PATHS)
        if not chosen.inject:
            folder = jobs.train_on_nodes(nodes, on_nodes, node_killed_after=2 * until // 3)
            judge(nodes, folder, len(on_nodes) + 1, PATHS_ON_NODES)
    return ended


def _paths(analysis: Analysis, meant: list[str]) -> str:
    """How each killed rank was replaced; mentions it if that is not what the demo should show."""
    taken = [", ".join(recovery.replaced_by) or "nobody" for recovery in analysis.recoveries]
    text = f"replaced by: {', then '.join(taken)}"
    if not meant or taken == meant:
        return text
    return (
        f"{text}. Meant to be shown: {', then '.join(meant)}. Nothing is lost either way: which path a recovery takes "
        "depends on whether a spare is parked when the rank dies"
    )


def _tell(ended: _Ended, console: Console) -> None:
    console.print()
    console.print(shown(ended.act.title, "bold"))
    print_report(ended.analysis, console)
    console.print(ended.checks.table())
    console.print(_paths(ended.analysis, ended.meant))


def _run(chosen: argparse.Namespace, processes: Processes) -> bool:
    console = Console()
    try:
        acts = _play(chosen, processes, console)
    except KeyboardInterrupt:
        print("keepstep demo: stopping the job", file=sys.stderr)
        raise
    written = [chosen.out / "loss.png"]
    draw_picture(acts[0].analysis, written[0])
    for ended in acts:
        _tell(ended, console)
        page = chosen.out / f"report_{ended.act.name}.html"
        write_page(ended.analysis, page)
        written.append(page)
    if chosen.picture is not None:
        save_picture([ended.act for ended in acts], chosen.picture)
        written.append(chosen.picture)
    console.print(f"pictures: {' '.join(map(str, written))}", soft_wrap=True)
    return all(ended.checks.all_hold for ended in acts)


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    if chosen.until < 5:
        print("keepstep demo: --until must be at least 5", file=sys.stderr)
        return 2
    for name in ("undisturbed", "disturbed", "nodes"):
        shutil.rmtree(chosen.out / name, ignore_errors=True)
    try:
        with Processes() as processes:
            return 0 if _run(chosen, processes) else 1
    except (BenchError, RunDirectoryError) as error:
        print(f"keepstep demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("keepstep demo: stopped; all its processes are ended", file=sys.stderr)
        return 130

"""``keepstep bench rehearsal``: what it saves when spares rehearse their first step.

The same job with and without rehearsals, in turns: a rank is killed each time the job is whole again and a spare has
parked. What counts is the recovery's last phase, from the state's arrival to the first committed step, beside an
ordinary step. The last line is one JSON object; times in it are seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import BenchError, keepstep_command, machine
from keepstep.bench.harness.keepstep_job import KeepstepJob
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar, wait_for
from keepstep.bench.harness.workload import LAYERS, Workload
from keepstep.report.analysis import analyse

READY_TIMEOUT_S = 900.0  # a loaded machine compiles slowly
RANKS = 2
KILLS_OF_A_JOB = 5
MODELS = ("plain", "compiled")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench rehearsal", description=__doc__)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both", help="with torch.compile, or without")
    parser.add_argument("--kills", type=int, default=10, help="of each kind (default 10)")
    parser.add_argument("--layers", type=count, default=LAYERS, help=f"of the model (default {LAYERS})")
    parser.add_argument("--json", action="store_true", help="print the result only")
    parser.add_argument("--out", type=Path, default=Path("bench-rehearsal"), metavar="DIR", help="logs, runs")
    return parser


def _recoveries(processes: Processes, folder: Path, options: list[str], kills: int) -> list[dict[str, Any]]:
    """One job that is killed `kills` times."""
    job = KeepstepJob(processes, Workload(world_size=RANKS, global_batch=4), folder, 1_000_000, options=options)
    for number in range(kills):
        wait_for("job with a parked spare", job.job, READY_TIMEOUT_S, job.ready)
        kill = job.kill(number % RANKS)
        wait_for("recovery", job.job, READY_TIMEOUT_S, partial(job.new_step, kill.mono))
    wait_for("job with a parked spare", job.job, READY_TIMEOUT_S, job.ready)
    job.stop()
    analysis = analyse(job.run)
    return [
        {
            "first_step_s": recovery.phases_s()["first_step"],
            "downtime_s": recovery.downtime_s,
            "step_s": analysis.median_step_s,
            "replaced_by": recovery.replaced_by,
        }
        for recovery in analysis.recoveries
    ]


def _summary(recoveries: list[dict[str, Any]]) -> dict[str, Any]:
    first = [recovery["first_step_s"] for recovery in recoveries if recovery["first_step_s"] is not None]
    if not first:
        raise BenchError("no recovery came to its first step")
    return {
        "kills": len(recoveries),
        "by_spare": sum(recovery["replaced_by"] == ["spare"] for recovery in recoveries),
        "first_step_s": statistics.median(first),
        "best_s": min(first),
        "worst_s": max(first),
        "downtime_s": statistics.median(recovery["downtime_s"] or 0.0 for recovery in recoveries),
        "step_s": statistics.median(recovery["step_s"] or 0.0 for recovery in recoveries),
    }


def measure(processes: Processes, out: Path, model: str, kills: int, layers: int) -> dict[str, Any]:
    """Jobs with and without rehearsals in the order A B B A, so other load on the machine affects both."""
    found: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    rest = {name: kills for name in found}
    turns = ["with", "without", "without", "with"]
    with progress_bar() as bar:
        task = bar.add_task(model, total=2 * kills, note="")
        while any(rest.values()):
            for turn, name in enumerate(turns):
                now = min(rest[name], KILLS_OF_A_JOB)
                if now == 0:
                    continue
                rest[name] -= now
                options = ["--rehearse", "yes" if name == "with" else "no", "--layers", str(layers)]
                options += ["--compile"] if model == "compiled" else []
                found[name] += _recoveries(processes, out / f"{model}-{name}-{rest[name]}-{turn}", options, now)
                bar.update(task, completed=sum(len(done) for done in found.values()))
    result: dict[str, Any] = {name: _summary(recoveries) for name, recoveries in found.items()}
    result["saved_s"] = result["without"]["first_step_s"] - result["with"]["first_step_s"]
    result["saved_steps"] = result["saved_s"] / result["with"]["step_s"]
    return result


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    load_before = os.getloadavg()[0]
    keepstep_command()
    with Processes() as processes:
        models = MODELS if chosen.model == "both" else (chosen.model,)
        result: dict[str, Any] = {
            name: measure(processes, chosen.out, name, chosen.kills, chosen.layers) for name in models
        }
    if not chosen.json:
        for name in models:
            for how in ("with", "without"):
                row = result[name][how]
                print(
                    f"{name}, {how} rehearsal: first step {row['first_step_s'] * 1e3:.0f} ms, an ordinary one "
                    f"{row['step_s'] * 1e3:.0f} ms, {row['kills']} kills"
                )
    result["environment"] = machine() | {
        "world_size": RANKS,
        "layers": chosen.layers,
        "load_before": load_before,
    }
    print(json.dumps(result))
    return 0

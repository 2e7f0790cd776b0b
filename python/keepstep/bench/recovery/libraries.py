"""``keepstep bench libraries``: the same script of Hugging Face's Trainer, Accelerate and Lightning under torchrun and
under keepstep.

Overhead: undisturbed jobs, one after the other in pairs; the median step of each, and the median ratio of the pairs.
Recovery: as in ``keepstep bench recovery``, SIGKILLs of one rank, and how long until the first new step. Under torchrun
the script saves every ten steps by its library's own means, and resumes. All train a Llama of 2.6 million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count, some_of
from keepstep.bench.harness.environment import BenchError, keepstep_command, machine
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery.keepstep_recovery import disturb, undisturbed
from keepstep.bench.recovery.library_jobs import WHOLE, ours, theirs, torchrun_step_s
from keepstep.bench.recovery.samples import median_phases, summary, write_samples
from keepstep.bench.recovery.torchrun_job import measure_torchrun


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench libraries", description=__doc__)
    parser.add_argument("--libraries", type=some_of(WHOLE), default=list(WHOLE), help="with commas (default: all)")
    parser.add_argument("--ranks", type=count, default=2, help="of each job (default %(default)s)")
    parser.add_argument("--pairs", type=count, default=3, help="undisturbed runs of each side (default %(default)s)")
    parser.add_argument("--steps", type=count, default=60, help="of each of these (default %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="of our job (default %(default)s; 0: no recovery)")
    parser.add_argument("--repetitions", type=count, default=3, help="kills under torchrun (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--out", type=Path, default=Path("bench-libraries"), metavar="DIR", help="logs, runs")
    return parser


class _Bench:
    def __init__(self, chosen: argparse.Namespace, processes: Processes) -> None:
        self.chosen = chosen
        self.processes = processes
        self.out: Path = chosen.out
        self.workload = Workload(world_size=chosen.ranks)

    def overhead(self, library: str) -> dict[str, Any]:
        """Steps in turns: first one side of a pair, then the other, so that a change of the machine meets both."""
        torchrun, keepstep = [], []
        with progress_bar() as bar:
            task = bar.add_task(f"{library} overhead", total=self.chosen.pairs, note="")
            for pair in range(self.chosen.pairs):
                for side in ("torchrun", "keepstep") if pair % 2 else ("keepstep", "torchrun"):
                    folder = self.out / library / f"{side}-{pair}"
                    bar.update(task, completed=pair, note=side)
                    if side == "torchrun":
                        torchrun.append(
                            torchrun_step_s(
                                self.processes, library, folder, self.workload.world_size, self.chosen.steps
                            )
                        )
                    else:
                        _, step_s = undisturbed(self.processes, self.workload, folder, self.chosen.steps, ours(library))
                        keepstep.append(step_s)
            bar.update(task, completed=self.chosen.pairs, note="done")
        ratios = [mine / other for mine, other in zip(keepstep, torchrun, strict=True)]
        return {
            "step_s": statistics.median(keepstep),
            "torchrun_step_s": statistics.median(torchrun),
            "overhead": statistics.median(ratios) - 1,
            "overheads": [round(ratio - 1, 4) for ratio in ratios],
        }

    def recovery(self, library: str, step_s: float) -> dict[str, Any]:
        with progress_bar() as bar:
            task = bar.add_task(f"{library} recovery", total=self.chosen.kills, note="")
            disturbed = disturb(
                self.processes, self.workload, self.out / library / "killed", self.chosen.kills, step_s,
                lambda done, note: bar.update(task, completed=done, note=note), ours(library),
            )  # fmt: skip
            task = bar.add_task(f"{library} under torchrun", total=self.chosen.repetitions, note="")
            samples, _ = measure_torchrun(
                self.processes, self.workload, self.out / library / "torchrun-killed", self.chosen.repetitions,
                lambda done, note: bar.update(task, completed=done, note=note), theirs(library),
            )  # fmt: skip
        write_samples(self.out / "samples.jsonl", [*disturbed.samples, *samples])
        mine, other = summary(disturbed.samples), summary(samples)
        return {
            "keepstep": mine | {"phases": median_phases(disturbed.samples)},
            "torchrun": other,
            "ratio": other["downtime_s"] / mine["downtime_s"] if mine["downtime_s"] > 0 else None,
        }


def _printed(library: str, found: dict[str, Any]) -> str:
    line = (
        f"{library}: a step takes {found['step_s']:.3f} s, {found['torchrun_step_s']:.3f} s under torchrun "
        f"({100 * found['overhead']:+.1f}%)"
    )
    if "ratio" in found:
        line += (
            f"; a recovery {found['keepstep']['downtime_s']:.2f} s, {found['torchrun']['downtime_s']:.1f} s under "
            f"torchrun; steps lost {found['keepstep']['lost_steps']} and {found['torchrun']['lost_steps']}"
        )
    return line


def main(arguments: list[str]) -> int:
    chosen = _parser().parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "samples.jsonl").unlink(missing_ok=True)
    keepstep_command()
    needed = {*chosen.libraries, "transformers"}
    if missing := [name for name in sorted(needed) if find_spec(name) is None]:
        raise BenchError(f"{', '.join(missing)} cannot be imported; install it, or choose others by --libraries")
    load_before = os.getloadavg()[0]
    result: dict[str, Any] = {"libraries": {}}
    with Processes() as processes:
        bench = _Bench(chosen, processes)
        for library in chosen.libraries:
            found = bench.overhead(library)
            if chosen.kills:
                found |= bench.recovery(library, found["step_s"])
            result["libraries"][library] = found
            if not chosen.json:
                print(_printed(library, found), flush=True)
    result["environment"] = machine() | {"ranks": chosen.ranks, "load_before": load_before}
    (chosen.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0

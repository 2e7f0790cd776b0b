"""``keepstep bench recovery``: how long a SIGKILL interrupts a job.

Downtime is the same for every tool: from the kill to the first new committed step on all ranks of the full world, less
one median undisturbed step of that tool. Same model, same batch, same machine, one tool after another. The last line
is one JSON object; times in it are seconds.

With --fault node the same ranks run as two nodes of two ranks and a spare node, a launcher each, on this machine over
loopback; a launcher and all its processes are killed, and the next one is started as a spare node. Node 0, which has
the coordinator, is never killed: in this version its end is the job's end.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from keepstep._console import Console
from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import keepstep_command, machine, model_parameters
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import progress_bar
from keepstep.bench.harness.workload import Workload
from keepstep.bench.recovery import samples as samples_module
from keepstep.bench.recovery.keepstep_recovery import FAULTS, bitwise_equal, calibrate, disturb, undisturbed
from keepstep.bench.recovery.torchft_job import TORCHFT, measure_torchft
from keepstep.bench.recovery.torchrun_job import measure_torchrun
from keepstep.bench.recovery.torchrun_nodes import TorchrunNodes
from keepstep.bench.recovery.words import print_result

OPPONENTS = ("torchrun", "torchft")
SWEEP_MIB = (0, 64, 256, 1024)
SWEEP_KILLS = 5


def _opponents(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in OPPONENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: only {', '.join(OPPONENTS)} can be compared with")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keepstep bench recovery", description=__doc__)
    parser.add_argument(
        "--against", type=_opponents, default=[], metavar="TOOLS", help="torchrun, torchft, or both with a comma"
    )
    parser.add_argument("--fault", choices=list(FAULTS), default="rank", help="what dies at once (default rank)")
    parser.add_argument("--kills", type=count, default=30, help="kills of our job (default 30)")
    parser.add_argument("--repetitions", type=count, default=3, help="kills of each opponent's job (default 3)")
    parser.add_argument("--sweep-state", action="store_true", help="also grow the bytes to hydrate, 0 to 1024 MiB")
    parser.add_argument("--opponents-only", action="store_true", help="measure only the tools named by --against")
    parser.add_argument("--json", action="store_true", help="print the result only, no table")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-recovery"), metavar="DIR", help="raw samples, logs, runs"
    )
    parser.add_argument("--seed", type=int, default=0, help="of kills and weights")
    return parser


class _Bench:
    def __init__(self, chosen: argparse.Namespace, processes: Processes) -> None:
        self.chosen = chosen
        self.processes = processes
        self.out: Path = chosen.out
        self.kind = FAULTS[chosen.fault]
        self.workload = Workload(seed=chosen.seed)
        self.load_before = os.getloadavg()[0]
        self.result: dict[str, Any] = {}

    def _keep(self, measured: list[samples_module.Sample]) -> None:
        samples_module.write_samples(self.out / "samples.jsonl", measured)

    def keepstep(self) -> None:
        self.workload, step_s = calibrate(self.processes, self.workload, self.out, self.kind)
        with progress_bar() as bar:
            task = bar.add_task("keepstep", total=self.chosen.kills, note="")
            disturbed = disturb(
                self.processes,
                self.workload,
                self.out / "keepstep",
                self.chosen.kills,
                step_s,
                lambda done, note: bar.update(task, completed=done, note=note),
                self.kind,
            )
            bar.update(task, note="trains undisturbed, to compare")
            peaceful, peaceful_step_s = undisturbed(
                self.processes, self.workload, self.out / "undisturbed", disturbed.last_step, self.kind
            )
        # The long undisturbed run gives a better median step than the calibration.
        for sample in disturbed.samples:
            sample.downtime_s = sample.until_new_step_s - peaceful_step_s
            if sample.survivors_s is not None:
                sample.survivors_s += step_s - peaceful_step_s
        self._keep(disturbed.samples)
        self.result["keepstep"] = samples_module.summary(disturbed.samples) | {
            "bitwise_equal": bitwise_equal(disturbed.run, peaceful, disturbed.last_step),
            "compared_steps": disturbed.last_step,
            "phases": samples_module.median_phases(disturbed.samples),
            "step_s": peaceful_step_s,
        }

    def sweep(self) -> None:
        rows = []
        with progress_bar() as bar:
            for mebibytes in SWEEP_MIB:
                task = bar.add_task(f"+{mebibytes} MiB", total=SWEEP_KILLS, note="")
                disturbed = disturb(
                    self.processes,
                    self.workload,
                    self.out / f"sweep-{mebibytes}",
                    SWEEP_KILLS,
                    float(self.result["keepstep"]["step_s"]),
                    lambda done, note, task=task: bar.update(task, completed=done, note=note),  # type: ignore[misc]
                    self.kind,
                    ballast_mib=mebibytes,
                )
                self._keep(disturbed.samples)
                rows.append(
                    {"ballast_mib": mebibytes, "bytes_moved": disturbed.samples[0].extra["bytes_moved"]}
                    | samples_module.summary(disturbed.samples)
                    | {"phases": samples_module.median_phases(disturbed.samples)}
                )
        self.result["sweep_state"] = rows

    def opponent(self, name: str) -> None:
        on_nodes = partial(measure_torchrun, started=TorchrunNodes)
        torchrun = on_nodes if self.chosen.fault == "node" else measure_torchrun
        measure = {"torchrun": torchrun, "torchft": measure_torchft}[name]
        with progress_bar() as bar:
            task = bar.add_task(name, total=self.chosen.repetitions, note="")
            measured, step_s = measure(
                self.processes,
                self.workload,
                self.out / name,
                self.chosen.repetitions,
                lambda done, note: bar.update(task, completed=done, note=note),
            )
        self._keep(measured)
        self.result[name] = samples_module.summary(measured) | {"step_s": step_s}
        survivors = sorted(s.survivors_s for s in measured if s.survivors_s is not None)
        if survivors:
            self.result[name]["survivors_s"] = survivors[len(survivors) // 2]

    def finish(self) -> dict[str, Any]:
        ours = self.result.get("keepstep")
        for name, field in (("torchrun", "ratio"), ("torchft", "ratio_torchft")):
            if ours is not None and name in self.result and ours["downtime_s"] > 0:
                self.result[field] = self.result[name]["downtime_s"] / ours["downtime_s"]
        self.result["environment"] = machine() | {
            "world_size": self.workload.world_size,
            "parameters": model_parameters(),
            "global_batch": self.workload.global_batch,
            "seed": self.workload.seed,
            "fault": self.chosen.fault,
            "load_before": self.load_before,
        }
        return self.result


def main(arguments: list[str]) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.fault == "node" and "torchft" in chosen.against:
        parser.error("torchft is measured with --fault rank only; leave it out of --against")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "samples.jsonl").unlink(missing_ok=True)
    # Report what is missing before the first minute is spent.
    if not chosen.opponents_only:
        keepstep_command()
    if "torchft" in chosen.against:
        TORCHFT.python()
    with Processes() as processes:
        bench = _Bench(chosen, processes)
        if not chosen.opponents_only:
            bench.keepstep()
            if chosen.sweep_state:
                bench.sweep()
        for name in chosen.against:
            bench.opponent(name)
        result = bench.finish()
    (chosen.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if not chosen.json:
        print_result(result, Console())
    print(json.dumps(result))
    return 0

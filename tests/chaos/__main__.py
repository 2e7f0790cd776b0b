"""Faults at random, round after round, each compared bit by bit with an undisturbed run: ``make chaos SECONDS=600``."""

import argparse
import contextlib
import math
import os
import random
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from elastic_rounds import Broken, ElasticChaos
from leaks import Samples, shared_memory
from models import ROOT, models
from plan import Shape, draw

from keepstep.bench.harness.environment import keepstep_command
from keepstep.bench.harness.processes import Processes, descendants
from keepstep.certify import evidence
from keepstep.certify.job import Launch, Running
from keepstep.certify.judge import analysis_of, how_it_ended, injected

ROUND_LIMIT_S = 900.0
END_S = 20.0  # for processes to end after their job


class Failed(Exception):
    """A round did not end as it must."""


def launch_of(model, shape, folder, steps):
    options = ["--nproc-per-node", str(shape.ranks), "--spares", str(shape.spares), "--max-restarts", "100000"]
    options += ["--digest-every", "1"]  # a flipped parameter is found before any update used it
    if shape.nodes > 1:
        options += ["--nnodes", str(shape.nodes), "--spare-nodes", str(shape.spare_nodes)]
    if not model.python:
        options += ["--no-python"]
    return Launch(
        keepstep_command(), tuple(options), tuple(model.script(folder, steps)), shape.nodes, shape.spare_nodes,
        environment=(("OMP_NUM_THREADS", "1"),),
    )  # fmt: skip


def watched(samples):
    def look(running):
        samples.look(running.main.process.pid)
        for node, job in list(running.jobs.items()):
            if node != 0 and job.process.poll() == -signal.SIGKILL and running.main.running():
                running.start(node)  # as somebody would: the next spare node

    return look


def finals(folder):
    return {path.name: path.read_bytes() for path in folder.glob("final.*")}


def run(processes, model, shape, folder, steps, faults=()):
    """A finished job, what it left, and what its launcher held."""
    samples = Samples()
    launch = launch_of(model, shape, folder, steps)
    ran = Running(processes, launch, folder, faults, []).finish(ROUND_LIMIT_S, watched(samples))
    if ran.exit_code != 0:
        raise Failed(f"{how_it_ended(ran, analysis_of(ran))}\n{ran.outputs[0].read_text(errors='replace')[-3000:]}")
    return ran, evidence.read(folder, []), samples


def compare(mine, reference, folder, reference_folder):
    """Raises Failed where a bit, a step or a sample is not that of the undisturbed run."""
    if difference := evidence.first_difference(mine, reference):
        raise Failed(f"differs from the undisturbed run first at {difference}")
    if gap := evidence.missing(mine, reference):
        raise Failed(gap)
    if finals(folder) != finals(reference_folder):
        raise Failed("the parameters at the end differ from those of the undisturbed run")


def nothing_left(shared_before):
    deadline = time.monotonic() + END_S
    while left := descendants(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            raise Failed(f"processes {left} outlive their job")
        time.sleep(0.05)
    if more := shared_memory() - shared_before:
        raise Failed(f"shared memory is left: {', '.join(sorted(more))}")


class Chaos:
    def __init__(self, chosen, processes):
        self.chosen, self.processes = chosen, processes
        self.models = [model for model in models(chosen.build) if not chosen.model or model.name == chosen.model]
        self.references = {}
        self.totals = {"rounds": 0, "faults": 0, "recoveries": 0, "restarts": 0}
        self.growths = []

    def reference(self, model, world):
        """The undisturbed run of this model on so many ranks of one node; made once."""
        key = (model.name, world)
        if key not in self.references:
            folder = self.chosen.out / f"undisturbed-{model.name}-{world}"
            _, found, _ = run(self.processes, model, Shape(1, world, 0, 0), folder, self.chosen.steps)
            self.references[key] = (found, folder)
        return self.references[key]

    def round(self, number):
        plan = draw(self.chosen.seed, number, self.models, self.chosen.steps)
        folder = self.chosen.out / f"round-{number}"
        print(f"round {number}: {plan.model.name}, {plan.shape.text()}, {len(plan.faults)} faults", flush=True)
        try:
            reference, reference_folder = self.reference(plan.model, plan.shape.world)
            shared_before = shared_memory()
            ran, mine, samples = run(
                self.processes, plan.model, plan.shape, folder, self.chosen.steps, plan.faults
            )  # fmt: skip
            compare(mine, reference, folder, reference_folder)
            nothing_left(shared_before)
            if leak := samples.leak():
                raise Failed(leak)
        except Failed as failed:
            raise Failed(f"round {number}: {failed}\nfaults: {' '.join(plan.faults)}\nfolder: {folder}") from None
        self.tell(ran, samples)
        shutil.rmtree(folder)

    def tell(self, ran, samples):
        analysis = analysis_of(ran)
        restarts = sum("restart" in recovery.rungs for recovery in analysis.recoveries)
        happened = len(injected(ran))
        growth = samples.growth()
        held = "too short to judge leaks"
        if growth is not None:
            self.growths.append(growth[0])
            held = f"launcher {samples.taken[-1][0] / 2**20:.1f} MiB ({growth[0] / 1024:+.0f} KiB), fds {growth[1]:+d}"
        print(
            f"  {happened} carried out, {len(analysis.recoveries)} recoveries, {restarts} restarts of all, "
            f"{ran.seconds:.0f} s; bits equal; {held}",
            flush=True,
        )
        self.totals["rounds"] += 1
        self.totals["faults"] += happened
        self.totals["recoveries"] += len(analysis.recoveries)
        self.totals["restarts"] += restarts


def parse():
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no round after this time (default 3600)")
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--round", type=int, help="this one only")
    parser.add_argument("--steps", type=int, default=400, help="of each job (default 400)")
    parser.add_argument("--model", choices=[model.name for model in models(Path())], help="this one only")
    parser.add_argument("--elastic", action="store_true", help="one elastic job a round instead, of changing size")
    parser.add_argument("--round-seconds", type=float, default=60, help="of a round with --elastic (default 60)")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos")
    chosen = parser.parse_args()
    chosen.seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    chosen.out = chosen.out / secrets.token_hex(4)
    return chosen


def run_elastic(chosen):
    print(f"seed {chosen.seed}, elastic jobs, files in {chosen.out}", flush=True)
    began = time.monotonic()
    number = chosen.round or 0
    shared_before = shared_memory()
    with Processes():
        chaos = ElasticChaos(chosen.out, chosen.seed, chosen.round_seconds, lambda: nothing_left(shared_before))
        try:
            while True:
                chaos.round(number, began + chosen.seconds if chosen.round is None else math.inf)
                number += 1
                if chosen.round is not None or time.monotonic() - began > chosen.seconds:
                    break
        except (Broken, Failed) as failed:
            print(
                f"FAILED. {failed}\nrepeat: python tests/chaos --elastic --seed {chosen.seed} --round {number} "
                f"--round-seconds {chosen.round_seconds:g}"
            )
            return 1
        except KeyboardInterrupt:
            print("stopped; all its processes are ended")
            return 130
    shutil.rmtree(chosen.out)
    print(", ".join(f"{count} {what}" for what, count in chaos.totals.items()), f"in {time.monotonic() - began:.0f} s")
    return 0


def main():
    chosen = parse()
    if chosen.elastic:
        return run_elastic(chosen)
    print(f"seed {chosen.seed}, jobs of {chosen.steps} steps, files in {chosen.out}", flush=True)
    began = time.monotonic()
    number = chosen.round or 0
    with Processes() as processes:
        chaos = Chaos(chosen, processes)
        try:
            while True:
                chaos.round(number)
                number += 1
                if chosen.round is not None or time.monotonic() - began > chosen.seconds:
                    break
        except Failed as failed:
            only = f" MODEL={chosen.model}" if chosen.model else ""
            print(f"FAILED. {failed}\nrepeat: make chaos SEED={chosen.seed} ROUND={number} STEPS={chosen.steps}{only}")
            return 1
        except KeyboardInterrupt:
            print("stopped; all its processes are ended")
            return 130
    shutil.rmtree(chosen.out)
    print(", ".join(f"{count} {what}" for what, count in chaos.totals.items()), f"in {time.monotonic() - began:.0f} s")
    if chaos.growths:
        print(f"launchers' memory, last third over second: at most {max(chaos.growths) / 1024:+.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Jobs of strangers' scripts, undisturbed or with ranks killed from outside, and what they left."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from harness import LIMIT_S, finish, json_lines, start

SCRIPTS = Path(__file__).resolve().parent / "scripts"
WORLD = 2
LOOK_S = 0.005  # between two looks at what a job wrote
TIMES = ("t", "mono", "committed_mono")


@dataclass
class Left:
    """What a finished job left: its losses by step (and all else that it logged), and its final weights' digests."""

    job: object
    logged: list
    finals: dict
    seconds: float  # from the first step to the last

    def explain(self):
        """What the job said, and what was decided in it."""
        told = ("fault_detected", "rung", "verdict", "activated", "first_commit", "restart", "finished", "job_ended")
        lines = [json.dumps({key: line[key] for key in line if key not in ("mono", "wall", "term", "node")})
                 for line in self.job.journal if line["event"] in told]  # fmt: skip
        return (
            f"\n$ {' '.join(self.job.command)}\nexit code {self.job.exit_code}\n{self.job.output[-4000:]}\n"
            + "\n".join(lines)
        )

    def differs_from(self, other, without=()):
        """None, or where this one first differs; what was logged under the names `without` does not count, nor how long
        ranks waited for their data."""
        mine, theirs = (
            [
                {key: line[key] for key in line if not key.startswith(("data_waits", *without))}
                if isinstance(line, dict)
                else line
                for line in left
            ]
            for left in (self.logged, other.logged)
        )
        for here, there in zip(mine, theirs, strict=False):
            if here != there:
                return f"{here} instead of {there}"
        if len(mine) != len(theirs):
            return f"{len(mine)} steps instead of {len(theirs)}"
        if self.finals != other.finals:
            return f"the final weights {self.finals} instead of {other.finals}"
        return None


class Watched:
    """A running job, seen from outside: by its journal and by what it wrote."""

    def __init__(self, folder, script, *arguments, world=WORLD, spares=0, options=()):
        self.folder = folder
        self.process, self.command = start(
            folder, SCRIPTS / script, "--out", folder, *arguments, world=world, spares=spares, options=options
        )  # fmt: skip

    def events(self, *names):
        return [line for line in json_lines(self.folder / "journal" / "journal.jsonl") if line["event"] in names]

    def steps(self):
        """How many steps were done, by the losses published, or the lines of a script that knows no keepstep."""
        return len(json_lines(self.folder / "journal" / "metrics.jsonl")) + len(
            json_lines(self.folder / "progress.jsonl")
        )

    def generation(self):
        return max((line["generation"] for line in self.events("generation_prepared")), default=0)

    def running(self):
        return self.process.poll() is None

    def wait_until(self, condition):
        """False if the job ended first. finish() says how long a job may take; this wait has the same limit."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if not self.running():
                return False
            assert time.monotonic() < deadline, f"it stands still{self.finish().explain()}"
            time.sleep(LOOK_S)
        return True

    def pid_of(self, rank):
        pids = {line["worker"]: line["pid"] for line in self.events("spawned", "parked")}
        return pids[self.events("generation_prepared")[-1]["workers"][rank]]

    def kill(self, rank):
        """SIGKILL to the process that holds `rank`; whether there was one to kill."""
        if self.events("finished") or not self.running():
            return False
        try:
            os.kill(self.pid_of(rank), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def finish(self):
        job = finish(self.folder, self.process, self.command)
        logged = [{key: line[key] for key in line if key not in TIMES} for line in job.metrics]
        path = self.folder / "losses.json"
        if path.exists():
            logged += json.loads(path.read_text())
        finals = {path.name: json.loads(path.read_text()) for path in sorted(self.folder.glob("final.?"))}
        times = [line["mono"] for line in job.metrics] or [line["mono"] for line in job.notes if "mono" in line]
        return Left(job, logged, finals, times[-1] - times[0] if times else 0.0)


def undisturbed(folder, script, *arguments):
    return Watched(folder, script, *arguments).finish()


def killed(folder, script, *arguments, random, kills, seconds, options=()):
    """A job with so many ranks killed, each after a time that `random` draws; what it left, and the kills carried out.

    The next kill waits until the job recovered from the one before: with two ranks it might else take the only state.
    """
    watched = Watched(folder, script, *arguments, spares=random.randrange(2), options=options)
    plan = [(random.uniform(0, seconds / kills), random.randrange(WORLD)) for _ in range(kills)]
    done = []
    if watched.wait_until(lambda: watched.steps() > 0):
        for wait_s, rank in plan:
            time.sleep(wait_s)  # the instant is what is drawn
            generation, steps = watched.generation(), watched.steps()
            if not watched.kill(rank):
                break
            done.append(f"rank {rank} after step {steps}")
            if not watched.wait_until(lambda: watched.generation() > generation):
                break
            steps = watched.steps()
            if not watched.wait_until(lambda: watched.steps() > steps):
                break
    return watched.finish(), done

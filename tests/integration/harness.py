"""Starts real jobs under the real `keepstep run` and reads what they left behind."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable)  # each environment (newest torch, oldest torch) tests itself
KEEPSTEP = PYTHON.parent / "keepstep"
JOBS = ROOT / "tests" / "jobs"
PHASES = ["forward", "backward", "allreduce", "before_vote", "after_vote", "update", "between"]  # of a step
LIMIT_S = 180  # a job that takes longer hangs


def json_lines(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def open_files(pid):
    """What each descriptor of a process is open on, by the path under /proc that opens it again."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found[path] = os.readlink(path)
    return found


@dataclass
class Job:
    """A finished job."""

    folder: Path
    command: list
    exit_code: int
    output: str
    journal: list = field(default_factory=list)
    metrics: list = field(default_factory=list)
    notes: list = field(default_factory=list)  # of all worker processes

    def events(self, name):
        return [line for line in self.journal if line["event"] == name]

    def finals(self):
        return {note["rank"]: note for note in self.notes if "final" in note}

    def pids(self, rank):
        """The processes that held `rank`, in the order of generations."""
        entries = sorted(
            (n for n in self.notes if n.get("rank") == rank and "entry" in n), key=lambda n: n["generation"]
        )
        return [n["pid"] for n in entries]

    def explain(self):
        return (
            f"\n$ {' '.join(map(str, self.command))}\nexit code {self.exit_code}\n{self.output[-6000:]}\n"
            + "\n".join(json.dumps(line) for line in self.journal[-40:])
        )


def environment():
    values = dict(os.environ)
    values["KEEPSTEP_PYTHON"] = str(PYTHON)
    # A rank that is alone on its node would get all CPUs to itself, and here other ranks and other tests want them too.
    values.setdefault("OMP_NUM_THREADS", "1")
    return values


def start(folder, script, *script_args, world=2, spares=0, options=()):
    """A job that runs; its output goes to FOLDER/output.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        KEEPSTEP, "run", "--nproc-per-node", world, "--spares", spares, "--journal", folder / "journal", *options,
        script, *script_args,
    ]  # fmt: skip
    command = [str(part) for part in command]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    return process, command


def finish(folder, process, command, limit_s=LIMIT_S):
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        subprocess.run(
            ["bash", "-c", f"pgrep -P {process.pid} | xargs -r ps -o pid,stat,wchan:20,args -p"], check=False
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(read(folder, process, command).explain(), file=sys.stderr)
        raise
    return read(folder, process, command)


def read(folder, process, command):
    notes = []
    for path in sorted(folder.glob("*.jsonl")):
        notes += json_lines(path)
    return Job(
        folder, command, process.returncode, (folder / "output.txt").read_text(errors="replace"),
        json_lines(folder / "journal" / "journal.jsonl"), json_lines(folder / "journal" / "metrics.jsonl"), notes,
    )  # fmt: skip


def run_small(folder, *, world=2, spares=0, inject=(), model="plain", until=12, extra=(), options=()):
    """tests/jobs/small.py to its end."""
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "small.py", "--out", folder, "--until", until, "--model", model, *extra,
        world=world, spares=spares, options=[*injected, *options],
    )  # fmt: skip
    return finish(folder, process, command)


def assert_same_history(job, reference, until):
    """`job` lost nothing: every step once, every loss and the final state bit for bit, every sample once."""
    why = job.explain()
    assert job.exit_code == 0, why
    assert [line["step"] for line in job.metrics] == list(range(1, until + 1)), why
    for mine, theirs in zip(job.metrics, reference.metrics, strict=True):
        assert mine["bits"] == theirs["bits"], f"step {mine['step']}: the loss differs{why}"
        assert mine["loss"] == theirs["loss"], why
    assert samples(job) == samples(reference), why
    for rank, final in reference.finals().items():
        for key in ("final", "buffers", "lr", "scale"):
            assert job.finals()[rank][key] == final[key], f"rank {rank}: {key} differs{why}"


def corruptions(job):
    """What the journal says of silent corruption: (step, what, ranks) of each."""
    return [(line["step"], line["what"], line["ranks"]) for line in job.events("corruption")]


def samples(job):
    """The samples each committed step used, in rank order: published with the commit, once per step."""
    used = []
    for line in job.metrics:
        ranks = sorted(int(name.removeprefix("ids_")) for name in line if name.startswith("ids_"))
        used.append([i for rank in ranks for i in line[f"ids_{rank}"]])
    return used


def assert_survivors_kept_their_process(job, killed_ranks, world):
    for rank in range(world):
        pids = job.pids(rank)
        changes = sum(1 for a, b in itertools.pairwise(pids) if a != b)
        assert changes == killed_ranks.count(rank), f"rank {rank}: processes {pids}{job.explain()}"

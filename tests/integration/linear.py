"""Starts examples/cpp/linear.cc under the real `keepstep run` and compares what is left."""

import itertools
import re
from dataclasses import dataclass

from harness import ROOT, finish, start
from several_nodes import finish_nodes, start_nodes

BUILD = ROOT / "build"
PROGRAM = BUILD / "keepstep_example_linear"
MISTAKES = BUILD / "keepstep_trainer_mistakes"
UNTIL = 12
BATCH = 24
DATASET = 200  # an epoch ends within UNTIL steps


@dataclass
class Linear:
    """A finished job and the bytes of each rank's parameters and momentum."""

    job: object
    finals: dict

    def losses(self):
        return [line["loss"] for line in self.job.metrics]

    def samples(self):
        """Of each committed step, in rank order."""
        used = []
        for line in self.job.metrics:
            ranks = sorted(int(name.removeprefix("samples_")) for name in line if name.startswith("samples_"))
            used.append([i for rank in ranks for i in line[f"samples_{rank}"]])
        return used

    def workers(self, rank):
        """The processes that held `rank`, by generation. A worker's number is one process's and never used again."""
        return [line["workers"][rank] for line in self.job.events("generation_prepared")]


def arguments(folder, until, features=40):
    return [
        "--until", until, "--features", features, "--batch", BATCH, "--dataset", DATASET, "--dump", folder / "final",
    ]  # fmt: skip


def options_of(inject, options=()):
    return ["--no-python", *(part for text in inject for part in ("--inject", text)), *options]


def read_linear(job):
    finals = {int(path.suffix[1:]): path.read_bytes() for path in job.folder.glob("final.*")}
    return Linear(job, finals)


def run_linear(folder, *, world=2, spares=0, inject=(), until=UNTIL, options=()):
    how = {"world": world, "spares": spares, "options": options_of(inject, options)}
    process, command = start(folder, PROGRAM, *arguments(folder, until), **how)
    return read_linear(finish(folder, process, command))


def start_linear_on_nodes(folder, *, until=UNTIL, inject=(), options=(), features=40, **how):
    return start_nodes(
        folder, PROGRAM, *arguments(folder, until, features), options=options_of(inject, options), **how
    )  # fmt: skip


def finish_linear(nodes):
    return read_linear(finish_nodes(nodes))


def killed_late(linear):
    """Ranks that were killed when all had returned: no fault of training, but the job ends with exit code 1."""
    told = re.findall(r"rank (\d+) \(pid \d+\) .* after the training function had returned", linear.job.output)
    return {int(rank) for rank in told}


def assert_nothing_lost(linear, reference, until=UNTIL, late=frozenset()):
    """Every step once, every loss and the final state bit for bit, every sample once. `late`: of `killed_late`."""
    assert_same_losses_and_state(linear, reference, until, late)
    assert linear.samples() == reference.samples(), linear.job.explain()


def assert_same_losses_and_state(linear, reference, until, late=frozenset()):
    why = linear.job.explain()
    assert linear.job.exit_code == (1 if late else 0), why
    assert [line["step"] for line in linear.job.metrics] == list(range(1, until + 1)), why
    assert linear.losses() == reference.losses(), why
    assert linear.finals.keys() - late == reference.finals.keys() - late, why
    for rank in reference.finals.keys() - late:
        assert linear.finals[rank] == reference.finals[rank], f"rank {rank}: the state differs{why}"


def assert_only_these_were_replaced(linear, killed, world):
    assert not linear.job.events("restart"), linear.job.explain()
    for rank in range(world):
        workers = linear.workers(rank)
        changes = sum(1 for a, b in itertools.pairwise(workers) if a != b)
        assert changes == killed.count(rank), f"rank {rank}: workers {workers}{linear.job.explain()}"

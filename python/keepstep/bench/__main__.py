"""``keepstep bench NAME [options]``: runs one benchmark, whose last line is a JSON object."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

from keepstep._command import exit_with
from keepstep.bench.harness.environment import BenchError
from keepstep.report.journal import RunDirectoryError


class Benchmark(NamedTuple):
    """A benchmark: ``keepstep.bench.MODULE`` has main(arguments) -> exit code, which leaves BenchError,
    RunDirectoryError and Ctrl-C to `main` below."""

    module: str
    what: str


BENCHMARKS = {
    "recovery": Benchmark("recovery.command", "how long a SIGKILL interrupts a job, against torchrun and torchft"),
    "step": Benchmark("step.command", "what commit, heartbeat and journal add to a step"),
    "digest": Benchmark("step.digest", "what comparing gradients between ranks adds to a step"),
    "elastic": Benchmark(
        "elastic.command",
        "how long a resize interrupts a job, against torchrun, and the throughput at each size",
    ),
    "checkpoint": Benchmark(
        "checkpoint.command", "copies of sharded state after every step, against torch.save and DCP's async_save"
    ),
    "memory": Benchmark(
        "checkpoint.memory", "checkpoints in the memory server, against DCP's async_save to a disk, under torchrun"
    ),
    "hydrate": Benchmark(
        "recovery.hydrate",
        "a replaced rank's state from 1, 2 and 3 sources, against a plain copy and iperf3 (root, namespaces)",
    ),
    "allreduce": Benchmark("comm.allreduce", "all_reduce within one machine, against Gloo"),
    "rendezvous": Benchmark(
        "comm.rendezvous", "time until every rank knows every other rank's address, against TCPStore"
    ),
    "membership": Benchmark("comm.membership", "what the coordinator's decisions cost at up to 100,000 ranks"),
    "reproducible": Benchmark("step.reproducible", "what bit-identical results at any world size cost, against DDP"),
    "rehearsal": Benchmark("recovery.rehearsal", "what it saves when spares rehearse their first step"),
    "transport": Benchmark(
        "comm.transport", "the data plane between two nodes, against iperf3 and Gloo (root, Linux namespaces)"
    ),
    "libraries": Benchmark(
        "recovery.libraries",
        "Hugging Face's Trainer, Accelerate and Lightning: overhead and recovery, against torchrun",
    ),
    "lora": Benchmark(
        "recovery.lora", "adapters on a frozen base: bytes sent, copied and saved, and memory, against the whole model"
    ),
    "parity": Benchmark("checkpoint.parity", "Reed-Solomon coding per core, beside ISA-L's own loop"),
    "data-build": Benchmark(
        "data.build", "from text to a token corpus, against megatron-core and Hugging Face datasets"
    ),
    "data": Benchmark("data.command", "batches of tokens, and the first batch after a start, against DataLoaders"),
    "demo": Benchmark(
        "demo.command", "a job that loses ranks and a node, shown live and compared bit for bit with an undisturbed run"
    ),
}


def _usage() -> str:
    lines = [
        "usage: keepstep bench NAME [options]\n\n  keepstep bench NAME --help    show all options of a benchmark",
        "",
    ]
    return "\n".join(lines + [f"  {name:<13} {each.what}" for name, each in BENCHMARKS.items()])


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in BENCHMARKS:
        print(f"keepstep bench: there is no '{name}'\n{_usage()}", file=sys.stderr)
        return 2
    try:
        code = import_module(f"keepstep.bench.{BENCHMARKS[name].module}").main(arguments[1:])
    except (BenchError, RunDirectoryError) as error:
        print(f"keepstep bench {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keepstep bench {name}: stopped; all its processes are ended", file=sys.stderr)
        return 130
    return int(code)


if __name__ == "__main__":
    exit_with(main)

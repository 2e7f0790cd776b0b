"""The job of `keepstep bench digest`: the byte GPT, with the time of each step and the share of the comparison in it.

Rank 0 writes one JSON file: for each measured step its wall and CPU time, and those of the gradients' digest; then the
time of the protected state's digest, and the bytes that both read.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gpt_setup
import keepstep
from model import next_byte_loss

if TYPE_CHECKING:
    from keepstep import Run


@keepstep.recoverable
def train(run: Run, chosen: argparse.Namespace) -> None:
    state = run.setup(lambda: keepstep.State(**gpt_setup.build(0)._asdict()).with_unprotected(text=gpt_setup.text()))
    model, optimizer, schedule = state.model, state.optimizer, state.schedule
    replica = run.ddp(model)
    votes = run._step_commits.votes
    of_gradients = votes._of_gradients
    digest_s = []
    digest_cpu_s = []

    def timed(step: int) -> int:
        began, cpu_began = time.perf_counter(), time.process_time()
        result = of_gradients(step)
        digest_s.append(time.perf_counter() - began)
        digest_cpu_s.append(time.process_time() - cpu_began)
        return result

    votes._of_gradients = timed  # type: ignore[method-assign]
    step_s = []
    step_cpu_s = []
    began, cpu_began = time.perf_counter(), time.process_time()
    micro_batch = chosen.samples
    for step in run.steps(
        state.text,
        global_batch=micro_batch * run.world_size * chosen.micro_batches,
        micro_batch=micro_batch,
        last_step=chosen.warmup + chosen.steps,
    ):
        for tokens, targets in step:
            step.backward(next_byte_loss(replica(tokens), targets))
        step.commit(optimizer.step, schedule.step)
        step_s.append(time.perf_counter() - began)
        step_cpu_s.append(time.process_time() - cpu_began)
        began, cpu_began = time.perf_counter(), time.process_time()
    state_s = []
    for _ in range(5):
        began = time.perf_counter()
        votes._of_state()
        state_s.append(time.perf_counter() - began)
    if run.rank == 0:
        tensors = run._registry.flatten().tensors.values()
        found = {
            "step_s": step_s[chosen.warmup :],
            "digest_s": digest_s[chosen.warmup :],
            "step_cpu_s": step_cpu_s[chosen.warmup :],
            "digest_cpu_s": digest_cpu_s[chosen.warmup :],
            "state_s": state_s,
            "gradient_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
            "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        }
        Path(chosen.out).write_text(json.dumps(found))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--out", required=True)
    options.add_argument("--samples", type=int, required=True)
    options.add_argument("--micro-batches", type=int, required=True)
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--warmup", type=int, default=3)
    train(options.parse_args())

"""Figures of `keepstep bench checkpoint`: from what ranks noted, and from real jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule

from keepstep.bench.checkpoint.figures import against, of_copies, of_saves


def our_step(kind: str, compute_s: float, blocked_s: float = 0.0, **more: float) -> dict[str, Any]:
    zeros = {"blocked_cpu_s": 0.0, "beside_s": 0.0, "waits": 0, "copied_s": 0.0, "given_s": 0.0, "cpu_s": compute_s}
    return zeros | {"kind": kind, "step_s": 1.0, "compute_s": compute_s, "blocked_s": blocked_s} | more


def test_the_slowest_rank_of_a_step_counts() -> None:
    first = [
        our_step("plain", 0.9),
        our_step("copies", 0.95, 0.002, copied_s=0.6, given_s=0.4, waits=1, cpu_s=1.2),
        our_step("memcpy", 0.9, beside_s=0.1),
        our_step("loopback", 0.9, beside_s=0.3),
    ]
    second = [
        our_step("plain", 0.8),
        our_step("copies", 0.97, 0.001, copied_s=0.6, given_s=0.4, cpu_s=1.0),
        our_step("memcpy", 0.9, beside_s=0.1),
        our_step("loopback", 0.9, beside_s=0.3),
    ]
    answers = [
        {"steps": first, "state_bytes": 100, "tensors": 3, "vaults": {"7": 210, "8": 210}},
        {"steps": second, "state_bytes": 100, "tensors": 3, "vaults": {"7": 210}},
    ]
    found = of_copies(answers)
    assert (found["blocked_s"], found["share"], found["blocked_worst_s"]) == (0.002, 0.002, 0.002)
    assert found["slowed_s"] == 0.07
    assert found["slowed_cpu_s"] == pytest.approx(1.1 - 0.85)
    assert (found["waits"], found["copies"]) == (1, 2)
    assert (found["share_of_memcpy"], found["share_of_loopback"]) == (0.5, 0.75)
    assert found["host_bytes_per_state_byte"] == 2.1  # memory that both have mapped is there once


def their_step(kind: str, compute_s: float, blocked_s: float = 0.0, saves: int = 0) -> dict[str, Any]:
    return {
        "kind": kind, "step_s": 1.0, "cpu_s": compute_s, "compute_s": compute_s, "blocked_s": blocked_s,
        "blocked_cpu_s": blocked_s / 2, "saves": saves,
    }  # fmt: skip


def test_a_save_that_goes_on_beside_several_steps_slows_all_of_them() -> None:
    steps = [
        *(their_step("plain", 1.0), their_step("thread", 1.2, 0.05, 1), their_step("thread", 1.1)),
        *(their_step("plain", 1.0), their_step("process", 1.25, 0.03, 1), their_step("process", 1.25, 0.04, 1)),
        *(their_step("plain", 1.0), their_step("torch_save", 1.0, 0.01, 1)),
    ]
    theirs = of_saves([{"steps": steps}])
    assert theirs["ways"]["thread"]["slowed_s"] == pytest.approx(0.3)
    assert theirs["ways"]["process"]["slowed_s"] == pytest.approx(0.25)
    assert (theirs["ways"]["process"]["saves"], theirs["ways"]["thread"]["steps"]) == (2, 2)
    row = against({"step_s": 1.0, "blocked_s": 0.001, "blocked_cpu_s": 0.0005, "slowed_s": 0.05}, theirs)
    assert (row["best"], row["ratio"], row["cpu_ratio"]) == ("process", 35.0, 35.0)
    assert (row["gentlest"], row["slowed_ratio"]) == ("process", 5.0)
    still = against({"step_s": 1.0, "blocked_s": 0.001, "blocked_cpu_s": 0.0005, "slowed_s": -0.02}, theirs)
    assert still["slowed_ratio"] == 250.0  # what cannot be seen counts as a thousandth of a step
    assert against({"step_s": 1.0}, of_saves([{"steps": steps[:1]}])) == {}


def measured(against_: str) -> dict[str, Any]:
    words = ["--sizes", "2:0.05", "--worlds", "2", "--nodes", "2", "--rounds", "1", "--against", against_]
    done = subprocess.run(
        [sys.executable, "-m", "keepstep.bench", "checkpoint", "--json", *words],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (case,) = found["cases"]
    assert (case["ranks"], case["nodes"], case["copies"], case["tensors"]) == (2, 2, 6, 432)
    assert case["host_bytes_per_state_byte"] >= 4.0  # two versions on two nodes
    assert found["share"] == case["share"] > 0
    return found


@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="this torch's FSDP2 cannot be used")
@pytest.mark.long
def test_it_measures_copies_on_two_nodes() -> None:
    found = measured("torch_save")
    assert set(found["saves"][0]["ways"]) == {"torch_save"}
    assert found["ratio"] is None


@pytest.mark.long
def test_it_measures_every_way_of_async_save() -> None:
    found = measured("dcp")
    assert len(found["saves"][0]["ways"]) == 6
    assert found["ratio"] == found["cases"][0]["ratio"] > 0

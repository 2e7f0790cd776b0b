"""`keepstep bench membership` plays a small world."""

from __future__ import annotations

import json
import subprocess
import sys


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keepstep.bench", "membership", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_world_has_what_a_tick_and_a_fault_cost_and_what_a_node_is_sent() -> None:
    done = bench("--ranks", "16,64", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    worlds = json.loads(done.stdout)["worlds"]
    assert [(world["ranks"], world["nodes"]) for world in worlds] == [(16, 2), (64, 8)]
    for world in worlds:
        assert world["tick_us"] > 0 and world["fault_us"] > 0 and 100 < world["bytes_per_node"] < 2000


def test_ranks_that_do_not_fill_their_nodes_are_refused() -> None:
    done = bench("--ranks", "15")
    assert done.returncode == 1
    assert "15 ranks do not fill nodes of 8" in done.stderr

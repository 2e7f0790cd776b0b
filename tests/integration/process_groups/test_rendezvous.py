"""`keepstep bench rendezvous`: many real agents' streams, their tables and differences."""

import json
import subprocess
import sys

import pytest

from harness import KEEPSTEP, environment


def rendezvous(*options):
    command = [sys.executable, "-m", "keepstep.bench", "rendezvous", "--json", "--repetitions", "1", *options]
    values = environment() | {"KEEPSTEP_COMMAND": str(KEEPSTEP)}
    done = subprocess.run(command, env=values, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_thousand_ranks_get_their_table_and_then_only_what_changed(tmp_path):
    result = rendezvous("--ranks", "64,1024", "--reforms", "3", "--journal", "--out", str(tmp_path))
    small, large = result["worlds"]
    assert (small["ranks"], large["ranks"], large["agents"]) == (64, 1024, 128)
    # 16 bytes a node and a constant; what a re-form costs an agent does not depend on the world at all.
    assert large["table_bytes"] - small["table_bytes"] <= 16 * (128 - 8) + 64
    assert abs(large["reform_bytes"] - small["reform_bytes"]) < 32
    assert large["reform_bytes"] < large["table_bytes"] / 5
    events = [json.loads(line)["event"] for line in (tmp_path / "journals" / "1024-0" / "journal.jsonl").open()]
    assert events.count("generation_prepared") == 4
    assert events.count("node_connected") == 128
    assert "refused" not in events


@pytest.mark.parametrize("ranks", ["12", "0"])
def test_a_world_that_agents_of_eight_ranks_cannot_make_is_refused(ranks):
    command = [sys.executable, "-m", "keepstep.bench", "rendezvous", "--ranks", ranks]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "an agent has 8 ranks" in done.stderr


@pytest.mark.long
def test_tcpstore_does_the_same_exchange(tmp_path):
    result = rendezvous("--ranks", "16", "--reforms", "1", "--against", "tcpstore", "--out", str(tmp_path))
    (world,) = result["worlds"]
    assert world["tcpstore_note"] == "everyone reads everyone's address, one get each"
    for field in ("tcpstore_seconds", "tcpstore_multi_get_seconds", "tcpstore_neighbour_seconds"):
        assert world[field] > 0

"""What is made of a meeting with peers: of its report, or of what the launcher said when it failed."""

import json

import pytest
from surroundings import levels, only

from keepstep.bench.harness.environment import BenchError
from keepstep.doctor import peers
from keepstep.doctor.finding import error, fine

A, B = {"host": "a", "address": "10.0.0.1"}, {"host": "b", "address": "10.0.0.2"}


def meeting(endpoint="a:29400"):
    return peers.Meeting(endpoint, None, "none", 2, 5)


def answer(*addresses, problem=""):
    return {"addresses": list(addresses), "seconds": 0.01, "problem": problem}


def report(ahead_s=0.0, names=None):
    right = [answer("10.0.0.1"), answer("10.0.0.2")]
    pair = {"ranks": [0, 1], "ahead_s": ahead_s, "round_trip_s": 0.0002, "bytes_per_s": [1.2e9, 9e8]}
    return {"machines": [A, B], "names": names or [right, right], "pairs": [pair]}


def test_peers_that_see_each_other_are_fine():
    assert peers.judge(meeting(), report(ahead_s=0.0003)) == [
        fine("peers", "2 machines met at a:29400: a (10.0.0.1), b (10.0.0.2)"),
        fine("peers' names", "each resolves on all machines to its address"),
        fine("peers' clocks", "at most 0.30 ms apart"),
        fine("data plane", "a (10.0.0.1) to b (10.0.0.2) 1.20 GB/s, back 0.90 GB/s, round trip 0.20 ms"),
    ]


@pytest.mark.parametrize("ahead_s, text", [(3.5, "3.500 s ahead of"), (-3.5, "3.500 s behind")])
def test_clocks_that_are_apart_are_a_warning(ahead_s, text):
    finding = next(each for each in peers.judge(meeting(), report(ahead_s)) if each.check == "peers' clocks")
    assert finding.level == "warning"
    assert finding.found == f"the wall clock of b (10.0.0.2) is {text} that of a (10.0.0.1)"


def test_names_that_lead_elsewhere_are_named_with_who_sees_them_so():
    names = [[answer("127.0.1.1"), answer(problem="unknown")], [answer("127.0.0.1"), answer("127.0.1.1")]]
    findings = [each for each in peers.judge(meeting(), report(names=names)) if each.check == "peers' names"]
    assert levels(findings) == ["warning", "warning"]
    assert findings[0].found == (
        "a (10.0.0.1) resolves 'b' to nothing (unknown), and jobs reach that machine at 10.0.0.2"
    )
    assert findings[1].found == (
        "b (10.0.0.2) resolves 'a' to 127.0.0.1, and jobs reach that machine at 10.0.0.1"
    )  # fmt: skip


def test_the_launcher_s_last_word_is_why_it_failed():
    lines = [
        "keepstep: warning: something",
        "keepstep: node 0 listens at 10.0.0.1:29400 and waits for node 1",
        "keepstep: error: node 1 did not come within 5 s (--join-timeout); is keepstep started there?",
        "keepstep: warning: something else",
    ]
    found = "node 1 did not come within 5 s (--timeout-s); is keepstep started there?"
    assert peers.why_failed(lines) == (found, "")
    assert peers.why_failed([]) == ("", "")


def test_a_rank_s_exception_says_more_than_that_it_ended_and_names_the_firewall():
    link = "the link between rank 0 and rank 1 broke (no connection to 10.0.0.2:38067 came about for 15 s)"
    lines = ["Traceback (most recent call last):", f"RuntimeError: {link}", f"RuntimeError: {link}", "keepstep: rank 1"]
    found, advice = peers.why_failed(lines)
    assert found == f"RuntimeError: {link}"
    assert advice.startswith("ranks listen at ports of net.ipv4.ip_local_port_range: let firewalls")
    assert peers.why_failed(["RuntimeError: 3 of 8 numbers from rank 1 came wrong"])[1] == ""


ANOTHER_KEY = "did not prove the key of this job: it has another key: another token or another rendezvous id"


def journal(folder, *addresses, because=ANOTHER_KEY):
    lines = [
        {"event": "refused", "wall": 100.0 + i, "because": f"a stranger: {address}:{40000 + i} {because}"}
        for i, address in enumerate(addresses)
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')


def test_peers_with_another_key_are_counted(tmp_path):
    journal(tmp_path, "10.0.0.2", "fd00::3", "10.0.0.2")
    assert peers.strangers(tmp_path) == {"10.0.0.2": [100, 102], "fd00::3": [101]}
    assert peers.strangers(tmp_path / "none") == {}


def test_who_speaks_no_tls_is_no_peer(tmp_path):
    journal(tmp_path, *["10.0.0.9"] * 9, because="did not prove the key of this job: it does not speak TLS")
    assert peers.strangers(tmp_path) == {}


def test_a_meeting_ends_once_a_peer_with_another_key_knows_it(tmp_path):
    journal(tmp_path, "10.0.0.2", "10.0.0.3", "10.0.0.2")
    peers.expect_no_stranger(tmp_path, 200)  # its launcher tries once more
    journal(tmp_path, "10.0.0.2", "10.0.0.3", "10.0.0.2", "10.0.0.2")
    peers.expect_no_stranger(tmp_path, 104)  # perhaps once more
    with pytest.raises(BenchError):
        peers.expect_no_stranger(tmp_path, 106)


@pytest.mark.parametrize(
    "endpoint, text",
    [("a", "a:29400"), ("a:1", "a:1"), ("[fd00::7]:29401", "[fd00::7]:29401"), ("[::1]", "[::1]:29400")],
)
def test_endpoints_are_as_run_takes_them(endpoint, text):
    assert meeting(endpoint).text() == text


@pytest.mark.parametrize("endpoint", ["", ":29400", "a:0", "a:b", "a:70000", "a/b:1"])
def test_what_is_no_endpoint_is_refused(endpoint):
    with pytest.raises(ValueError):
        meeting(endpoint).address()


def test_an_endpoint_whose_name_does_not_resolve_is_told_before_anything_starts():
    finding = only(peers.peers("/no/keepstep", meeting("no such host"), {}))
    assert finding.level == "error"
    assert finding.found.startswith("the name 'no such host' of --rdzv-endpoint does not resolve: ")


def asked(tmp_path, script):
    command = tmp_path / "keepstep"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return peers.job_there(str(command), meeting("127.0.0.1"), {})


def test_a_job_at_the_endpoint_is_named_and_left_alone(tmp_path):
    told = json.dumps({"ok": True, "job": "train-4f2a", "nodes": 2, "step": 118})
    assert asked(tmp_path, f"echo '{told}'") == fine(
        "endpoint",
        "the job train-4f2a (2 nodes, step 118) runs at 127.0.0.1:29400: this machine reaches it, and has its token. "
        "So as not to disturb it nothing else was tried with peers",
    )


def test_nobody_at_the_endpoint_is_no_finding_and_a_token_that_cannot_be_read_is_one(tmp_path):
    assert asked(tmp_path, """echo '{"ok": false, "error": "nobody accepts connections"}'""") is None
    finding = asked(tmp_path, "echo 'keepstep ask: no job token: give one' >&2; exit 2")
    assert finding == error("token", "no job token: give one")

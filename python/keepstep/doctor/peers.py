"""Peers: doctors on several machines meet at an endpoint, as a small job of their own (jobs/peer.py)."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.bench.harness.environment import BenchError
from keepstep.bench.harness.processes import Processes
from keepstep.bench.harness.waiting import wait_for_end
from keepstep.doctor.finding import Finding, error, fine, in_words, warning
from keepstep.doctor.jobs.marks import PEERS, said
from keepstep.doctor.network import DEFAULT_PORT, resolve
from keepstep.report.journal import read_objects

ASK_S = 5.0
REFUSED_ASKING = 1  # refusals of a doctor that asks another doctor for a job with the job's key
REFUSED_FOR_GOOD = 3  # refusals after which a launcher concludes that it has a different key
REFUSED_S = 2.0  # its retries take a fraction of that
CHECKS = ("endpoint", "token", "peers")  # the checks that can fail here while each machine alone is fine
AFTER_MEETING_S = 120.0  # for everything after the meeting
CLOCK_LIMIT_S = 1.0  # like `keepstep run --clock-limit`


@dataclass(frozen=True)
class Meeting:
    """Where peers meet, and how they show that they belong together: the options of `keepstep run`.

    Attributes:
        endpoint: HOST or HOST:PORT.
        token_file: the token's file; None: the token is in KEEPSTEP_TOKEN.
        rdzv_id: that of the job that will run there.
        nodes: number of machines on which a doctor is started.
        timeout_s: the longest time to wait for all of them.
    """

    endpoint: str
    token_file: str | None
    rdzv_id: str
    nodes: int
    timeout_s: float

    def address(self) -> tuple[str, int]:
        """Host and port. Raises ValueError."""
        parts = urllib.parse.urlsplit(f"//{self.endpoint}")
        if not parts.hostname or parts.path or parts.port == 0:
            raise ValueError(f"'{self.endpoint}' is not HOST or HOST:PORT")
        return parts.hostname, parts.port or DEFAULT_PORT

    def text(self) -> str:
        host, port = self.address()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def key(self) -> list[str]:
        return [] if self.token_file is None else ["--token-file", self.token_file]


def peers(command: str, meeting: Meeting, environ: Mapping[str, str]) -> list[Finding]:
    """`command`: the path of keepstep; `environ`: for the small job."""
    host, _ = meeting.address()
    found = resolve(host)
    if found.problem:
        return [
            error(
                "endpoint",
                f"the name '{host}' of --rdzv-endpoint does not resolve: {found.problem}",
                "add it to DNS or /etc/hosts, or give the address of node 0",
            )
        ]
    running = job_there(command, meeting, environ)
    return [running] if running is not None else meet(command, meeting, environ)


def job_there(command: str, meeting: Meeting, environ: Mapping[str, str]) -> Finding | None:
    """Finds a job that runs at the endpoint and accepts our key, which is left alone; or why it cannot be asked."""
    words = [command, "ask", meeting.text(), "--rdzv-id", meeting.rdzv_id, *meeting.key()]
    question = json.dumps({"limit_s": ASK_S, "request": {"op": "describe"}})
    done = subprocess.run(
        words, input=question + "\n", capture_output=True, text=True, env=dict(environ), timeout=4 * ASK_S
    )
    if done.returncode != 0:
        return error("token", done.stderr.strip().removeprefix("keepstep ask: "))
    answer = json.loads(done.stdout)
    if not answer.get("ok"):
        return None  # there is nobody yet, a doctor, or a job with a different key: meet() finds out
    job = f"{answer['job']} ({in_words(answer['nodes'], 'node')}, step {answer['step']})"
    return fine(
        "endpoint",
        f"the job {job} runs at {meeting.text()}: this machine reaches it, and has its token. So as not to disturb it "
        "nothing else was tried with peers",
    )


def meet(command: str, meeting: Meeting, environ: Mapping[str, str]) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="keepstep-doctor-") as name, Processes() as processes:
        folder = Path(name)
        # A different --rdzv-id is a different key: no launcher of the job takes the doctor for one of its own.
        job = processes.start(
            [
                *(command, "run", "--nnodes", str(meeting.nodes), "--nproc-per-node", "1", "--max-restarts", "0"),
                *("--rdzv-endpoint", meeting.text(), "--rdzv-id", f"doctor-{meeting.rdzv_id}", *meeting.key()),
                *("--join-timeout", f"{meeting.timeout_s:g}", "--journal", str(folder / "run")),
                *("-m", "keepstep.doctor.jobs.peer"),
            ],
            environ,
            folder / "log",
        )
        try:
            wait_for_end(
                "the job",
                job,
                meeting.timeout_s + AFTER_MEETING_S,
                lambda: expect_no_stranger(folder / "run", time.time()),
            )
            (report,) = said(job.log, PEERS)
        except (BenchError, ValueError) as why:
            others = strangers(folder / "run")
            if any(len(times) > REFUSED_ASKING for times in others.values()):
                came = f"{', '.join(others)} came to {meeting.text()} with another job token or --rdzv-id"
                return [error("peers", came, "give all machines the same")]
            found, advice = why_failed(job.log.read_text(errors="replace").splitlines())
            return [error("peers", found or str(why), advice)]
        warnings = [line for line in job.log.read_text(errors="replace").splitlines() if line.startswith(_WARNING)]
    return [*(warning("peers", line.removeprefix(_WARNING)) for line in warnings), *judge(meeting, report)]


_WARNING = "keepstep: warning: "
_FIREWALL = (
    "ranks listen at ports of net.ipv4.ip_local_port_range: let firewalls between the machines (nftables, security "
    "groups, Kubernetes' NetworkPolicy) pass TCP at these, both ways"
)


def why_failed(lines: Sequence[str]) -> tuple[str, str]:
    """Why a job ended according to its launcher's output, and what to do; empty if the output does not say.

    The exception of a rank explains more than the launcher's last message, which may only say that a rank ended.
    """
    raised = dict.fromkeys(line for line in lines if re.match(r"[A-Z]\w*(Error|Exception): ", line))
    if raised:
        found = "; ".join(raised)
        return found, _FIREWALL if "no connection to" in found else ""
    ours = [line for line in lines if line.startswith("keepstep: ") and not line.startswith(_WARNING)]
    last = ours[-1].removeprefix("keepstep: ").removeprefix("error: ") if ours else ""
    return last.replace("--join-timeout", "--timeout-s"), ""


def strangers(run: Path) -> dict[str, list[float]]:
    """When node 0 refused each address for a different key, from its journal. Only node 0 refuses anyone."""
    refused: dict[str, list[float]] = {}
    for path in run.glob("journal*.jsonl"):
        for event in read_objects(path)[0]:
            who = re.match(r"a stranger: (\S+):\d+ .* it has another key", event.get("because", ""))
            if event.get("event") == "refused" and who is not None:
                refused.setdefault(who[1], []).append(event["wall"])
    return refused


def expect_no_stranger(run: Path, now: float) -> None:
    """Raises BenchError once a peer with a different key has been told so: it will not join, so waiting is futile."""
    if any(len(times) >= REFUSED_FOR_GOOD and now > times[-1] + REFUSED_S for times in strangers(run).values()):
        raise BenchError("a peer used a different job token or --rdzv-id")


def judge(meeting: Meeting, report: dict[str, Any]) -> list[Finding]:
    machines = [f"{each['host']} ({each['address']})" for each in report["machines"]]
    findings = [fine("peers", f"{len(machines)} machines met at {meeting.text()}: {', '.join(machines)}")]
    findings += list(wrong_names(report)) or [fine("peers' names", "each resolves on all machines to its address")]
    findings += clocks(machines, report["pairs"])
    for pair in report["pairs"]:
        here, there = (machines[rank] for rank in pair["ranks"])
        out, back = (rate / 1e9 for rate in pair["bytes_per_s"])
        trip_ms = pair["round_trip_s"] * 1e3
        findings.append(
            fine("data plane", f"{here} to {there} {out:.2f} GB/s, back {back:.2f} GB/s, round trip {trip_ms:.2f} ms")
        )
    return findings


def wrong_names(report: dict[str, Any]) -> Iterator[Finding]:
    """A job needs no name but the endpoint's; people, Gloo and MPI need the others."""
    for here, resolved in zip(report["machines"], report["names"], strict=True):
        for there, found in zip(report["machines"], resolved, strict=True):
            if there is here or there["address"] in found["addresses"]:
                continue
            means = f"to {', '.join(found['addresses'])}" if found["addresses"] else f"to nothing ({found['problem']})"
            yield warning(
                "peers' names",
                f"{here['host']} ({here['address']}) resolves '{there['host']}' {means}, and jobs reach that machine "
                f"at {there['address']}",
                f"add `{there['address']} {there['host']}` to /etc/hosts there, or to DNS; keepstep itself needs only "
                "the name in --rdzv-endpoint",
            )


def clocks(machines: list[str], pairs: list[dict[str, Any]]) -> list[Finding]:
    apart = [
        warning(
            "peers' clocks",
            f"the wall clock of {machines[pair['ranks'][1]]} is {abs(pair['ahead_s']):.3f} s "
            f"{'ahead of' if pair['ahead_s'] > 0 else 'behind'} that of {machines[pair['ranks'][0]]}",
            "start chronyd or systemd-timesyncd on both; a job warns of it, too (--clock-limit)",
        )
        for pair in pairs
        if abs(pair["ahead_s"]) > CLOCK_LIMIT_S + pair["round_trip_s"] / 2
    ]
    most = max((abs(pair["ahead_s"]) for pair in pairs), default=0.0)
    return apart or [fine("peers' clocks", f"at most {most * 1e3:.2f} ms apart")]

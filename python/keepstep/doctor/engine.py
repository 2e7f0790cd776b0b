"""What the engine reports about this machine (``keepstep machine``), as findings.

The engine knows what it needs and tries it; the same code runs when a job starts. Only the wording is here.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from keepstep._errors import KeepstepError
from keepstep.doctor.finding import Finding, error, fine, in_words, size, warning

LIMIT_S = 60.0
MAX_TEMP_BYTES = 75  # a socket's path has room for 107, and multiprocessing adds /pymp-abcdefgh/listener-abcdefgh
_KERNEL = (
    "in a container its seccomp profile may forbid this (docker run --security-opt seccomp=unconfined shows whether it "
    "does); otherwise a kernel from 5.4 on is needed"
)


def ask(command: str, ranks: int | None, stacks_of: int) -> dict[str, Any]:
    """The answer of `command`, the path of keepstep. Raises KeepstepError."""
    words = [command, "machine", "--stacks-of", str(stacks_of)]
    words += [] if ranks is None else ["--nproc-per-node", str(ranks)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
        answer = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as why:
        raise KeepstepError(f"the command {command} does not work: {why}") from None
    if not isinstance(answer, dict):
        raise KeepstepError(
            f"the command {command} does not work: `{' '.join(words)}` ended with {done.returncode}: "
            f"{done.stderr.strip() or 'without a word'}"
        )
    return answer


def _judged(check: str, about: dict[str, Any], otherwise: str) -> list[Finding]:
    """Findings from the engine's sentences, which put the advice after a semicolon."""
    findings = []
    for make, sentences in ((error, about["errors"]), (warning, about["warnings"])):
        for sentence in sentences:
            found, _, advice = sentence.partition("; ")
            findings.append(make(check, found, advice))
    return findings or [fine(check, otherwise)]


def open_files(machine: dict[str, Any]) -> list[Finding]:
    about = machine["open_files"]
    ranks = in_words(machine["ranks"], "rank")
    return _judged(
        "open files", about, f"the limit is {about['soft']}; a launcher with {ranks} needs {about['needed']}"
    )


def memory(machine: dict[str, Any]) -> list[Finding]:
    about = machine["memory"]
    return _judged(
        "memory",
        about,
        f"{size(about['available_bytes'])} available (this machine, its control groups); the shared memory of "
        f"{in_words(machine['ranks'], 'rank')} takes {size(about['shared_bytes'])}",
    )


def dev_shm(machine: dict[str, Any]) -> list[Finding]:
    return _judged("/dev/shm", machine["dev_shm"], f"{size(machine['dev_shm']['free_bytes'])} free")


def kernel(machine: dict[str, Any]) -> list[Finding]:
    refused = [each for each in machine["kernel"] if each["problem"]]
    if refused:
        return [error("kernel", f"{each['need']} does not work: {each['problem']}", _KERNEL) for each in refused]
    return [fine("kernel", f"all {len(machine['kernel'])} things that the engine needs of it work")]


def stacks(machine: dict[str, Any]) -> list[Finding]:
    problem = machine["stacks"]["problem"]
    if problem:
        found, _, advice = problem.partition("; ")
        return [warning("stacks", f"the stacks of ranks, also of hung ones, cannot be taken: {found}", advice)]
    return [fine("stacks", f"{machine['stacks']['found']} reads the stacks of a Python process")]


def folders(machine: dict[str, Any]) -> list[Finding]:
    findings = []
    runtime, temp = machine["runtime_folder"], machine["temp_folder"]
    if runtime["problem"]:
        findings.append(
            warning(
                "runtime folder",
                f"{runtime['problem']}. Until then commands do not find running jobs, and nodes need --node-rank",
            )
        )
    else:
        findings.append(fine("runtime folder", f"{runtime['found']} is this user's alone"))
    if temp["problem"]:
        advice = "set TMPDIR to a folder that can be written"
        findings.append(error("temporary files", f"the folder for them cannot be used: {temp['problem']}", advice))
    elif (length := len(temp["found"].encode(errors="surrogateescape"))) > MAX_TEMP_BYTES:
        findings.append(
            warning(
                "temporary files",
                f"{temp['found']} has {length} bytes: sockets of DataLoader workers have no room behind it",
                f"set TMPDIR to a folder of at most {MAX_TEMP_BYTES} bytes, such as /tmp",
            )
        )
    else:
        findings.append(fine("temporary files", f"{temp['found']} can be written"))
    return findings

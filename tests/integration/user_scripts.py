"""Scripts that a test writes itself, and what their jobs have come to."""

import time

from harness import finish, json_lines, start


def script(folder, body):
    path = folder / "script.py"
    path.write_text(
        "import os, sys, torch, keepstep\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, i): return torch.full((4,), float(i))\n" + body
    )
    return path


def training(*lines):
    """A training function of these lines, and its call."""
    return "@keepstep.recoverable\ndef train(run):\n" + "".join(f"    {line}\n" for line in lines) + "train()\n"


def run_script(folder, body, args=(), **options):
    process, command = start(folder, script(folder, body), *args, **options)
    return finish(folder, process, command)


def steps_done(folder):
    return len(json_lines(folder / "journal" / "metrics.jsonl"))


def wait_for(condition, what, limit_s=60):
    """Polls a fact about the world that has no event to wait for (a process table, a file)."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {limit_s} s")

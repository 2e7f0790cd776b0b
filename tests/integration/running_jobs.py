"""Jobs that go on until they are stopped, and commands that talk to them."""

import signal
import subprocess
import time

from harness import JOBS, KEEPSTEP, LIMIT_S, environment, finish, json_lines, start


def command(*words, variables=None):
    return subprocess.run(
        [KEEPSTEP, *map(str, words)], env=environment() | (variables or {}), capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip


def refused(*words, variables=None):
    """What the command says on standard error when it refuses."""
    done = command(*words, variables=variables)
    assert done.returncode in (1, 2) and not done.stdout, done
    return done.stderr


class Running:
    """A job that goes on until it is stopped."""

    def __init__(self, folder, name, **how):
        self.folder = folder
        self.name = name
        allowed = ["--allow-inject"] if how.pop("allow_inject", True) else []
        options = ["--rdzv-id", name, *allowed, *how.pop("options", ())]
        script_args = ["--out", folder, "--until", 1_000_000, "--sleep", 0.05, *how.pop("extra", ())]
        self.process, self.command = start(folder, JOBS / "small.py", *script_args, options=options, **how)

    def journal(self, event):
        lines = json_lines(self.folder / "journal" / "journal.jsonl")
        return [line for line in lines if line["event"] == event]

    def steps(self):
        return [line["step"] for line in json_lines(self.folder / "journal" / "metrics.jsonl")]

    def wait_for(self, condition, what):
        deadline = time.monotonic() + LIMIT_S
        while not (value := condition()):
            output = (self.folder / "output.txt").read_text()
            assert self.process.poll() is None and time.monotonic() < deadline, f"no {what}:\n{output[-4000:]}"
            time.sleep(0.02)
        return value

    def wait_for_event(self, event, count=1):
        return self.wait_for(lambda: self.journal(event)[count - 1 :], f"{event} number {count}")[0]

    def wait_for_steps(self, more=1):
        end = len(self.steps()) + more
        self.wait_for(lambda: len(self.steps()) >= end, f"step {end}")

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        return finish(self.folder, self.process, self.command)

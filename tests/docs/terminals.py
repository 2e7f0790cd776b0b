"""Windows in which a reader would type a page's commands: bash on a pseudo-terminal each."""

import contextlib
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from fcntl import ioctl

LIMIT_S = 300  # a command that takes longer hangs
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# How bash reports what a reader sees: that the prompt is back, and that a command failed.
PROMPT = "<prompt>"
VARIABLES = {"PS1": "", "PS2": "", "PROMPT_COMMAND": rf"printf '\n{PROMPT}\n'", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
TRAP = r"""trap 'printf "\n<failed %d %s>\n" $? "$BASH_COMMAND"' ERR"""
FAILED = re.compile(r"<failed (\d+) (.*)>")


class Terminal:
    def __init__(self, folder, environment):
        self._master, slave = pty.openpty()
        modes = termios.tcgetattr(slave)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 50, 120, 0, 0))
        bash = ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"]
        self._process = subprocess.Popen(
            bash, cwd=folder, env=environment | VARIABLES, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        self.lines = []
        self.seen = 0  # lines before this one were looked at
        self.failures = []  # (exit code, command)
        self._typed = self._prompts = 0  # lines; one prompt comes before the first line, and one after each
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self._type(TRAP)

    def _read(self):
        text = b""
        while True:
            try:
                more = os.read(self._master, 65536)
            except OSError:  # its last process has ended
                more = b""
            *lines, text = re.split(rb"[\r\n]+", text + (more or b"\n"))
            with self._changed:
                for line in lines:
                    self._take(CODES.sub("", line.decode(errors="replace")).rstrip())
                self._changed.notify_all()
            if not more:
                return

    def _take(self, line):
        if line == PROMPT:
            self._prompts += 1
        elif failed := FAILED.fullmatch(line):
            self.failures.append((int(failed[1]), failed[2]))
        elif line and (not self.lines or self.lines[-1] != line):  # a status line that stays as it is
            self.lines.append(line)

    def run(self, script):
        """Runs a file of commands, as if a reader had typed them."""
        self.wait_until_idle()
        self.seen = len(self.lines)
        self._type(f"source {script}")

    def press_ctrl_c(self):
        assert self.busy(), "Ctrl-C without a command"
        os.write(self._master, b"\x03")

    def _type(self, line):
        self._typed += 1
        os.write(self._master, f"{line}\n".encode())

    def busy(self):
        return self._prompts <= self._typed

    def wait_until_idle(self):
        self._wait(lambda: not self.busy(), "the end of its command")

    def wait_for(self, matching, what):
        """The first value of `matching(new lines)` that is not None."""
        found = None

        def there():
            nonlocal found
            found = matching(self.lines[self.seen :])
            return found is not None

        self._wait(lambda: there() or not self.busy(), what)
        assert there(), f"the command ended without {what}; the terminal shows:\n{self.text()}"
        return found

    def _wait(self, condition, what):
        deadline = time.monotonic() + LIMIT_S
        with self._changed:
            while not condition():
                if not self._changed.wait(deadline - time.monotonic()):  # no wrong page: something hangs
                    raise TimeoutError(f"no {what}; the terminal shows:\n{self.text()}\n{self._processes()}")

    def _processes(self):
        command = ["ps", "-o", "pid,ppid,stat,wchan:20,args", "--sid", str(self._process.pid)]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def text(self):
        return "\n".join(self.lines[-60:] + [f"(exit code {code}: {command})" for code, command in self.failures])

    def close(self):
        """Closes the window: what still runs in it gets SIGHUP."""
        with contextlib.suppress(ProcessLookupError):  # a command can end right now; bash signals its later ones
            os.killpg(os.tcgetpgrp(self._master), signal.SIGHUP)
        self._process.send_signal(signal.SIGHUP)
        self._process.wait(LIMIT_S)
        os.close(self._master)

"""Every block of code of README.md, the tutorials and some guides, run as a reader would: in order, in an empty folder.

CONTRIBUTING.md has the rules for writers of such pages.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3_servers import free_port
from terminals import Terminal
from torch.distributed.fsdp import FSDPModule

ROOT = Path(__file__).parents[2]
PART = re.compile(r"^<!-- (?P<note>.*?) -->$|^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST_LINE = re.compile(r"# (?:(?P<file>[\w./-]+\.\w+)|terminal (?P<terminal>\d))\n")
STATUS = re.compile(r"step (\d+) ")
UNIT = re.compile(r" (s|ms|[KMG]?i?B)\b")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass
class Block:
    page: Path
    line: int
    kind: str
    text: str
    file: str  # where it belongs; empty: it does not say
    terminal: int  # 0: it does not say
    note: str  # the comment just before it

    def __str__(self):
        return f"{self.page.name}:{self.line}"


def blocks_of(page):
    """The blocks of a page; comments that a reader follows are blocks of kind "ctrl-c" and "files"."""
    text = page.read_text()
    note, note_ends = "", 0
    for part in PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["note"] is not None:
            note, note_ends = part["note"], part.end()
            if pressed := re.fullmatch(r"Ctrl-C in terminal (\d)", note):
                yield Block(page, line, "ctrl-c", "", "", int(pressed[1]), note)
            if earlier := re.fullmatch(r"files of (\S+)", note):
                yield Block(page, line, "files", "", earlier[1], 0, note)
            continue
        first = FIRST_LINE.match(part["text"])
        file, terminal = (first["file"] or "", int(first["terminal"] or 0)) if first else ("", 0)
        near = note if text[note_ends : part.start()].isspace() else ""
        yield Block(page, line, part["kind"], part["text"], file, terminal, near)


GUIDES = [ROOT / "docs" / "how-to" / "existing_loop.md"]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")), *GUIDES]
    if list(blocks_of(page))
]
NOT_RUN = [block for page in PAGES for block in blocks_of(page) if block.note.startswith("not run: ")]


class Reader:
    """Does what a page says."""

    def __init__(self, folder):
        self.folder = folder
        self.terminals = {}
        self.latest = 0  # the terminal of the latest command
        self.shown = True  # whether the page has shown output of that command
        self.exit_codes = {}  # other than 0, by terminal: how its command ends
        self.actual = {"29400": str(free_port())}  # numbers of the page and what they are here: ports, pids
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])

    def terminal(self, number):
        if number not in self.terminals:
            places = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
            self.terminals[number] = Terminal(self.folder, os.environ | {"PATH": ":".join(places), "TERM": "xterm"})
        return self.terminals[number]

    def do(self, block):
        if block in NOT_RUN:
            return
        if block.kind == "text":
            self.compare(block)
            return
        self.finish_latest()
        if block.kind == "sh":
            self.run(block)
        elif block.kind == "ctrl-c":
            self.terminals[block.terminal].press_ctrl_c()
        elif block.kind == "files":
            for other in blocks_of(block.page.parent / block.file):
                if other.file:
                    self.do(other)
        elif block.file:
            (self.folder / block.file).write_text(block.text)
        elif block.kind == "python":
            self.find_excerpt(block)
        else:
            pytest.fail(f"{block}: name the file in the first line, or say why it is not run (CONTRIBUTING.md)")

    def run(self, block):
        self.latest, self.shown = block.terminal or 1, False
        if self.latest in self.terminals:
            self.settle(self.latest)
        code = re.fullmatch(r"exit code (\d+)", block.note)
        self.exit_codes[self.latest] = {int(code[1])} if code else set()
        script = self.folder / f".block-{block.line}.sh"
        script.write_text(NUMBER.sub(lambda found: self.actual.get(found[0], found[0]), block.text))
        self.terminal(self.latest).run(script)

    def finish_latest(self):
        """A command ends before the page goes on, unless the page shows what it prints meanwhile."""
        if not self.shown:
            self.settle(self.latest)

    def settle(self, number):
        """The command of this terminal has ended, as the page says it does."""
        terminal = self.terminals[number]
        terminal.wait_until_idle()
        assert {code for code, _ in terminal.failures} == self.exit_codes.pop(number, set()), terminal.text()
        terminal.failures.clear()

    def compare(self, block):
        """Each line that the page shows comes, in any order, before the page goes on."""
        number = block.terminal or self.latest
        if number == self.latest:
            self.shown = True
        self.finish_latest()
        terminal = self.terminals[number]
        shown = [line for line in block.text.splitlines()[bool(block.terminal) :] if line.strip() not in ("", "...")]

        def matching(lines):
            known, used = dict(self.actual), set()
            for line in shown:
                for index, real in enumerate(lines):
                    if index not in used and (numbers := same_words(line, real, known)) is not None:
                        known |= numbers
                        used.add(index)
                        break
                else:
                    return None
            return known, max(used, default=-1)

        self.actual, last = terminal.wait_for(matching, f"what {block} shows")
        terminal.seen += last + 1

    def find_excerpt(self, block):
        wanted = [line.strip() for line in block.text.splitlines() if line.strip() not in ("", "...")]
        for path in self.folder.rglob("*.py"):
            lines = iter([line.strip() for line in path.read_text().splitlines()])
            if all(line in lines for line in wanted):
                return
        pytest.fail(f"{block} is in no file that the page wrote; name its file in the first line")


def same_words(shown, real, known):
    """None, or the long numbers of `shown` (pids, ports) with those of `real`.

    Numbers of one digit (ranks, generations) are equal, unless they are times or sizes. A status line is as far or
    further.
    """
    if (step := STATUS.match(shown)) and (now := STATUS.match(real)) and int(now[1]) < int(step[1]):
        return None
    shown, pattern, end, numbers = squeezed(shown), "", 0, []
    for number in NUMBER.finditer(shown):
        pattern += words(shown[end : number.start()])
        end = number.end()
        fixed = number[0] if len(number[0]) == 1 and not UNIT.match(shown, end) else known.get(number[0])
        pattern += rf"({fixed or NUMBER.pattern})"
        numbers.append(number[0])
    if not (found := re.fullmatch(pattern + words(shown[end:]), squeezed(real))):
        return None
    pairs = zip(numbers, found.groups(), strict=True)
    return {number: actual for number, actual in pairs if re.fullmatch(r"\d{4,}", number)}


def words(text):
    return re.sub(r"(\\ )?\\\.\\\.\\\.", ".*", re.escape(text))


def squeezed(line):
    """Without the widths of columns."""
    return re.sub(r" *([│┃]) *", r"\1", re.sub(r"([ ━─])\1+", r"\1", line)).strip()


def follow(page, folder):
    """Does all that the page says; fails where something else comes than it shows."""
    reader = Reader(folder)
    try:
        for block in blocks_of(page):
            reader.do(block)
        for number in reader.terminals:
            reader.settle(number)
    finally:
        for terminal in reader.terminals.values():
            terminal.close()


def followed(page):
    long = page.stem in ("ddp", "elastic", "fsdp2")
    return pytest.param(page, id=page.name, marks=[pytest.mark.long] if long else [])


@pytest.mark.parametrize("page", [followed(page) for page in PAGES])
def test_what_a_page_says_happens(page, tmp_path):
    if page.stem == "fsdp2" and not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("FSDP2 of this torch cannot leave a step in the middle")
    follow(page, tmp_path)


RIGHT = """
```python
# one.py
print("rank 1, pid 4711: start")
```

```sh
python3 one.py
```

```text
rank 1, pid 2000: start
```

```python
print("rank 1, pid 4711: start")
```

<!-- exit code 130 -->
```sh
# terminal 2
echo 'pid 2000' > two.txt
tail -f two.txt
```

```text
pid 4711
```

<!-- Ctrl-C in terminal 2 -->
"""


@pytest.mark.parametrize(
    "change",
    [
        ("rank 1, pid 2000: start", "rank 1, pid 2000: begin"),
        ("rank 1, pid 2000: start", "rank 2, pid 2000: start"),
        ("python3 one.py", "python3 two.py"),
        ("python3 one.py", "python3 one.py && false"),
        ("```python\nprint(", "```python\nexit("),
        ("```python\nprint(", "```\nprint("),
        ("echo 'pid 2000' > two.txt", "false"),
        ("exit code 130", "exit code 1"),
        ("<!-- exit code 130 -->\n", ""),
    ],
)
def test_a_page_that_is_wrong_fails(change, tmp_path):
    for folder in ("right", "wrong"):
        (tmp_path / folder).mkdir()
    right, wrong = tmp_path / "right.md", tmp_path / "wrong.md"
    right.write_text(RIGHT)
    follow(right, tmp_path / "right")
    wrong.write_text(RIGHT.replace(*change))
    assert wrong.read_text() != RIGHT
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        follow(wrong, tmp_path / "wrong")


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_block_is_not_run(block):
    pytest.skip(block.note)

"""What pages say that can be looked up: where links lead; which commands, options and files exist."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEEPSTEP = ROOT / "build" / "keepstep"
PAGES = [
    page
    for page in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith((".", "build")) for part in page.relative_to(ROOT).parts)
]
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
SPOKEN = re.compile(r"`(?:\w+=\S+ )*(keepstep [a-z](?!\w+ \d)[^`]*)`")  # `keepstep control 1` is the name of a protocol


def named(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """As GitHub makes them of headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.+)$", FENCED.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    dead = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (page.parent / where).resolve() if where else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_is_reached_from_the_index():
    reached, pending = set(), [ROOT / "docs" / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or not (page.is_relative_to(ROOT / "docs") and page.exists()):
            continue
        reached.add(page)
        targets = [link.partition("#")[0] for link in LINK.findall(FENCED.sub("", page.read_text()))]
        pending += [(page.parent / target).resolve() for target in targets if target.endswith(".md")]
    assert not [named(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in reached]


def commands(page):
    """Each command line of keepstep's, as words: in blocks of code, and between backticks."""
    text = page.read_text()
    for _, block in FENCED.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if told := re.match(r"(?:\$ )?(?:\w+=\S+ +)*(?:\S*/)?(keepstep [a-z].*)", line.strip()):
                yield told[1]
    for line in SPOKEN.findall(FENCED.sub("", text)):
        yield re.sub(r"\s+", " ", line)


@cache
def help_of(*command):
    program = (sys.executable, "-m", "keepstep.bench") if command[0] == "bench" else (KEEPSTEP, command[0])
    done = subprocess.run([*program, *command[1:], "--help"], capture_output=True, text=True, timeout=120)
    return done.stdout if done.returncode == 0 else ""


def words_of(line):
    """Up to the training script: what follows is the script's."""
    line = re.split(r" {2,}(?:#|[a-z])|\s#\s| [|&>;]", line)[0]
    for word in shlex.split(line.replace("'", "")):
        yield word
        if word.endswith(".py"):
            return


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_and_options_exist(page):
    unknown = []
    for line in commands(page):
        words = list(words_of(line))[1:]
        command = [word for word in words[: 2 if words[0] in ("ckpt", "data", "bench") else 1] if word.islower()]
        known = help_of(*command) or help_of(command[0])
        if not known:
            unknown.append(line)
        if command[0] in ("certify", "recipe"):
            known += help_of("run")  # whose options it takes
        known += " --help --help-markdown "  # of every command
        for word in words:
            option = word.split("=")[0]
            if re.fullmatch(r"--[a-z][a-z-]+", option) and not re.search(rf"{option}(?![\w-])", known):
                unknown.append(f"{option} of: {line}")
    assert not unknown


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"], ids=named)
def test_each_figure_names_the_command_that_measures_it(page):
    (table,) = re.findall(r"^\|[^\n]* command[^\n]*\|\n\| -[^\n]*\n((?:\|[^\n]*\n)+)", page.read_text(), re.MULTILINE)
    cells = [row.strip(" |").rpartition(" | ")[2] for row in table.splitlines()]
    assert "keepstep bench" in cells[0]
    assert not [cell for cell in cells if "keepstep bench" not in cell and not cell.startswith("the same")]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_are_named_exist(page):
    text = FENCED.sub("", page.read_text())
    paths = re.findall(r"`((?:src|python|include|tests|scripts|examples|docs)/[\w./{},*-]+)`", text)
    gone = [path for path in paths if not any(found(page, each) for each in braced(path.rstrip("/")))]
    assert not gone


def found(page, path):
    return list(ROOT.glob(path)) or list(page.parent.glob(path))


def braced(path):
    """All that `a/{b,c}` stands for."""
    if group := re.search(r"\{([^{}]*)\}", path):
        for each in group[1].split(","):
            yield from braced(path[: group.start()] + each + path[group.end() :])
    else:
        yield path

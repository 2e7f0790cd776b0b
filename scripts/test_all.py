"""Everything that `make test-all` runs, stage by stage: each once for the tree as it is, in any number of calls.

A passed stage is kept for the git tree that it ran on (uncommitted changes count), in build/test-all/TREE; a call runs
what has not passed yet. Ctrl-C leaves the stage it is in, and all that follow, to the next call. Most stages are kept
for a tree without its pages (*.md), those of the engine alone for one without Python, too: what a stage does not read
may change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "test-all"
PYTEST = ".venv/bin/python -m pytest -q -rs -p no:cacheprovider -o console_output_style=classic"
END_S = 120.0  # for a stage to end its processes after Ctrl-C

# What a stage's last words are: of pytest, ctest, GoogleTest, libFuzzer, and of tests/chaos.
CLOSING = re.compile(
    r"\d+ (passed|failed|skipped|errors?)\b.* in [\d.]+s|\d+% tests passed|\[  (PASSED|FAILED)  \]|Done \d+ runs|"
    r"\d+ rounds, .* in \d+ s|FAILED\. |sanitizer: |Python 3\."
)

SKIPPED = re.compile(r"^\d+ skipped\b(?!.*\bpassed\b)")  # the closing line where this machine could run none of it

PAGES = ("*.md",)
PAGES_AND_PYTHON = ("*.md", "*.py")


@dataclass(frozen=True)
class Stage:
    """A command of the repository's root that passes with exit code 0. `unread`: files that it does not depend on."""

    name: str
    command: str
    unread: tuple[str, ...] = PAGES


def stages(seconds: float | None, root: Path = ROOT) -> list[Stage]:
    """All of them, what is quick and breaks most first. `seconds`: instead of an hour of chaos, and the like."""
    shorter = "" if seconds is None else f"SECONDS={seconds:g}"
    found = [
        Stage("cc", "make test-cc", PAGES_AND_PYTHON),
        Stage("python", "make test-python", unread=()),
        Stage("sanitize-address", "scripts/sanitize.sh address", PAGES_AND_PYTHON),
        Stage("sanitize-thread", "scripts/sanitize.sh thread", PAGES_AND_PYTHON),
        Stage("schedules-brain", "env KEEPSTEP_SCHEDULES=1000000 build/keepstep_brain_test --gtest_brief=1",
              PAGES_AND_PYTHON),
        Stage("schedules-comm", "env KEEPSTEP_INTERRUPTIONS=10000 build/keepstep_comm_test --gtest_brief=1"
              " --gtest_filter=InterruptionRandom.*", PAGES_AND_PYTHON),
        Stage("schedules-nodes", "env KEEPSTEP_INTERRUPTIONS=5000 build/keepstep_comm_test --gtest_brief=1"
              " --gtest_filter=InterruptionAcrossNodes.*", PAGES_AND_PYTHON),
        Stage("fuzz", "scripts/fuzz.sh 60", PAGES_AND_PYTHON),
        Stage("oldest", "make test-oldest", unread=()),
    ]  # fmt: skip
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "mark.long" in path.read_text():
            name = str(path.relative_to(root / "tests").with_suffix("")).replace("/test_", "/")
            before = "scripts/setup.sh strangers && " if path.parent.name == "strangers" else ""
            long = f"{PYTEST} -m long {shlex.quote(str(path.relative_to(root)))}"
            command = before + (f"env {shorter} {long}" if shorter else long)
            found.append(Stage(f"long/{name}", command, () if path.parent.name in ("conformance", "docs") else PAGES))
    found.append(Stage("chaos", f"make chaos {shorter}".strip()))
    found.append(Stage("chaos-elastic", f"make chaos ELASTIC=1 {shorter}".strip()))
    return found


@dataclass(frozen=True)
class Trees:
    """Hashes of the working tree as git would commit it, by what is left out of it."""

    without: dict[tuple[str, ...], str]

    def of(self, stage: Stage) -> str:
        return self.without[stage.unread]


def current_trees(root: Path = ROOT) -> Trees:
    """Of tracked and new files, ignored ones left out; the repository's index and objects stay as they are."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=root, env=values, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    values = dict(os.environ)
    objects = root / git("rev-parse", "--git-path", "objects").strip()
    with tempfile.TemporaryDirectory() as folder:
        values["GIT_INDEX_FILE"] = f"{folder}/index"
        values["GIT_OBJECT_DIRECTORY"] = f"{folder}/objects"
        values["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(objects)
        os.mkdir(f"{folder}/objects")
        git("read-tree", "HEAD")
        git("add", "--all")
        trees = {}
        for unread in ((), PAGES, PAGES_AND_PYTHON):  # each leaves out what the one before does, too
            if unread:
                git("rm", "-r", "--quiet", "--cached", "--ignore-unmatch", "--", *unread)
            trees[unread] = git("write-tree").strip()
        return Trees(trees)


@dataclass(frozen=True)
class Results:
    """What is kept of stages: FOLDER/TREE/STAGE.json beside STAGE.log."""

    folder: Path

    def log(self, tree: str, stage: Stage) -> Path:
        return self.folder / tree[:16] / f"{stage.name.replace('/', '-')}.log"

    def get(self, tree: str, stage: Stage) -> dict | None:
        """What is known of this stage on this tree; what another command found does not count."""
        path = self.log(tree, stage).with_suffix(".json")
        result = json.loads(path.read_text()) if path.exists() else None
        return result if result and result["command"] == stage.command and "result" in result else None

    def put(self, tree: str, stage: Stage, result: dict) -> None:
        path = self.log(tree, stage).with_suffix(".json")
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result, indent=1))
        partial.replace(path)

    def forget(self, tree: str, stage: Stage) -> None:
        self.log(tree, stage).with_suffix(".json").unlink(missing_ok=True)


def closing_line(text: str) -> str:
    lines = [line.strip().strip("= ") for line in text.splitlines() if line.strip()]
    chosen = [line for line in lines if CLOSING.search(line)] or lines[-1:]
    return "; ".join(chosen[-8:])


def run(stage: Stage, log: Path, root: Path = ROOT) -> dict:
    """Runs `stage` to its end. After Ctrl-C the stage gets it too; then KeyboardInterrupt."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", stage.command], cwd=root, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            exit_code = process.wait()
        except BaseException:
            end(process)
            raise
    closing = closing_line(log.read_text(errors="replace"))
    return {
        "stage": stage.name,
        "command": stage.command,
        "result": "FAILED" if exit_code != 0 else "skipped" if SKIPPED.match(closing) else "passed",
        "seconds": round(time.monotonic() - began, 1),
        "closing": closing,
        "log": str(log),
    }


def end(process: subprocess.Popen) -> None:
    """As a Ctrl-C would: all of the stage's processes get it, and have END_S."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            return


def table(all_stages: Iterable[Stage], results: Results, trees: Trees) -> str:
    """What is known about the tree as it is; for a note."""
    lines = [
        "; ".join(
            f"tree without {' and '.join(unread)} {tree[:16]}" if unread else f"tree {tree[:16]}"
            for unread, tree in trees.without.items()
        ),
        "",
        "| stage | result | s | closing line |",
        "| --- | --- | --- | --- |",
    ]
    for stage in all_stages:
        result = results.get(trees.of(stage), stage)
        if result is None:
            lines.append(f"| {stage.name} | not run | | |")
        else:
            closing = result["closing"].replace("|", "\\|")
            lines.append(f"| {stage.name} | {result['result']} | {result['seconds']:.0f} | {closing} |")
    return "\n".join(lines)


def result_of(stage: Stage, results: Results, trees: Trees) -> str:
    result = results.get(trees.of(stage), stage)
    return "not run" if result is None else result["result"]


def run_stages(chosen: list[Stage], results: Results, root: Path) -> bool:
    """Runs those that have not passed on the tree as it is; whether none is left that failed, or was not run."""
    for stage in chosen:
        trees = current_trees(root)
        if result_of(stage, results, trees) == "passed":
            continue
        tree = trees.of(stage)
        log = results.log(tree, stage)
        print(f"{stage.name}: {stage.command}", flush=True)
        result = run(stage, log, root)
        if current_trees(root).of(stage) != tree:
            print("  the tree changed meanwhile: this result does not count", flush=True)
            continue
        results.put(tree, stage, result)
        print(f"  {result['result']} in {result['seconds']:.0f} s: {result['closing']}", flush=True)
        if result["result"] != "passed":
            print("\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-40:]))
            print(f"  {log}", flush=True)
    trees = current_trees(root)
    return all(result_of(stage, results, trees) in ("passed", "skipped") for stage in chosen)


def main(words: list[str], known: list[Stage] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="make test-all", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="only show what is known about this tree")
    parser.add_argument(
        "--only", metavar="STAGE", action="append", help="this one, or all below it (long); may be repeated"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what has passed, too")
    parser.add_argument(
        "--seconds", type=float, help="of chaos, and of the run beside a load, instead of the full time"
    )
    chosen = parser.parse_args(words)
    known = stages(chosen.seconds, root) if known is None else known
    results = Results(root / "build" / "test-all")
    picked = known
    if chosen.only:
        picked = [s for s in known if any(s.name == name or s.name.startswith(f"{name}/") for name in chosen.only)]
        for name in chosen.only:
            if not any(s.name == name or s.name.startswith(f"{name}/") for s in picked):
                parser.error(f"no stage '{name}'; --list shows them")
    trees = current_trees(root)
    if chosen.list:
        print(table(picked, results, trees))
        return 0
    if chosen.fresh:
        for stage in picked:
            results.forget(trees.of(stage), stage)
    try:
        all_passed = run_stages(picked, results, root)
    except KeyboardInterrupt:
        print("\nstopped; the same call again goes on with this stage")
        return 130
    print(table(picked, results, current_trees(root)))
    return 0 if all_passed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

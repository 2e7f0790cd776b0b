"""``keepstep bench data-build``: text to a corpus of tokens, against megatron-core's way and Hugging Face datasets.

The same JSON lines (the Python standard library's sources, repeated) and the same tokenizer for all, in turns, with as
many worker processes each, until the result is on disk: keepstep makes it durable by itself, for the others the job
does. keepstep's time is that of the whole command, start of Python included; of the others what follows the imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import JOBS, BenchError, keepstep_command, machine

LIMIT_S = 1800.0
VOCABULARY = 16_384
TRAINED_ON = 8_000_000  # characters
OPPONENTS = {"megatron": "megatron.core", "datasets": "datasets"}


def _texts() -> list[str]:
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if not {"site-packages", "dist-packages"} & set(path.parts):
            try:
                found.append(path.read_bytes().decode())
            except UnicodeDecodeError:
                continue
    return [text for text in found if text]


def write_input(path: Path, max_bytes: int) -> int:
    """Writes at least `max_bytes` of JSON lines; returns the number of lines."""
    lines = [json.dumps({"text": text}) + "\n" for text in _texts()]
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        while written < max_bytes:
            for line in lines:
                written += file.write(line)
                count += 1
                if written >= max_bytes:
                    break
        file.flush()
        os.fsync(file.fileno())  # so the first measurement does not wait for it
    return count


def train_tokenizer(path: Path) -> None:
    """Trains a byte-level BPE tokenizer, like GPT-2's, on these sources."""
    try:
        import tokenizers
    except ImportError as error:
        raise BenchError(f"this needs tokenizers: pip install tokenizers ({error})") from error
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    sample: list[str] = []
    size = 0
    for text in _texts():
        if size < TRAINED_ON:
            sample.append(text)
            size += len(text)
    made.train_from_iterator(sample, trainer)
    made.save(str(path))


class _Race:
    """One input, one tokenizer: how long each tool takes, and whether all wrote the same tokens."""

    def __init__(self, folder: Path, tokenizer: str, workers: int, opponents: list[str]) -> None:
        self._folder, self._tokenizer, self._workers, self._opponents = folder, tokenizer, workers, opponents
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]),
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",  # each of their workers handles one text at a time
        }
        self.seconds: dict[str, list[float]] = {name: [] for name in ("keepstep", *opponents)}

    def _call(self, command: list[str], environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
        return done.stdout

    def round(self) -> None:
        began = time.monotonic()
        self._call(
            [keepstep_command(), "data", "build", "--input", str(self._folder / "input.jsonl"), "--out",
             str(self._folder / "keepstep"), "--tokenizer", self._tokenizer, "--workers", str(self._workers), "--force",
             "--quiet"]
        )  # fmt: skip
        self.seconds["keepstep"].append(time.monotonic() - began)
        for name in self._opponents:
            told = self._call(
                [sys.executable, str(JOBS / f"data_build_{name}.py"), str(self._folder / "input.jsonl"),
                 str(self._folder / name), self._tokenizer, str(self._workers)],
                self._environment,
            )  # fmt: skip
            self.seconds[name].append(float(json.loads(told.splitlines()[-1])["seconds"]))
        if "megatron" in self._opponents:
            for suffix in (".bin", ".idx"):
                if (self._folder / f"keepstep{suffix}").read_bytes() != (
                    self._folder / f"megatron{suffix}"
                ).read_bytes():
                    raise BenchError(f"keepstep{suffix} and megatron{suffix} in {self._folder} differ")

    def result(self) -> dict[str, Any]:
        size = (self._folder / "input.jsonl").stat().st_size
        medians = {name: statistics.median(each) for name, each in self.seconds.items()}
        found: dict[str, Any] = {"input_bytes": size}
        for name, seconds in medians.items():
            found[f"{name}_s"] = round(seconds, 3)
            found[f"{name}_bytes_per_s"] = round(size / seconds)
        for name in self._opponents:
            ratios = [theirs / ours for theirs, ours in zip(self.seconds[name], self.seconds["keepstep"], strict=True)]
            found[f"ratio_{name}"] = round(statistics.median(ratios), 2)
        return found


def _opponents(wanted: str) -> tuple[list[str], list[str]]:
    """The opponents that can run, and those that are not installed."""
    names = [name for name in wanted.split(",") if name]
    for name in names:
        if name not in OPPONENTS:
            raise BenchError(f"--against {name}: there are {', '.join(OPPONENTS)}")
    there = [name for name in names if importlib.util.find_spec(OPPONENTS[name].partition(".")[0])]
    return there, [name for name in names if name not in there]


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"workers": options.workers, "rounds": options.rounds}
    opponents, missing = _opponents(options.against)
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as name:
        folder = Path(name)
        for kind in options.tokenizers.split(","):
            if kind not in ("bytes", "bpe"):
                raise BenchError(f"--tokenizers {kind}: there are bytes, bpe")
            megabytes = options.megabytes if kind == "bytes" else options.bpe_megabytes
            documents = write_input(folder / "input.jsonl", megabytes * 1_000_000)
            tokenizer = "bytes"
            if kind == "bpe":
                tokenizer = str(folder / "tokenizer.json")
                train_tokenizer(Path(tokenizer))
            race = _Race(folder, tokenizer, options.workers, opponents)
            for _ in range(options.rounds):
                race.round()
            result[kind] = {"documents": documents, **race.result()}
            if not options.json:
                rates = ", ".join(
                    f"{each} {result[kind][f'{each}_bytes_per_s'] / 1e6:.1f} MB/s" for each in ("keepstep", *opponents)
                )
                print(f"{kind}: {rates}")
    return {**result, "not_installed": missing, "environment": machine()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench data-build", description=__doc__)
    parser.add_argument("--megabytes", type=count, default=256, help="of input, for bytes (default %(default)s)")
    parser.add_argument("--bpe-megabytes", type=count, default=16, help="of input, for the BPE (default %(default)s)")
    parser.add_argument("--against", default="megatron,datasets", help="with commas (default %(default)s)")
    parser.add_argument("--tokenizers", default="bytes,bpe", help="with commas (default %(default)s)")
    parser.add_argument(
        "--workers", type=count, default=len(os.sched_getaffinity(0)), help="processes (default: one a CPU)"
    )
    parser.add_argument("--rounds", type=count, default=3, help="medians count (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    options = parser.parse_args(arguments)
    try:
        result = _measure(options)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise BenchError(str(error)) from error
    print(json.dumps(result))
    return 0

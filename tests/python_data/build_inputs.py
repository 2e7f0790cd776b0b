"""Real input for tests of `keepstep data`: the Python standard library's sources, and ways to run the command."""

import json
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from keepstep.data.__main__ import main

KEEPSTEP = Path(sys.executable).parent / "keepstep"


@cache
def sources(max_bytes=4_500_000):
    """(path, text) of modules of the standard library that are UTF-8 and not empty."""
    found, total = [], 0
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if text and total < max_bytes:
            found.append((str(path), text))
            total += len(text)
    return found


def json_lines(texts, field="text"):
    return "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts))


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out.splitlines()[-1])


def run(capsys, *arguments):
    """`keepstep data ARGUMENTS` in this process (its workers are processes of their own)."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return Ran(code, said.out, said.err)


def command(*arguments, **options):
    """The same as a process, not waited for."""
    return subprocess.Popen(
        [str(word) for word in (KEEPSTEP, "data", *arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def documents(prefix):
    """All documents of a corpus, read through its index by numpy alone."""
    import numpy

    raw = Path(f"{prefix}.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\0\0"
    kind = {1: "u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}[raw[17]]
    sequences, entries = numpy.frombuffer(raw, "<u8", 2, 18)
    lengths = numpy.frombuffer(raw, "<i4", sequences, 34)
    assert entries == sequences + 1
    tokens = numpy.fromfile(f"{prefix}.bin", kind)
    assert len(tokens) == lengths.sum()
    return [part.tolist() for part in numpy.split(tokens, lengths.cumsum()[:-1])]


def texts_of(prefix):
    return [bytes(tokens).decode() for tokens in documents(prefix)]

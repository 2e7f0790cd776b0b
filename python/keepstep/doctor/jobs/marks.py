"""How ranks of the doctor's jobs report findings: lines of JSON with one entry, named by a mark. Free of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOOPBACK = "doctor_loopback"
PEERS = "doctor_peers"


def say(mark: str, value: Any) -> None:
    print(json.dumps({mark: value}), flush=True)


def said(log: Path, mark: str) -> list[Any]:
    """What ranks reported under `mark` in a launcher's output."""
    begin = json.dumps({mark: 0})[:-2]
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line)[mark] for line in lines if line.startswith(begin)]

"""The acts of the demo: one job each."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.bench.demo.scene import Scene


@dataclass
class Act:
    """`scene` is there once the act began; `result` says in a line how it ended, and `holds` whether that is well."""

    name: str
    title: str
    scene: Scene | None = None
    result: str = ""
    holds: bool = False

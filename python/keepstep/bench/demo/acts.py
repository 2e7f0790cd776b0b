"""The acts of the demo: one job each."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.bench.demo.scene import Scene


@dataclass
class Act:
    """`scene`: set once the act has begun. `result`: how it ended, in a line. `holds`: whether that is a success."""

    name: str
    title: str
    scene: Scene | None = None
    result: str = ""
    holds: bool = False

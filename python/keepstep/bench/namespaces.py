"""Two "nodes" on one machine: network namespaces joined by a veth pair. Needs root and `ip` (package iproute2)."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keepstep.bench.environment import BenchError


@dataclass(frozen=True)
class Node:
    namespace: str
    device: str
    ip: str

    def command(self, *words: str) -> list[str]:
        """`words` as a command that runs on this node."""
        return ["ip", "netns", "exec", self.namespace, *words]


def why_not() -> str | None:
    """Why this machine cannot have nodes of its own; None if it can."""
    if shutil.which("ip") is None:
        return "there is no command `ip` (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"ks-probe-{uuid.uuid4().hex[:6]}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if done.returncode != 0:
        return f"network namespaces are not permitted here: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Makes them; takes them away at the end, whatever happened."""
    reason = why_not()
    if reason is not None:
        raise BenchError(f"two nodes on this machine: {reason}")
    tag = uuid.uuid4().hex[:6]
    nodes = (Node(f"ks-{tag}-0", f"ks{tag}0", "10.77.0.1"), Node(f"ks-{tag}-1", f"ks{tag}1", "10.77.0.2"))
    try:
        for node in nodes:
            _ip("netns", "add", node.namespace)
        _ip(
            "link", "add", nodes[0].device, "netns", nodes[0].namespace, "type", "veth",
            "peer", "name", nodes[1].device, "netns", nodes[1].namespace,
        )  # fmt: skip
        for node in nodes:
            for words in (
                ("addr", "add", f"{node.ip}/24", "dev", node.device),
                ("link", "set", node.device, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", node.namespace, *words)
        yield nodes
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "del", node.namespace], capture_output=True)

"""Nodes on one machine: network namespaces, joined by a veth pair or a bridge. Needs root and `ip` (of iproute2)."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keepstep.bench.harness.environment import BenchError


@dataclass(frozen=True)
class Node:
    namespace: str
    device: str
    ip: str

    def command(self, *words: str) -> list[str]:
        """`words` as a command that runs on this node."""
        return ["ip", "netns", "exec", self.namespace, *words]


def why_not() -> str | None:
    """Why such nodes cannot be created on this machine; None if they can."""
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


def _named(count: int) -> list[Node]:
    tag = uuid.uuid4().hex[:6]
    return [Node(f"ks-{tag}-{i}", f"ks{tag}{i}", f"10.77.0.{i + 1}") for i in range(count)]


def _check() -> None:
    reason = why_not()
    if reason is not None:
        raise BenchError(f"several nodes on this machine: {reason}")


def _bring_up(node: Node) -> None:
    for words in (
        ("addr", "add", f"{node.ip}/24", "dev", node.device),
        ("link", "set", node.device, "up"),
        ("link", "set", "lo", "up"),
    ):
        _ip("-n", node.namespace, *words)


def _remove(namespaces: Iterable[str]) -> None:
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


@contextmanager
def switched_nodes(count: int) -> Iterator[list[Node]]:
    """`count` nodes on one bridge; always removes them at the end."""
    _check()
    nodes = _named(count)
    switch = nodes[0].namespace + "-sw"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for node in nodes:
            _ip("netns", "add", node.namespace)
            _ip(
                "link", "add", node.device, "netns", node.namespace, "type", "veth",
                "peer", "name", node.device, "netns", switch,
            )  # fmt: skip
            _ip("-n", switch, "link", "set", node.device, "master", "switch", "up")
            _bring_up(node)
        yield nodes
    finally:
        _remove([*(node.namespace for node in nodes), switch])


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Two nodes joined by a veth pair; always removes them at the end."""
    _check()
    first, second = _named(2)
    try:
        for node in (first, second):
            _ip("netns", "add", node.namespace)
        _ip(
            "link", "add", first.device, "netns", first.namespace, "type", "veth",
            "peer", "name", second.device, "netns", second.namespace,
        )  # fmt: skip
        for node in (first, second):
            _bring_up(node)
        yield first, second
    finally:
        _remove(node.namespace for node in (first, second))

"""This machine's name and addresses, and its TCP ports."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.doctor.finding import Finding, fine, warning
from keepstep.doctor.system import System

DEFAULT_PORT = 29400  # of --rdzv-endpoint
SLOW_S = 1.0
MIN_PORTS = 1000  # ranks also listen on such ports, and each connects to many others


@dataclass(frozen=True)
class Resolved:
    """The resolver's answer. `problem`: why there are no addresses, if there are none."""

    addresses: Sequence[str]
    seconds: float
    problem: str = ""


def resolve(name: str) -> Resolved:
    begun = time.monotonic()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as why:  # UnicodeError: not a name at all
        return Resolved((), time.monotonic() - begun, getattr(why, "strerror", None) or str(why))
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return Resolved(tuple(addresses), time.monotonic() - begun)


def own_address(towards: str = "192.0.2.1") -> str | None:
    """This machine's address on the route to the address `towards`; nothing is sent. None if there is no route."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def own_name(name: str, found: Resolved, route: str | None) -> list[Finding]:
    """`route`: the address that this machine uses for outgoing connections, if any."""
    instead = f"give --rdzv-endpoint an address instead of this name ({route or 'ip addr lists them'})"
    if found.problem:
        return [
            warning(
                "host name",
                f"'{name}' does not resolve: {found.problem}",
                f"add it to /etc/hosts or DNS, or {instead}",
            )
        ]
    addresses = ", ".join(found.addresses)
    if found.seconds > SLOW_S:
        return [
            warning(
                "host name",
                f"'{name}' means {addresses}, and it took {found.seconds:.1f} s to find out",
                "put it into /etc/hosts, or mend the name servers in /etc/resolv.conf",
            )
        ]
    if is_loopback(found.addresses[0]):
        return [
            warning(
                "host name",
                f"'{name}' means {addresses} here, at which no other machine reaches this one; one machine alone works",
                f"for several, let /etc/hosts say `{route or 'ADDRESS'} {name}` (Debian writes 127.0.1.1), or "
                f"{instead}",
            )
        ]
    return [fine("host name", f"'{name}' means {addresses}")]


def bind_problem(port: int) -> str:
    """Why no process can listen on `port` on all addresses; empty if the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as why:
            return "it is in use" if why.errno == errno.EADDRINUSE else why.strerror or str(why)
    return ""


def ports(system: System, problem: str | None) -> list[Finding]:
    """`problem`: the answer of `bind_problem` for the port at which jobs of several nodes meet; None: not checked."""
    first, last = map(int, (system.read("proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split())
    findings = []
    if problem:
        findings.append(
            warning(
                "ports",
                f"nobody can listen at {DEFAULT_PORT}, where jobs of several nodes meet: {problem}",
                "give another port in --rdzv-endpoint, or see what listens there (ss -ltnp)",
            )
        )
    if last - first + 1 < MIN_PORTS:
        findings.append(
            warning(
                "ports",
                f"ranks and connections get the ports {first} to {last}: few, if there are many ranks",
                "sysctl net.ipv4.ip_local_port_range='32768 60999'",
            )
        )
    free = f"{DEFAULT_PORT} is free; " if problem is not None else ""
    return findings or [fine("ports", f"{free}connections get {first} to {last}")]

"""Where the agents of a job's nodes listen for each other, when another launcher started the ranks on several nodes.

``KEEPSTEP_STORE=HOST:PORT,HOST:PORT`` lists them, the same on all nodes. Each node finds its own address in the list.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from keepstep._errors import KeepstepError

SWITCH = "KEEPSTEP_STORE"
PLACE = "KEEPSTEP_STORE_NODE"
EXAMPLE = f"{SWITCH}=10.0.0.7:29411,10.0.0.8:29411"


@dataclass(frozen=True)
class StoreNodes:
    """``addresses``: numeric, of all nodes. ``place``: of this node's, from 0."""

    addresses: tuple[str, ...]
    place: int


def store_nodes(world_size: int) -> StoreNodes | None:
    """As the environment says; None for one node. KeepstepError: what is wrong with it."""
    given = os.environ.get(SWITCH, "")
    nodes = _number_of_nodes(world_size)
    if ":" not in given and "," not in given:
        if nodes is not None and nodes > 1:
            raise KeepstepError(
                f"{SWITCH}: the {world_size} ranks run on {nodes} nodes; list an address of each, the same on all "
                f"nodes, as in {EXAMPLE}, and set KEEPSTEP_TOKEN"
            )
        return None
    texts = [text.strip() for text in given.split(",") if text.strip()]
    if nodes is not None and nodes != len(texts):
        raise KeepstepError(
            f"{SWITCH} has {len(texts)} addresses, and the {world_size} ranks run on {nodes} nodes; list one for each"
        )
    places = [_resolve(text) for text in texts]
    for place, text in zip(places, texts, strict=True):
        if places.count(place) > 1:
            raise KeepstepError(f"{SWITCH} has the address of '{text}' twice, {place[0]}; each node needs its own")
    return StoreNodes(tuple(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in places), _place(places))


def _number_of_nodes(world_size: int) -> int | None:
    """None: unknown. An allocation of Slurm may have more nodes than the ranks run on; a step has not."""
    for name in ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES"):
        if (number := _number(os.environ.get(name, ""))) is not None:
            return number
    local = _number(os.environ.get("LOCAL_WORLD_SIZE", ""))
    return -(-world_size // local) if local else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _resolve(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not 0 < (_number(port) or 0) < 65536 or host in ("0.0.0.0", "::"):
        raise KeepstepError(f"{SWITCH} has '{text}'; give HOST:PORT, as in {EXAMPLE}")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise KeepstepError(f"{SWITCH} has '{text}', and {host} is not known here: {error}") from None
    return str(found[0][4][0]), int(port)


def _place(places: list[tuple[str, int]]) -> int:
    given = os.environ.get(PLACE, "")
    if given:
        place = _number(given)
        if place is None or place >= len(places):
            raise KeepstepError(
                f"{PLACE} is '{given}'; it is the place of this node in {SWITCH}, 0 to {len(places) - 1}"
            )
        return place
    own = [place for place, (ip, _) in enumerate(places) if _is_here(ip)]
    slurm = _number(os.environ.get("SLURM_NODEID", ""))
    if len(own) != 1 and slurm is not None and slurm < len(places):
        return slurm
    if len(own) != 1:
        problem = "none of its addresses is" if not own else f"{len(own)} of its addresses are"
        raise KeepstepError(
            f"{SWITCH}: {problem} of this machine ({socket.gethostname()}); set {PLACE} to this node's place in the "
            "list, from 0"
        )
    return own[0]


def _is_here(ip: str) -> bool:
    """Only an own address can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True

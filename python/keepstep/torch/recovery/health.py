"""What a worker checks about itself before it reports that it waits for a rank (``--health-check``).

It finds a machine that computes wrongly or is out of memory before the loss curve does. It takes a few milliseconds. A
worker that fails reports what was measured and ends; the coordinator takes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch

from keepstep import _engine
from keepstep._session import Session
from keepstep.torch.tensors.memory import dense, piece

SIZE = 192
# Of the products below. Every factor is a small integer, so each sum is exact in its type, whatever the order, the
# instructions and the machine: XXH3 of the bytes is the same everywhere.
KNOWN = {
    torch.float32: 0xF23B27682B54808D,
    torch.float64: 0x4EAB386A218D5113,
    torch.int64: 0x90A96DDC85502FF7,
}
MEMORY_BYTES = 64 << 20  # that must be available
PATTERN_BYTES = 1 << 20
EXIT_CODE = 76  # of a worker that is not used


@dataclass(frozen=True)
class Unfit(Exception):
    """A check failed: which one, what was measured, and what was expected."""

    check: str
    measured: str
    limit: str


def check(session: Session) -> None:
    """Ends the process if it fails a check; `session` tells the agent why."""
    if not session.welcome.health_check:
        return
    try:
        check_memory()
        check_computation()
        check_data_plane(several_nodes=session.welcome.several_nodes)
        check_gpus()
        if session.users_health_check is not None:
            _users(session.users_health_check)
    except Unfit as unfit:
        end_unfit(session, unfit)


def end_unfit(session: Session, unfit: Unfit, counts: bool = True) -> NoReturn:
    """Ends this process, which has no rank yet, and tells the agent why. `counts`: as a fault of its node."""
    session.engine.tell_unfit(unfit.check, unfit.measured[:4000], unfit.limit, counts)
    raise SystemExit(EXIT_CODE)


def _users(function: Callable[[], None]) -> None:
    """`health_check=` of ``keepstep.recoverable``."""
    try:
        function()
    except Exception as error:
        raise Unfit("health_check of the script", f"{type(error).__name__}: {error}", "no exception") from error


def products() -> dict[torch.dtype, torch.Tensor]:
    """A matrix product in each type that has a known result."""
    # On the CPU here and below, whatever device the script made the default.
    numbers = torch.arange(SIZE * SIZE, dtype=torch.int64, device="cpu")
    left = (numbers * 2654435761 % 4093 % 31 - 15).view(SIZE, SIZE)
    right = (numbers * 40503 % 2039 % 29 - 14).view(SIZE, SIZE)
    return {dtype: left.to(dtype) @ right.to(dtype) for dtype in KNOWN}


def check_computation() -> None:
    """Raises `Unfit` if a computation with a known result has another one, or two runs differ."""
    for dtype, product in products().items():
        found = _engine.digest(*piece(dense(product)))
        if found != KNOWN[dtype]:
            name = str(dtype).removeprefix("torch.")
            raise Unfit(f"{name} matrix product", f"digest {found:#018x}", f"{KNOWN[dtype]:#018x}")
    if _curved() != _curved():
        raise Unfit("float32 computation", "two runs of it differ in their bits", "the same bits")


def _curved() -> int:
    """The other operations of training. Their last bits depend on the CPU, so two runs are compared."""
    values = torch.linspace(-3, 3, SIZE * SIZE, dtype=torch.float32, device="cpu").view(SIZE, SIZE)
    result = torch.nn.functional.layer_norm(torch.softmax(values @ values.t(), 1).tanh().exp(), [SIZE])
    return int(_engine.digest(*piece(dense(result))))


def check_data_plane(several_nodes: bool) -> None:
    """Raises `Unfit` if data between ranks does not arrive: over shared memory, and with several nodes over TCP."""
    for name, tcp in (("shared memory", False), ("TCP", True)):
        if tcp and not several_nodes:
            continue
        wrong = _engine.check_loopback(tcp)
        if wrong:
            raise Unfit(f"loopback of the data plane over {name}", wrong, "all bytes arrive")


def check_gpus() -> None:
    """Raises `Unfit` if NVIDIA's driver reports that a GPU of this machine has broken memory or is gone."""
    if torch.cuda.device_count() == 0:
        return  # none, or none for this job
    for unfit in _engine.unfit_gpus():
        raise Unfit(*unfit)


def check_memory() -> None:
    """Raises `Unfit` if little memory is left, or if some of it does not keep what was written."""
    available = available_bytes()
    if available < MEMORY_BYTES:
        raise Unfit("memory", f"{available >> 20} MiB available", f"{MEMORY_BYTES >> 20} MiB")
    words = PATTERN_BYTES // 8
    # It differs in every word, and its bits mix.
    pattern = torch.arange(words, dtype=torch.int64, device="cpu") * -7046029254386353131
    for flipped in (pattern, ~pattern):
        copy = flipped.clone()
        wrong = int((copy != flipped).sum())
        if wrong:
            raise Unfit("memory", f"{wrong} of {words} words did not hold what was written", "all of them")


def available_bytes() -> int:
    """MemAvailable of this machine; a huge number if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62

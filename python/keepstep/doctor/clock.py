"""The clocks of this machine; peers.py compares those of its peers."""

from __future__ import annotations

import ctypes
import os
import time

from keepstep.doctor.finding import Finding, fine, warning
from keepstep.doctor.system import System

# Read through the vDSO, without a system call.
_FAST = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)


class _Timex(ctypes.Structure):
    """struct timex up to its status; the rest is space for the kernel to write into."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


def kernel_status() -> int | None:
    """The kernel's clock status (adjtimex(2)), or None if the call is not allowed."""
    asked = _Timex(modes=0)
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked)) < 0:
        return None
    return int(asked.status)


def source(system: System) -> list[Finding]:
    name = system.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if name is None or name in _FAST:
        return [fine("monotonic clock", f"{name or 'its source is not told'}")]
    return [
        warning(
            "monotonic clock",
            f"its source is {name}: each look at it is a system call, and the engine looks often",
            "if the kernel has no reason against it (dmesg), boot with clocksource=tsc tsc=reliable",
        )
    ]


def wall(status: int | None, now: float, built: float) -> list[Finding]:
    """`now`, `built`: seconds since the epoch; `built`: when the keepstep command's file was written."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < built - 86400:
        found = f"{text} is before keepstep was built here"
        return [warning("wall clock", found, "set the clock (chronyd, systemd-timesyncd): S3 refuses such times")]
    if status is not None and status & _UNSYNCHRONIZED:
        return [
            warning(
                "wall clock",
                f"{text}, and no NTP service keeps it right: logs of several nodes do not fit together, and storage "
                "refuses requests once it is minutes off",
                "start chronyd or systemd-timesyncd, in a virtual machine or container on its host",
            )
        ]
    return [fine("wall clock", text + (", kept by NTP" if status is not None else ""))]


def built_at(command: str) -> float:
    """When the command's file was written; 0 if unknown."""
    try:
        return os.stat(command).st_mtime
    except OSError:
        return 0.0

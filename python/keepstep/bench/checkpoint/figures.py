"""Computes the figures of `keepstep bench checkpoint` from the steps that its ranks recorded. Pure.

Ranks wait for each other after every step, so each step's figures are those of its slowest rank; then the median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]
# A slowdown below this share of a step cannot be told from noise; as a divisor it counts as this much.
LEAST_SLOWED = 0.001


def _steps(answers: list[Answer], kind: str) -> list[list[dict[str, Any]]]:
    """The rows of all ranks for each step of `kind`."""
    return [
        list(rows) for rows in zip(*(answer["steps"] for answer in answers), strict=True) if rows[0]["kind"] == kind
    ]


def _median(steps: list[list[dict[str, Any]]], of_rank: Callable[[dict[str, Any]], float], pick: Any = max) -> float:
    return float(statistics.median(pick([of_rank(row) for row in rows]) for rows in steps))


def _compute_s(row: dict[str, Any]) -> float:
    return float(row["compute_s"])


def _mean_cpu_s(steps: list[list[dict[str, Any]]]) -> float:
    return _median(steps, lambda row: float(row["cpu_s"]), statistics.mean)


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}


def of_copies(answers: list[Answer]) -> dict[str, Any]:
    """The figures of one keepstep job."""
    copies, plain = _steps(answers, "copies"), _steps(answers, "plain")
    memcpy, loopback = _steps(answers, "memcpy"), _steps(answers, "loopback")
    bytes_ = answers[0]["state_bytes"]
    step_s = _median(plain, lambda row: row["step_s"])
    blocked_s = _median(copies, lambda row: row["blocked_s"])
    plain_s = _median(plain, _compute_s)
    memory_s = _median(copies, lambda row: row["copied_s"] - row["given_s"], statistics.mean)
    given_s = _median(copies, lambda row: row["given_s"], statistics.mean)
    memcpy_s = _median(memcpy, lambda row: row["beside_s"], statistics.mean)
    loopback_s = _median(loopback, lambda row: row["beside_s"], statistics.mean)
    across = given_s > 1e-4  # on one node nothing is given
    vaults: dict[str, int] = {}
    for answer in answers:
        vaults |= answer["vaults"]
    return _rounded(
        {
            "state_bytes": bytes_,
            "tensors": answers[0]["tensors"],
            "step_s": step_s,
            "blocked_s": blocked_s,
            "blocked_cpu_s": _median(copies, lambda row: row["blocked_cpu_s"]),
            "blocked_worst_s": max(row["blocked_s"] for rows in copies for row in rows),
            "share": blocked_s / step_s,
            "slowed_s": _median(copies, _compute_s) - plain_s,
            "slowed_cpu_s": _mean_cpu_s(copies) - _mean_cpu_s(plain),
            "slowed_by_memcpy_s": _median(memcpy, _compute_s) - plain_s,
            "slowed_by_memcpy_cpu_s": _mean_cpu_s(memcpy) - _mean_cpu_s(plain),
            "copies": len(copies) * len(answers),
            "waits": sum(row["waits"] for rows in copies for row in rows),
            "to_memory_bytes_per_s": bytes_ / memory_s,
            "memcpy_bytes_per_s": bytes_ / memcpy_s,
            "share_of_memcpy": memcpy_s / memory_s,
            "to_other_node_bytes_per_s": bytes_ / given_s if across else None,
            "loopback_bytes_per_s": bytes_ / loopback_s,
            "share_of_loopback": loopback_s / given_s if across else None,
            "host_bytes_per_state_byte": sum(vaults.values()) / (bytes_ * len(answers)),
        }
    )


def of_saves(answers: list[Answer]) -> dict[str, Any]:
    """The figures of one torchrun job, by way of saving. A way that could not save has only its `error`."""
    plain = _steps(answers, "plain")
    plain_s = _median(plain, _compute_s)
    plain_cpu_s = _mean_cpu_s(plain)
    ways: dict[str, Any] = {}
    for way in dict.fromkeys(row["kind"] for row in answers[0]["steps"]):
        steps = _steps(answers, way)
        saving = [rows for rows in steps if rows[0]["saves"]]
        if way == "plain" or not saving:
            continue
        # A save that runs alongside several steps slows all of them.
        extra_s = sum(max(_compute_s(row) for row in rows) - plain_s for rows in steps)
        extra_cpu_s = sum(statistics.mean(row["cpu_s"] for row in rows) - plain_cpu_s for rows in steps)
        ways[way] = _rounded(
            {
                "blocked_s": _median(saving, lambda row: row["blocked_s"]),
                "blocked_cpu_s": _median(saving, lambda row: row["blocked_cpu_s"]),
                "slowed_s": extra_s / len(saving),
                "slowed_cpu_s": extra_cpu_s / len(saving),
                "saves": len(saving),
                "steps": len(steps),
            }
        )
    return {"step_s": round(_median(plain, lambda row: row["step_s"]), 6), "ways": ways}


def against(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The way of async_save that blocks least, and the one that slows steps least."""
    ways = {name: way for name, way in theirs["ways"].items() if name != "torch_save"}
    if not ways:
        return {}
    best = min(ways, key=lambda name: ways[name]["blocked_s"])
    gentlest = min(ways, key=lambda name: ways[name]["slowed_s"])
    least = LEAST_SLOWED * ours["step_s"]
    return {
        "best": best,
        "ratio": round(ways[best]["blocked_s"] / ours["blocked_s"], 3),
        "cpu_ratio": round(min(way["blocked_cpu_s"] for way in ways.values()) / ours["blocked_cpu_s"], 3),
        "gentlest": gentlest,
        "slowed_ratio": round(max(ways[gentlest]["slowed_s"], least) / max(ours["slowed_s"], least), 3),
    }

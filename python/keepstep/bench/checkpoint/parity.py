"""``keepstep bench parity``: Reed-Solomon coding on one core, beside ISA-L's own loop in the same run.

Ours is ISA-L, too: the comparison says what is lost on the way to it, and what checksums of all blocks cost.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
from typing import Any

from keepstep.bench.harness.arguments import count
from keepstep.bench.harness.environment import BenchError, bench_program, machine

SIZES = [64 << 10, 1 << 20, 32 << 20]
MAX_BYTES = 8 << 30  # of all blocks of a code together, in memory


def codes(text: str) -> list[tuple[int, int]]:
    """``6+2,10+4``."""
    if re.fullmatch(r"[1-9]\d{0,2}\+[1-9]\d{0,2}(,[1-9]\d{0,2}\+[1-9]\d{0,2})*", text) is None:
        raise argparse.ArgumentTypeError(f"'{text}': codes like 6+2, separated by commas, are needed")
    pairs = [(int(data), int(parity)) for data, parity in (part.split("+") for part in text.split(","))]
    for data, parity in pairs:
        if data + parity > 255:
            raise argparse.ArgumentTypeError(f"'{data}+{parity}': a code has at most 255 blocks")
    return pairs


def figures(sides: dict[str, list[float]], data_bytes: int) -> dict[str, Any]:
    def speed(side: str) -> float:
        return round(data_bytes / statistics.median(sides[side]) / 1e9, 2)

    def ratio(side: str) -> float:
        return round(statistics.median(a / b for a, b in zip(sides["isal"], sides[side], strict=True)), 3)

    return {
        "keepstep_gb_per_s": speed("keepstep"),
        "isal_gb_per_s": speed("isal"),
        "summed_gb_per_s": speed("summed"),
        "two_threads_gb_per_s": speed("two_threads"),
        "ratio": ratio("keepstep"),
        "ratio_summed": ratio("summed"),
    }


def measure(program: str, data: int, parity: int, size: int, rounds: int) -> dict[str, Any]:
    done = subprocess.run([program, str(data), str(parity), str(size), str(rounds)], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{program} ended with {done.returncode}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    encode: dict[str, list[float]] = result["encode"]
    return {
        "data": data,
        "parity": parity,
        "lost": result["lost"],
        "block_bytes": size,
        "memcpy_gb_per_s": round(data * size / statistics.median(encode.pop("memcpy")) / 1e9, 2),
        "encode": figures(encode, data * size),
        "rebuild": figures(result["rebuild"], data * size),
    }


def _line(part: dict[str, Any]) -> str:
    return " ".join(f"{part[f'{side}_gb_per_s']:>6}" for side in ("keepstep", "isal", "summed"))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="keepstep bench parity", description=__doc__)
    parser.add_argument("--codes", type=codes, default="6+2,4+2,10+4", help="K+M,... (default: 6+2,4+2,10+4)")
    parser.add_argument("--rounds", type=count, default=9, help="turns of each side; medians count (default: 9)")
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    options = parser.parse_args(arguments)
    program = bench_program("keepstep_parity_bench")
    say = (lambda text: None) if options.json else print
    say("GB of data per second and core: keepstep, ISA-L, keepstep with checksums")
    cases = []
    for data, parity in options.codes:
        for size in (size for size in SIZES if (data + 2 * parity) * size <= MAX_BYTES):
            case = measure(program, data, parity, size, options.rounds)
            cases.append(case)
            encode, rebuild = _line(case["encode"]), _line(case["rebuild"])
            say(f"{data}+{parity}, blocks of {size:>8}: encode {encode}, rebuild {rebuild}")
    print(
        json.dumps(
            {
                "encode_ratio": min(case["encode"]["ratio"] for case in cases),
                "rebuild_ratio": min(case["rebuild"]["ratio"] for case in cases),
                "cases": cases,
                "machine": machine(),
            }
        )
    )
    return 0

"""GPUs: whether the driver, torch and the job see the same ones, and whether they are healthy."""

from __future__ import annotations

import re
from typing import Any

from keepstep.doctor.finding import Finding, error, fine, in_words, warning
from keepstep.doctor.system import System

OLDEST_TORCH = (2, 14)  # for state on a GPU (keepstep/torch/distributed/nccl.py)


def gpus(system: System, found: dict[str, Any], visible: int) -> list[Finding]:
    """`found`: the answer of the probe, which imports torch. `visible`: GPUs that a job would start ranks for."""
    driver = system.read("proc/driver/nvidia/version")
    there = len(list((system.root / "proc/driver/nvidia/gpus").glob("*")))
    about = found["torch"]
    if driver is None and visible == 0:
        return [fine("GPUs", "none, and no NVIDIA driver: ranks compute on CPUs")]
    if visible == 0:
        return [fine("GPUs", f"{in_words(there, 'GPU')}, hidden from jobs by CUDA_VISIBLE_DEVICES")]
    release = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", driver or "")
    text = f"driver {release[1] if release else 'of an unknown version'}"
    if about["cuda"] is None:
        return [
            warning(
                "GPUs",
                f"{in_words(visible, 'GPU')}, {text}, and a torch that is built for CPUs only",
                "install a torch for CUDA (https://pytorch.org/get-started), or give --nproc-per-node cpu",
            )
        ]
    if not about["gpus"]:
        return [
            error(
                "GPUs",
                f"{in_words(visible, 'GPU')}, {text}, and torch (CUDA {about['cuda']}) cannot use them: "
                f"{about['cuda_problem'] or 'it sees none'}",
                "in a container start it with --gpus all; else a newer driver, or a torch for an older CUDA",
            )
        ]
    findings = [
        error("GPUs", f"{check}: {measured}; a rank needs {limit}") for check, measured, limit in found.get("unfit", [])
    ]
    if len(about["gpus"]) != visible:
        findings.append(
            warning(
                "GPUs",
                f"torch sees {in_words(len(about['gpus']), 'GPU')} and {visible} are visible",
                "does CUDA_VISIBLE_DEVICES name some that are not there?",
            )
        )
    if tuple(map(int, re.findall(r"\d+", about["version"])[:2])) < OLDEST_TORCH:
        findings.append(
            warning(
                "GPUs", f"torch {about['version']} cannot keep state on a GPU through a fault", "torch 2.14 or newer"
            )
        )
    names = ", ".join(f"{about['gpus'].count(name)} x {name}" for name in dict.fromkeys(about["gpus"]))
    return findings or [fine("GPUs", f"{names}, {text}, all well by NVML")]

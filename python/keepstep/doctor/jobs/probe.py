"""Reports on the jobs' interpreter: its version, keepstep, torch, and the GPUs that torch sees.

Started as text (``python -c``), because keepstep itself may not be importable there. It prints what it is about to
import, so a process that dies of an import has named it. The last line is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

ABOUT_TO = "about to import "
MODULES = ("keepstep", "keepstep._engine", "torch", "keepstep.torch")


def tried(function: Callable[[], Any]) -> tuple[Any, str]:
    """The function's result, and what went wrong."""
    try:
        return function(), ""
    except Exception as why:
        return None, f"{type(why).__name__}: {why}"


def of_torch(torch: Any) -> dict[str, Any]:
    usable = bool(torch.cuda.is_available())
    built = torch.version.cuda is not None
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": tried(lambda: ".".join(map(str, torch.cuda.nccl.version())))[0] if built else None,
        "distributed": bool(torch.distributed.is_available()),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if usable else [],
        "cuda_problem": tried(torch.cuda.init)[1] if built and not usable else "",
    }


def main() -> None:
    found: dict[str, Any] = {"version": sys.version.split()[0], "python": sys.executable, "problems": {}}
    modules: dict[str, Any] = {}
    for name in MODULES:
        print(ABOUT_TO + name, flush=True)
        modules[name], problem = tried(partial(importlib.import_module, name))
        if problem:
            found["problems"][name] = problem
    if modules["keepstep"] is not None:
        found["keepstep"] = {"version": modules["keepstep"].__version__, "file": modules["keepstep"].__file__}
    if modules["torch"] is not None:
        found["torch"] = of_torch(modules["torch"])
        if found["torch"]["gpus"] and modules["keepstep._engine"] is not None:
            found["unfit"] = modules["keepstep._engine"].unfit_gpus()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""torchtitan's own command line with recoverable trainers: what `-m keepstep.integrations.torchtitan` runs.

A script only because torchtitan has to be told of the CPU first.
"""

import os
import runpy
import sys
from pathlib import Path

import mine
import titan_cpu  # noqa: F401
import titan_train


def letters():
    """What `--module titan_main --config letters` names."""
    return titan_train.configuration(chosen)


if __name__ == "__main__":
    chosen = mine.options()
    sys.modules["titan_main"] = sys.modules["__main__"]
    sys.argv[1:] = ["--module", "titan_main", "--config", "letters", "--training.steps", str(chosen.until)]
    runpy.run_module("keepstep.integrations.torchtitan", run_name="__main__", alter_sys=False)
    if os.environ["RANK"] == "0":
        titan_train.tell(Path(chosen.out) / "tb", Path(chosen.out) / "told.jsonl")

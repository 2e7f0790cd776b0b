"""``keepstep ckpt COMMAND``: inspects, verifies, exports and removes checkpoints."""

from __future__ import annotations

import sys

from keepstep import _checkpoint
from keepstep._command import exit_with
from keepstep._errors import KeepstepError
from keepstep.checkpoint import checking, exporting, keeping, listing

USAGE = """usage: keepstep ckpt COMMAND ...

commands:
  ls       list the checkpoints in one or more destinations: step, complete or not, size, where, age
  show     show what a checkpoint contains: tensors, objects, files
  verify   read a whole checkpoint and compare it with its checksums
  diff     show how two checkpoints differ
  export   write a checkpoint as safetensors, in Hugging Face's layout
  rm       remove checkpoints
  pin      keep a checkpoint regardless of retention

  keepstep ckpt COMMAND --help    show all options of a command

A destination is a folder, file:///folder or s3://bucket/prefix. DESTINATION@120 is the checkpoint of step 120;
DESTINATION alone is the newest complete one, or the folder itself if it is a checkpoint (one of DCP's, too). ls, show
and verify also accept memory://JOB, what the agents of a running job hold: JOB as for `keepstep stacks`, or HOST:PORT
with a token.

examples:
  keepstep ckpt ls                     checkpoints of this machine's jobs, in memory and where they save
  keepstep ckpt ls memory://train-4f2a /data/run s3://bucket/run
  keepstep ckpt verify s3://bucket/run@120
  keepstep ckpt export /data/run --prefix model. --out hf
"""

_COMMANDS = {
    "ls": listing.ls,
    "show": listing.show,
    "verify": checking.verify,
    "diff": checking.diff,
    "export": exporting.export,
    "rm": keeping.rm,
    "pin": keeping.pin,
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    command = arguments[0]
    if command not in _COMMANDS:
        print(f"keepstep ckpt: there is no '{command}'\n{USAGE}", end="", file=sys.stderr)
        return 2
    try:
        return _COMMANDS[command](arguments[1:])
    except BrokenPipeError:
        raise  # not our error (_command.py)
    except (KeepstepError, _checkpoint.Error, OSError) as error:
        print(f"keepstep ckpt {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    exit_with(main)

"""``keepstep ckpt COMMAND``: inspects, verifies, exports and removes checkpoints."""

from __future__ import annotations

import sys

from keepstep import _checkpoint
from keepstep._command import exit_with
from keepstep._errors import KeepstepError
from keepstep.checkpoint import checking, exporting, keeping, listing

USAGE = """usage: keepstep ckpt COMMAND ...

commands:
  ls       the checkpoints of one or more destinations: step, complete or not, size, where, age
  show     what is in a checkpoint: tensors, objects, files
  verify   read all of a checkpoint and compare it with its checksums
  diff     what differs between two checkpoints
  export   a checkpoint as safetensors, in Hugging Face's layout
  rm       remove checkpoints
  pin      keep a checkpoint, whatever retention says

  keepstep ckpt COMMAND --help    all options of a command

A destination is a folder, file:///folder or s3://bucket/prefix. DESTINATION@120 is its step 120, DESTINATION alone
its newest complete checkpoint, or the one that the folder itself is (DCP's own, too). For ls, show and verify also
memory://JOB: what the agents of a running job hold; JOB as for `keepstep stacks`, HOST:PORT with a token.

examples:
  keepstep ckpt ls                     of the jobs of this machine: in memory, and where they save to
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

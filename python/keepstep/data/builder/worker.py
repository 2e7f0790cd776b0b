"""A worker process of a build. Reads what to build from standard input, one JSON object per line, and answers on
standard output: ``{"read": bytes}`` now and then, ``{"done": counts}``, or ``{"error": text}``.

It dies with the process that started it, however that process ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any, TextIO

from keepstep.data.builder.inputs import Piece
from keepstep.data.builder.part import PartBuilder
from keepstep.data.builder.tokenizer import Encoding

PR_SET_PDEATHSIG = 1


def _answers() -> TextIO:
    """Standard output, reserved for answers: what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main(parent: int) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request took effect
        return 1
    answers = _answers()

    def say(**words: Any) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    setup = json.loads(sys.stdin.readline())
    try:
        builder = PartBuilder(setup["folder"], Encoding(**setup["encoding"]), setup["field"], setup["skip"])
        for line in sys.stdin:
            work = json.loads(line)
            pieces = [Piece(**{**piece, "range": piece["range"] and tuple(piece["range"])}) for piece in work["pieces"]]
            done = builder.build(work["number"], pieces, lambda read: say(read=read))
            say(done=asdict(done))
    except (RuntimeError, OSError) as error:  # input or disk; anything else is our bug, and shows a traceback
        say(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

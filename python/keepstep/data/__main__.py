"""``keepstep data COMMAND``: builds and inspects token corpora."""

from __future__ import annotations

import sys

from keepstep._command import exit_with
from keepstep.data import chat_command, inspection
from keepstep.data.builder import command

USAGE = """usage: keepstep data COMMAND ...

commands:
  build    build a corpus from text files (JSON lines, JSON, Parquet, Arrow, plain text, source files)
  chat     build a corpus of fine-tuning examples (chats, questions and answers) with its loss mask
  info     show what a corpus contains
  verify   read a whole corpus and check it
  sample   show documents of a corpus

  keepstep data COMMAND --help    show all options of a command

example:
  keepstep data build --input 'shards/*.jsonl.zst' --out corpus --tokenizer tokenizer.json --append-eod
"""

_COMMANDS = {
    "build": command.main,
    "chat": chat_command.main,
    "info": inspection.info,
    "verify": inspection.verify,
    "sample": inspection.sample,
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] not in _COMMANDS:
        print(f"keepstep data: there is no '{arguments[0]}'\n{USAGE}", end="", file=sys.stderr)
        return 2
    return _COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    exit_with(main)

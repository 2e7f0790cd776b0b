"""``keepstep migrate``: turns the launch of a torchrun or HyperPod job into one of keepstep.

usage: keepstep migrate FILE

FILE is
  a shell or sbatch script with torchrun, python -m torch.distributed.run, hyperpodrun or accelerate launch:
      prints the script with `keepstep run` in their place
  a YAML manifest with a PyTorchJob or a HyperPodPyTorchJob:
      prints the script that each node starts
  a Python file (.py):
      prints the names of HyperPod, torch.distributed, torchft and others that it uses, and what becomes of each

FILE itself stays as it is. What changed, what has no counterpart and what is left to do goes to standard error.

Exit code 0: FILE was migrated; 2: it was not, and the message says why.
"""

from __future__ import annotations

import sys
from pathlib import Path

from keepstep._command import exit_with
from keepstep._terminal import beneath
from keepstep._yaml import YamlError
from keepstep.migrate import manifest, script
from keepstep.migrate.outcome import MigrateError, Migration, Note, Notes
from keepstep.migrate.python_file import uses


def _show_uses(file: Path, source: str) -> None:
    found = uses(source)
    places = [f"{file}:{use.line}" for use in found]
    for place, use in zip(places, found, strict=True):
        print(f"{place:<{max(map(len, places))}}  {use.name:<{max(len(each.name) for each in found)}}  {use.says}")
    if not found:
        print(f"keepstep migrate: {file} uses no name that changes; start it with `keepstep run`", file=sys.stderr)


def _show_notes(file: Path, notes: Notes) -> None:
    sections: dict[str, list[Note]] = {
        "changed": notes.changed,
        "no counterpart": notes.missing,
        "to do": notes.to_do,
    }
    for title, section in sections.items():
        if section:
            print(f"{title}:", file=sys.stderr)
        for note in sorted(set(section)):
            print(f"  {file}:{note.line}: {note.name}: {note.says}", file=sys.stderr)
    print(
        "An unchanged training script restarts after a fault. To keep its processes, and to lose no step: "
        "docs/how-to/migrate_from_torchrun.md",
        file=sys.stderr,
    )


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h"):
        print(__doc__, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if len(arguments) > 1 or arguments[0].startswith("-"):
        wrong = next((each for each in arguments if each.startswith("-")), arguments[-1])
        print(f"keepstep migrate: unexpected '{wrong}'; usage: keepstep migrate FILE", file=sys.stderr)
        return 2
    file = Path(arguments[0])
    try:
        text = file.read_text()
        if file.suffix == ".py":
            _show_uses(file, text)
            return 0
        read = manifest.migrate if file.suffix in (".yaml", ".yml") else script.rewrite
        migration: Migration = read(text)
    except (MigrateError, YamlError) as error:
        print(f"keepstep migrate: {file}: {error}", file=sys.stderr)
        return 2
    except UnicodeDecodeError:
        print(f"keepstep migrate: {file} is no text; give a script, a manifest or a Python file", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"keepstep migrate: {file}: {error.strerror}; give a script, a manifest or a Python file", file=sys.stderr
        )
        return 2
    # Into a file every character goes as it is.
    print(migration.text, end="", file=sys.stdout if sys.stdout.isatty() else beneath(sys.stdout))
    _show_notes(file, migration.notes)
    return 0


if __name__ == "__main__":
    exit_with(main)

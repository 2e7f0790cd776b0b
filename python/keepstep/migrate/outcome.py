"""What a migration yields: the new launch, and notes for the person who has to run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


class MigrateError(Exception):
    """FILE cannot be migrated. The text says what is wrong, where, and what to do."""


@dataclass(frozen=True, order=True)
class Note:
    """``name`` in line ``line`` of FILE (from 1), and what became of it."""

    line: int
    name: str
    says: str


@dataclass
class Notes:
    changed: list[Note] = field(default_factory=list)
    missing: list[Note] = field(default_factory=list)  # has no counterpart in keepstep
    to_do: list[Note] = field(default_factory=list)  # before the new launch works

    def add(self, others: Notes, lines: int = 0) -> None:
        """Takes over `others`, from a part of FILE that begins `lines` lines below its top."""
        for mine, theirs in (
            (self.changed, others.changed),
            (self.missing, others.missing),
            (self.to_do, others.to_do),
        ):
            mine += [replace(note, line=note.line + lines) for note in theirs]


@dataclass
class Migration:
    """``text`` goes to standard output."""

    text: str
    notes: Notes

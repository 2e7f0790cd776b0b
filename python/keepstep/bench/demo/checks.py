"""What must hold after the faults of an act: a bit-for-bit comparison with the undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from keepstep._console import shown
from keepstep.bench.demo.sample_ids import check_samples
from keepstep.bench.harness.keepstep_job import losses
from keepstep.report.analysis import Analysis


class Checks:
    """The conditions that must hold, each with what was found."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, bool]] = []

    def add(self, what: str, found: str, holds: bool) -> None:
        self._rows.append((what, found, holds))

    @property
    def all_hold(self) -> bool:
        return all(holds for _, _, holds in self._rows)

    def table(self) -> Table:
        table = Table(title="Against the undisturbed run of the same seed", title_justify="left")
        table.add_column("what")
        table.add_column("found")
        table.add_column("")
        for what, found, holds in self._rows:
            table.add_row(what, found, shown("yes", "green") if holds else shown("NO", "bold red"))
        return table

    def in_a_line(self) -> str:
        failed = [what for what, _, holds in self._rows if not holds]
        return f"differs: {', '.join(failed)}" if failed else "equal bit for bit"


def compare(
    undisturbed: Path, disturbed: Path, until: int, global_batch: int, analysis: Analysis, faults: int
) -> Checks:
    """Compares two acts by their folders. `analysis`: of the disturbed act, in which `faults` faults were caused."""
    checks = Checks()
    steps = range(1, until + 1)
    ours, theirs = losses(disturbed / "run"), losses(undisturbed / "run")
    equal = sum(step in ours and step in theirs and ours[step].hex() == theirs[step].hex() for step in steps)
    checks.add("losses equal, bit for bit", f"{equal} of {until} steps", equal == until)
    our_digests, their_digests = _digests(disturbed), _digests(undisturbed)
    same = sum(our_digests.get(name) == digest for name, digest in their_digests.items())
    whole = bool(their_digests) and same == len(their_digests) == len(our_digests)
    checks.add("final parameters equal, bit for bit", f"{same} of {len(their_digests)} tensors", whole)
    samples = check_samples(disturbed / "ids", undisturbed / "ids", until, global_batch)
    checks.add("no sample repeated", f"{samples.repeated} repeated", samples.repeated == 0)
    checks.add("no sample skipped", f"{samples.skipped} skipped", samples.skipped == 0)
    checks.add("no committed step lost", f"{analysis.totals.lost_steps} lost", analysis.totals.lost_steps == 0)
    died = [fault for recovery in analysis.recoveries for fault in recovery.faults]
    recovered = bool(analysis.recoveries) and all(recovery.complete for recovery in analysis.recoveries)
    recovered = recovered and len(died) == faults
    checks.add("every fault recovered", f"{len(died)} of {faults} faults", recovered)
    return checks


def _digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "digests.json").read_text())
    return found

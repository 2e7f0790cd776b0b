"""What a manifest says about a job, collected while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepstep._yaml import Field
from keepstep.migrate.outcome import MigrateError, Note, Notes

# Of runPolicy in both kinds of jobs.
POLICIES = {
    "activeDeadlineSeconds": "start keepstep run with timeout(1)",
    "cleanPodPolicy": "keepstep has no operator that keeps pods",
    "ttlSecondsAfterFinished": "keepstep has no operator that keeps pods",
    "suspend": "keepstep has no operator that suspends a job; stop it by a notice (docs/how-to/slurm.md)",
    "schedulingPolicy": "keepstep schedules nothing",
}


@dataclass
class Settings:
    """``nodes`` as for --nnodes. ``options`` by name; those in ``decided`` win over the command of the pods."""

    notes: Notes
    nodes: str = "1"
    spares: int = 0
    options: dict[str, str] = field(default_factory=dict)
    decided: set[str] = field(default_factory=set)
    container: Field | None = None
    log_rules: Field | None = None

    @property
    def all_nodes(self) -> str:
        """With the spare ones."""
        return str(int(self.nodes) + self.spares) if self.spares else self.nodes

    def option(self, given: Field, option: str, value: str = "", wins: bool = True) -> None:
        """`option` takes the place of the field `given`. Unless it `wins`, the command of the pods has precedence."""
        self.options[option] = f"--{option} {value or given.scalar()}"
        self.changed(given, self.options[option])
        self.decided |= {option} if wins else set()

    def changed(self, given: Field, says: str) -> None:
        self.notes.changed.append(Note(given.line, given.path, says))

    def missing(self, given: Field, says: str = "keepstep has no counterpart") -> None:
        self.notes.missing.append(Note(given.line, given.path, says))

    def rest(self, of: Field | None, but: set[str], why: dict[str, str] | None = None) -> None:
        """All fields in `of` that were not read."""
        for key in sorted(of.keys() - but) if of else []:
            if found := of and of.get(key):
                self.missing(found, (why or {}).get(key, "keepstep has no counterpart"))

    def pods(self, template: Field | None) -> None:
        """The container of this template. What else it says is up to the machines."""
        spec = template and template.get("spec")
        containers = list(spec.at("containers").items()) if spec and spec.get("containers") else []  # type: ignore
        if template is None or spec is None or not containers:
            where = template or spec
            raise MigrateError(f"line {where.line if where else 1}: the template of the pods has no containers")
        self.container = containers[0]
        for other in containers[1:]:
            self.missing(other, "only the first container is migrated")
        read = {"command", "args", "env", "workingDir", "name"}
        others = sorted((spec.keys() - {"containers"}) | (containers[0].keys() - read))
        if others:
            self.missing(spec, f"your pods or machines have to provide it: {', '.join(others)}")

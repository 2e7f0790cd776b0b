"""A PyTorchJob or HyperPodPyTorchJob as the script that each node runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keepstep._yaml import Field, documents
from keepstep.migrate import hyperpod_job, kubeflow_job
from keepstep.migrate.job_settings import Settings
from keepstep.migrate.launch import Surroundings
from keepstep.migrate.log_rules import log_rules
from keepstep.migrate.outcome import MigrateError, Migration, Note, Notes
from keepstep.migrate.pod_command import pod_command, unset
from keepstep.migrate.script import rewrite

# In small letters: the operator of HyperPod had a HyperPodPytorchJob, too.
_KINDS = {"hyperpodpytorchjob": hyperpod_job.read, "pytorchjob": kubeflow_job.read}
_OF_NODES = {"nnodes", "node-rank", "rdzv-endpoint", "rdzv-backend", "master-addr", "master-port"}


def migrate(text: str) -> Migration:
    """Raises MigrateError."""
    found = documents(text, "migrate")
    jobs = [each for each in found if each.text("kind").lower() in _KINDS]
    if not jobs:
        raise MigrateError(_what_else(found))
    if len(jobs) > 1:
        raise MigrateError(f"line {jobs[1].line}: a second job; put each job into a file of its own")
    notes = Notes()
    for other in found:
        if other is not jobs[0]:
            notes.missing.append(Note(other.line, other.text("kind") or "a document", "only the job is migrated"))
    spec = jobs[0].get("spec")
    if spec is None:
        raise MigrateError(f"line {jobs[0].line}: the job has no spec")
    name = jobs[0].at("metadata", "name")
    kind = jobs[0].text("kind")
    title = f"{kind} {name.scalar()}" if name else kind
    return Migration(_script(title, kind, _KINDS[kind.lower()](spec, notes)), notes)


def _what_else(found: Iterable[Field]) -> str:
    for each in found:
        keys = each.keys()
        if "compute_environment" in keys:
            return f"line {each.line}: a configuration of Accelerate; migrate the script that has `accelerate launch`"
        if "trainer" in keys or "recipes" in keys:
            return (
                f"line {each.line}: this looks like a recipe. keepstep has no integration with NeMo; take the training "
                "function out of it first (docs/how-to/migrate_from_hyperpod.md)"
            )
    return "this YAML has neither kind: HyperPodPyTorchJob nor kind: PyTorchJob"


def _script(title: str, kind: str, job: Settings) -> str:
    assert job.container
    command = pod_command(job.container, job.notes)
    if job.log_rules:
        job.options["log-rules"] = "--log-rules $log_rules"
    decided = dict.fromkeys(job.decided | _OF_NODES, "the manifest decides it")
    try:
        migrated = rewrite(command.body, Surroundings(job.all_nodes, job.options, decided), kind == "PyTorchJob")
    except MigrateError as error:
        raise MigrateError(
            f"line {command.lines + 1}: in the command of the pods {error}. If it starts a script, migrate that one"
        ) from None
    body = migrated.text.rstrip("\n")
    rules = log_rules(job.log_rules, _watched(job, body), job.notes) if job.log_rules else ""
    job.notes.add(migrated.notes, command.lines)
    lines = [
        f"#!{command.interpreter}",
        f"# {_nodes(job)} starts this. From the {title}.",
        *command.setup,
    ]
    if rules:
        lines += ["log_rules=$(mktemp)", "cat > \"$log_rules\" <<'RULES'", rules.rstrip("\n"), "RULES"]
    elif job.log_rules:
        body = body.replace(" --log-rules $log_rules", "")
    script = "\n".join([*lines, body, ""])
    told = {note.name for note in job.notes.to_do}
    if names := sorted(unset(script) - told):
        says = "set by the operator or the image, not by the manifest; set what the job still needs"
        job.notes.to_do.append(Note(job.container.line, ", ".join(names), says))
    return script


def _nodes(job: Settings) -> str:
    if job.all_nodes == "1":
        return "The node"
    spares = f" ({job.spares} of them spare)" if job.spares else ""
    return f"Each of the {job.all_nodes.replace(':', ' to ')} nodes{spares}"


def _watched(job: Settings, body: str) -> list[int]:
    """The first rank of each node, as far as it is known before the job starts."""
    per_node = re.search(r"--nproc[-_]per[-_]node[= ](\d+)\b", body)
    return [node * int(per_node[1]) for node in range(int(job.nodes.split(":")[-1]))] if per_node else [0]

"""What a HyperPodPyTorchJob says about a job (sagemaker.amazonaws.com/v1, as sagemaker-hyperpod-cli 3.9.0 has it)."""

from __future__ import annotations

from keepstep._yaml import Field
from keepstep.migrate.job_settings import POLICIES, Settings
from keepstep.migrate.outcome import MigrateError, Notes

_ELASTIC = {
    "replicaIncrementStep": "replica-increment-step",
    "scalingTimeoutInSeconds": "scaling-timeout",
    "gracefulShutdownTimeoutInSeconds": "graceful-shutdown-timeout",
    "faultyScaleDownTimeoutInSeconds": "faulty-scale-down-timeout",
}
_RUN = {"startupDeadlineSeconds": "join-timeout", "faultDeadlineSeconds": "node-timeout"}
_MOST_SECONDS = 86400
_NO_COUNTERPART = {
    **POLICIES,
    "jobMaxRetryCount": "--max-restarts counts only restarts of all ranks; maxFullJobRestarts says how many",
    "workloadMode": "keepstep has no operator",
}
_RESTARTS = {
    "evalPeriodSeconds": "--max-restarts counts over the whole job; --fault-window is for --node-faults",
    "numRestartBeforeFullJobRestart": "keepstep replaces single ranks, and restarts all of them only if that fails",
    "maxNumRepeatOffendersToAvoid": "--node-faults moves ranks away from a node on which they keep dying",
}


def read(spec: Field, notes: Notes) -> Settings:
    """Raises MigrateError."""
    found = Settings(notes)
    replicas = spec.get("replicaSpecs")
    specs = list(replicas.items()) if replicas else []
    templates = [template for each in specs if (template := each.get("template"))]
    if not templates:
        raise MigrateError(f"line {spec.line}: the job has no replicaSpecs with a template")
    found.pods(templates[0])
    for other in templates[1:]:
        found.missing(other, "only the first template is migrated; all nodes run its command")
    if nproc := spec.get("nprocPerNode"):
        found.option(nproc, "nproc-per-node", wins=False)
    _nodes(specs, spec.get("elasticPolicy"), found)
    _run_policy(spec.get("runPolicy"), found)
    found.rest(spec, {"replicaSpecs", "nprocPerNode", "elasticPolicy", "runPolicy"})
    return found


def _nodes(specs: list[Field], policy: Field | None, found: Settings) -> None:
    count = sum(each.number("replicas", 0) for each in specs)
    most = sum(each.number("maxReplicas", each.number("replicas", 0)) for each in specs)
    spares = [spares for each in specs if (spares := each.get("spares"))]
    found.spares = sum(each.number("spares", 0) for each in specs)
    for each in specs:
        found.rest(each, {"name", "replicas", "maxReplicas", "spares", "template"})
    least, most = _sizes(policy, count, most, found) if policy else (count, count)
    if least < 1:
        raise MigrateError(f"line {specs[0].line}: {specs[0].path} needs replicas: the number of nodes")
    found.nodes = f"{least}:{most}" if most > least else str(least)
    if found.nodes != "1":
        found.option(specs[0], "nnodes", found.nodes)
    if most > least and found.spares:
        found.spares = 0
        found.missing(spares[0], "an elastic job has none: nodes beyond its size stand by")
    elif found.spares:
        found.option(spares[0], "spare-nodes", str(found.spares))
    if policy and most > least:
        for theirs, ours in _ELASTIC.items():
            if given := policy.get(theirs):
                found.option(given, ours)
        if values := policy.get("replicaDiscreteValues"):
            found.option(values, "replica-discrete-values", ",".join(each.scalar() for each in values.items()))
        found.rest(policy, {"minReplicas", "maxReplicas", "replicaDiscreteValues", *_ELASTIC})
    elif policy:
        found.missing(policy, "the job has one size, so it is not elastic")


def _sizes(policy: Field, count: int, most: int, found: Settings) -> tuple[int, int]:
    """The smallest and the largest size of an elastic job."""
    values = policy.get("replicaDiscreteValues")
    sizes = [int(each.scalar()) for each in values.items() if each.scalar().isdigit()] if values else []
    least = policy.number("minReplicas", min(sizes, default=count))
    most = policy.number("maxReplicas", max(sizes, default=most))
    step = policy.number("replicaIncrementStep", 1)
    if step and most > least and (most - least) % step:
        most = least + (most - least) // step * step
        found.changed(
            policy, f"steps of {step} from {least} do not lead to its maxReplicas; the largest size is {most}"
        )
    return least, most


def _run_policy(policy: Field | None, found: Settings) -> None:
    if policy is None:
        return
    for theirs, ours in _RUN.items():
        if (given := policy.get(theirs)) and 1 <= policy.number(theirs, 0) <= _MOST_SECONDS:
            found.option(given, ours)
        elif given:
            found.missing(given, f"--{ours} takes 1 to {_MOST_SECONDS} seconds")
    restarts = policy.get("restartPolicy")
    most = restarts and restarts.get("maxFullJobRestarts")
    if most := most or policy.get("jobMaxRetryCount"):
        found.option(most, "max-restarts")
    if snooze := restarts and restarts.get("scaleUpSnoozeTimeInSeconds"):
        if ":" in found.nodes:
            found.option(snooze, "scale-up-snooze-time")
        elif snooze.scalar() != "0":
            found.missing(snooze, "the job is not elastic")
    found.rest(restarts, {"maxFullJobRestarts", "scaleUpSnoozeTimeInSeconds"}, _RESTARTS)
    found.log_rules = policy.get("logMonitoringConfiguration")
    read_too = {"jobMaxRetryCount"} if most and most.path.endswith("jobMaxRetryCount") else set()
    found.rest(policy, {"restartPolicy", "logMonitoringConfiguration", *_RUN, *read_too}, _NO_COUNTERPART)

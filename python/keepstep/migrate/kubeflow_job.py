"""What a PyTorchJob says about a job (kubeflow.org/v1, training operator 1.9)."""

from __future__ import annotations

from keepstep._yaml import Field
from keepstep.migrate.job_settings import POLICIES, Settings
from keepstep.migrate.outcome import MigrateError, Notes

_NO_COUNTERPART = {
    **POLICIES,
    "metrics": "keepstep does not scale by load; `keepstep scale` changes the size of a running job",
    "managedBy": "keepstep has no operator",
}


def read(spec: Field, notes: Notes) -> Settings:
    """Raises MigrateError."""
    found = Settings(notes)
    kinds = [kind for name in ("Master", "Worker") if (kind := spec.at("pytorchReplicaSpecs", name))]
    templates = [template for kind in kinds if (template := kind.get("template"))]
    if not templates:
        raise MigrateError(f"line {spec.line}: the job has no pytorchReplicaSpecs with a template")
    found.pods(templates[0])
    if len(templates) > 1:
        found.changed(templates[1], f"all nodes run the command of {templates[0].path.split('.')[-2]}")
    policy = spec.get("elasticPolicy")
    if nproc := spec.get("nprocPerNode") or (policy and policy.get("nProcPerNode")):
        found.option(nproc, "nproc-per-node", wins=False)
    _nodes(kinds, policy, found)
    if policy:
        _elastic_policy(policy, found)
    for kind in kinds:
        if restart := kind.get("restartPolicy"):
            found.changed(restart, "keepstep replaces a rank that dies; if that fails, it restarts all of them")
        found.rest(kind, {"replicas", "template", "restartPolicy"})
    run = spec.get("runPolicy")
    if (retries := run and run.get("backoffLimit")) and "max-restarts" not in found.options:
        found.option(retries, "max-restarts", wins=False)
    found.rest(run, {"backoffLimit"}, _NO_COUNTERPART)
    found.rest(spec, {"pytorchReplicaSpecs", "nprocPerNode", "elasticPolicy", "runPolicy"})
    return found


def _nodes(kinds: list[Field], policy: Field | None, found: Settings) -> None:
    count = sum(kind.number("replicas", 1) for kind in kinds)
    least = policy.number("minReplicas", count) if policy else count
    most = policy.number("maxReplicas", count) if policy else count
    found.nodes = f"{least}:{most}" if most > least else str(least)
    if found.nodes != "1":
        found.option(kinds[0], "nnodes", found.nodes)


def _elastic_policy(policy: Field, found: Settings) -> None:
    if restarts := policy.get("maxRestarts"):
        found.option(restarts, "max-restarts", wins=False)
    if name := policy.get("rdzvId"):
        found.option(name, "rdzv-id", wins=False)
    if conf := policy.get("rdzvConf"):
        times = {each.text("key"): each.text("value") for each in conf.items()}
        if seconds := times.get("join_timeout", times.get("timeout")):
            found.option(conf, "join-timeout", seconds)
        else:
            found.changed(conf, "left out: --join-timeout says how long nodes may take to join")
    for key in ("rdzvBackend", "rdzvHost", "rdzvPort", "standalone"):
        if given := policy.get(key):
            found.changed(given, "left out: node 0 serves the rendezvous itself")
    read_here = {"minReplicas", "maxReplicas", "nProcPerNode", "maxRestarts", "rdzvId", "rdzvConf"}
    found.rest(policy, {*read_here, "rdzvBackend", "rdzvHost", "rdzvPort", "standalone"}, _NO_COUNTERPART)

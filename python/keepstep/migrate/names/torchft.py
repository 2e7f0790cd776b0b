"""Names of torchft."""

from __future__ import annotations

from keepstep.migrate.names.name import Group, Name

TORCHFT = Group(
    ("torchft",),
    "docs/how-to/migrate_from_torchft.md",
    (
        Name(
            ("Manager",),
            "`Manager(state_dict=, load_state_dict=)`",
            "fields of the `keepstep.State` that `build()` returns",
        ),
        Name(
            ("Manager(min_replica_size=)",),
            "`Manager(min_replica_size=)`, `--min_replicas`",
            "`--min-replicas` in an elastic job",
        ),
        Name(("Manager(init_sync=)",), "`init_sync`", "nothing: all processes build the same from `--seed`"),
        Name(
            ("Manager(timeout=)", "Manager(quorum_timeout=)", "Manager(connect_timeout=)"),
            "`timeout`, `quorum_timeout`, `connect_timeout`, heartbeats",
            "nothing to tune for a death; hangs: `--hang-timeout`",
        ),
        Name(("Manager(max_retries=)",), "`max_retries`", "`--max-restarts`, `--node-faults`"),
        Name(
            ("Manager(world_size_mode=)",),
            "`WorldSizeMode.FIXED_WITH_SPARES`",
            "`--spares`: a spare has no rank until it replaces one",
        ),
        Name(
            ("ProcessGroupGloo", "ProcessGroupNCCL"),
            "`ProcessGroupGloo`, `ProcessGroupNCCL`",
            "nothing: `run.ddp` makes the process group",
        ),
        Name(
            ("Manager(checkpoint_transport=)", "HTTPTransport", "PGTransport"),
            "`checkpoint_transport`, `HTTPTransport`, `PGTransport`",
            "nothing",
        ),
        Name(("DistributedDataParallel",), "`torchft.DistributedDataParallel(manager, model)`", "`run.ddp(model)`"),
        Name(
            ("Optimizer", "OptimizerWrapper"),
            "`Optimizer(manager, optim)`, `OptimizerWrapper`",
            "the optimizer itself",
        ),
        Name(
            ("DistributedSampler",),
            "`torchft.DistributedSampler`, `StatefulDataLoader`",
            "`run.steps(dataset, ...)`, or `keepstep.data.cached(loader)`",
        ),
        Name(("LocalSGD", "DiLoCo"), "`LocalSGD`, `DiLoCo`", "no counterpart"),
    ),
)

"""torch's names for distributed training."""

from __future__ import annotations

from keepstep.migrate.names.name import Group, Name

TORCH = Group(
    ("torch", "torchdata"),
    "docs/how-to/migrate_from_torchrun.md",
    (
        Name(
            ("init_process_group", "destroy_process_group"),
            "`init_process_group(...)`, `destroy_process_group()`",
            "nothing",
        ),
        Name(("DistributedDataParallel",), "`DistributedDataParallel(model)`", "`run.ddp(model)`"),
        Name(
            ("fully_shard", "init_device_mesh"),
            "`fully_shard(model)`, `init_device_mesh(...)`",
            "the same, in `run.setup(build, sharded=True)` "
            "([a whole script](../reference/api.md#a-whole-script-with-fsdp2))",
        ),
        Name(
            ("FullyShardedDataParallel",),
            "`FullyShardedDataParallel` (FSDP1)",
            "no counterpart: `fully_shard` (FSDP2)",
        ),
        Name(
            ("ZeroRedundancyOptimizer",),
            "`ZeroRedundancyOptimizer`",
            "the same, in `run.setup(build, sharded=True)`; `step.commit(optimizer.step, communicates=True)`",
        ),
        Name(
            ("DistributedSampler", "StatefulDataLoader"),
            "`DataLoader` with a `DistributedSampler`, `set_epoch`",
            "`run.steps(dataset, ...)`; or `run.steps(keepstep.data.cached(loader), ...)` with a loader of the global "
            "order, without a `DistributedSampler` ([data.md](../reference/data.md))",
        ),
        Name(
            ("GradScaler",),
            "`scaler.step(optimizer); scaler.update()`",
            "`step.commit(lambda: scaler.step(optimizer), scaler.update)`",
        ),
        Name(
            ("torch.save", "torch.load"),
            "`torch.save` every N steps, `torch.load` at the start",
            "`run.checkpoint(keepstep.Destination(url, every_steps=N))`, or nothing",
        ),
        Name(
            ("checkpoint.save", "checkpoint.async_save", "checkpoint.load"),
            "`dcp.save`, `dcp.async_save`, `dcp.load`",
            "the same, or with [`Writer` and `Reader`](../reference/checkpoint.md#writer-and-reader)",
        ),
    ),
)

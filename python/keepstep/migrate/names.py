"""Names in training scripts, and what becomes of each.

The two texts of a name are a row of the table on the page that its group names; `tests/python_migrate/test_names.py`
compares them. So they are Markdown, and links in them lead on from that page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """``looks_like``: what to look for. ``HPWrapper(abort=)`` is an argument of a call, ``checkpoint.save`` a name in a
    module."""

    looks_like: tuple[str, ...]
    theirs: str
    ours: str


@dataclass(frozen=True)
class Group:
    """Names of packages whose own name begins so."""

    packages: tuple[str, ...]
    page: str
    names: tuple[Name, ...]


HYPERPOD = Group(
    ("hyperpod_", "amzn_sagemaker_checkpointing"),
    "docs/how-to/migrate_from_hyperpod.md",
    (
        Name(
            ("wait_rank",),
            "`wait_rank()` at the top of the script",
            "nothing: a process waits when it first asks for its rank",
        ),
        Name(
            ("HPWrapper", "HPCallWrapper"),
            "`@HPWrapper(...)` around `run_main(cfg, caller)`, `HPCallWrapper`",
            "`@keepstep.recoverable` on `train(run, cfg)`; `run` is a `keepstep.Run`",
        ),
        Name(
            (
                "HPWrapper(abort=)", "Abort", "AbortTorchDistributed", "HPAbortTorchDistributed", "HPCheckpointingAbort",
                "HPDataLoaderAbort", "CheckpointlessAbortManager", "Compose",
            ),
            "`HPWrapper(abort=)`: `HPAbortTorchDistributed`, `HPCheckpointingAbort`, `HPDataLoaderAbort`, "
            "`CheckpointlessAbortManager`, `Compose`",
            "nothing: keepstep interrupts collectives and ends their process groups; saves that all ranks have handed "
            'over go on. What your own `Abort` does: `run.on("interrupt", function)`',
        ),
        Name(
            ("AbortTransformerEngine",),
            "`AbortTransformerEngine`",
            "no counterpart: keepstep does not know Transformer Engine",
        ),
        Name(
            ("HPWrapper(finalize=)", "Finalize", "ThreadedFinalize", "CheckpointlessFinalizeCleanup"),
            "`HPWrapper(finalize=)`: `CheckpointlessFinalizeCleanup`, `ThreadedFinalize`",
            "nothing: model, optimizer and data stay in the process. What your own `Finalize` does: "
            '`run.on("interrupt", function)`',
        ),
        Name(
            ("HPWrapper(health_check=)", "HealthCheck", "CudaHealthCheck"),
            "`HPWrapper(health_check=)`: `CudaHealthCheck`",
            "built in (`--health-check`); your own: `@keepstep.recoverable(health_check=...)`, a function without "
            "arguments that raises",
        ),
        Name(
            ("FaultCounter",),
            "`FaultCounter(max_rank_faults=)`",
            "`--node-faults` and `--fault-window` count the faults of a node",
        ),
        Name(
            ("HPWrapper(hp_api_factory=)", "HPAgentK8sAPIFactory"),
            "`HPWrapper(hp_api_factory=)`: `HPAgentK8sAPIFactory`",
            "nothing: ranks find the agent of their node by themselves",
        ),
        Name(
            ("HPWrapper(abort_timeout=)",),
            "`HPWrapper(abort_timeout=)`",
            "`@keepstep.recoverable(interrupt_timeout_s=)`, in seconds too",
        ),
        Name(
            ("HPWrapper(checkpoint_manager=)",),
            "`HPWrapper(checkpoint_manager=)`",
            "nothing: what survives are the fields of the `keepstep.State` that `build()` returns to `run.setup(build)`",
        ),
        Name(
            ("HPWrapper(enabled=)",),
            "`HPWrapper(enabled=False)`",
            "call the function without the decorator; a recoverable one works under `keepstep run` only",
        ),
        Name(
            ("HPWrapper(async_raise_before_abort=)", "HPWrapper(early_abort_communicator=)"),
            "`HPWrapper(async_raise_before_abort=, early_abort_communicator=)`",
            "nothing: an interrupted collective ends at once, and the rank leaves at the next fixed point of its step",
        ),
        Name(
            ("HPWrapper(trace_file_path=)", "StartupOverheadTracer"),
            "`HPWrapper(trace_file_path=)`, `StartupOverheadTracer`",
            "no counterpart; `keepstep report` shows the phases of each recovery",
        ),
        Name(("HPWrapper(check_memory_status=)",), "`HPWrapper(check_memory_status=)`", "no counterpart"),
        Name(
            ("RankShouldRestart",),
            "`RankShouldRestart`",
            "`keepstep.Interruption`, a `BaseException` too: let it pass",
        ),
        Name(
            ("CheckpointManager",),
            "`CheckpointManager(enable_checksum=, enable_offload=)`",
            "nothing: hydration is always checksummed, from live tensors",
        ),
        Name(
            ("PEFTCheckpointManager", "CheckpointTransform"),
            "`PEFTCheckpointManager` (adapters apart from the base model), `CheckpointTransform`",
            "nothing: parameters that nothing trains are neither sent to a replacement nor saved ([lora.md](lora.md)). "
            "Apply the adapters in `build`",
        ),
        Name(
            ("CheckpointlessMegatronStrategy",),
            "`CheckpointlessMegatronStrategy(num_distributed_optimizer_instances=2)`",
            "copies or parity of sharded state: `@keepstep.recoverable(redundancy=keepstep.Copies(2))`. Megatron itself "
            "has no counterpart",
        ),
        Name(
            ("CheckpointlessCallback", "ParameterUpdateLock", "patch_megatron_optimizer"),
            "`CheckpointlessCallback`, `ParameterUpdateLock`, `patch_megatron_optimizer`",
            "`step.commit`: all ranks vote, then update",
        ),
        Name(
            ("CheckpointlessCompatibleConnector", "CheckpointlessAutoResume"),
            "`CheckpointlessCompatibleConnector`, `CheckpointlessAutoResume`",
            "nothing; with `run.checkpoint` a new job begins with the newest checkpoint",
        ),
        Name(
            ("MMAPDataModule", "CheckpointlessDataModule"),
            "`MMAPDataModule(data_module=)`, `CheckpointlessDataModule`",
            "`keepstep.data.cached(loader)`, with a loader of the global order ([data.md](../reference/data.md))",
        ),
        Name(
            ("MMAPDataModule(parallel_state_util=)", "MMAPDataModule(is_data_loading_rank=)", "DataModuleEpochCallback"),
            "`MMAPDataModule(parallel_state_util=, is_data_loading_rank=)`, `DataModuleEpochCallback`",
            "nothing: one process per node loads for all its ranks; epochs follow one another",
        ),
        Name(
            ("CacheResumeMMAPConfig", "MMAPDataModule(mmap_config=)"),
            "`CacheResumeMMAPConfig(prefetch_length=10, lookback_length=2)`, `MMAPDataModule(mmap_config=)`",
            "`keepstep.data.cached(loader, ahead=10, behind=2)`",
        ),
        Name(
            ("CacheResumeMMAPConfig(cache_dir=)", "CacheResumeMMAPConfig(checkpoint_frequency=)"),
            "`CacheResumeMMAPConfig(cache_dir=, checkpoint_frequency=)`",
            "nothing: batches are in shared memory (`limit_bytes=` bounds it); each commit contains the position",
        ),
        Name(
            ("CacheResumeMMAPConfig(model_parallel_group=)",),
            "`CacheResumeMMAPConfig(model_parallel_group=)`",
            "`run.steps(mesh=...)`: ranks at the same position in it get the same samples",
        ),
        Name(
            ("CacheResumeMMAPConfig(val_prefetch_length=)", "CacheResumeMMAPConfig(enable_batch_encryption=)"),
            "`CacheResumeMMAPConfig(val_prefetch_length=, enable_batch_encryption=)`",
            "no counterpart: validation loaders stay as they are, and batches in memory are not encrypted",
        ),
        Name(
            ("HPFaultInjectionCallback", "TestFaultConfig"),
            "`HPFaultInjectionCallback`, `TestFaultConfig` (`test_fault_config`)",
            "`keepstep run --inject`, `keepstep inject`, `keepstep certify`",
        ),
        Name(
            ("DataCorrectnessCallback",),
            "`DataCorrectnessCallback`",
            "`keepstep certify`: compares samples, losses and state after each fault",
        ),
        Name(
            ("elastic_event_detected",),
            "`if elastic_event_detected(): save, exit`; all processes restart and reload from DCP",
            "nothing in a recoverable function: processes stay, the world changes between two steps. Elsewhere "
            "[`keepstep.elastic_event_detected()`](../reference/elastic.md#keepstepelastic_event_detected---bool), used "
            "alike",
        ),
        Name(
            ("SageMakerCheckpointConfig",),
            "`SageMakerCheckpointConfig(namespace=, world_size=, s3_tier_base_path=, save_to_s3=)`",
            '`run.checkpoint(keepstep.Destination("s3://bucket/run", every_steps=1000, keep_last=3))`; a disk is one more '
            "`Destination`",
        ),
        Name(
            ("SageMakerTieredStorageWriter", "SageMakerTieredStorageReader"),
            "`SageMakerTieredStorageWriter`, `SageMakerTieredStorageReader` in `dcp.async_save`, `dcp.load`",
            "`keepstep.torch.checkpoint.Writer`, `Reader`: also under other launchers",
        ),
    ),
)

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
            "the same, in `run.setup(build, sharded=True)` ([a whole script](../reference/api.md#a-whole-script-with-fsdp2))",
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
        Name(
            ("DistributedDataParallel",), "`torchft.DistributedDataParallel(manager, model)`", "`run.ddp(model)`"
        ),
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
        Name(
            ("LocalSGD", "DiLoCo"), "`LocalSGD`, `DiLoCo`", "no counterpart"
        ),
    ),
)

LIBRARIES = Group(
    ("transformers", "accelerate", "lightning", "pytorch_lightning", "nemo", "megatron", "deepspeed"),
    "docs/reference/migrate.md",
    (
        Name(
            ("transformers.Trainer", "transformers.Seq2SeqTrainer"),
            "`transformers.Trainer`",
            "`recoverable(trainer)` ([hugging_face.md](../how-to/hugging_face.md))",
        ),
        Name(
            ("accelerate.Accelerator",),
            "`accelerate.Accelerator`",
            "`keepstep.integrations.accelerate.Accelerator` ([accelerate.md](../how-to/accelerate.md))",
        ),
        Name(
            ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
            "`Trainer` of Lightning and of NeMo",
            "no counterpart: write the loop ([existing_loop.md](../how-to/existing_loop.md)). Unchanged, it restarts from "
            "its checkpoint",
        ),
        Name(("megatron.core", "deepspeed.initialize"), "Megatron-Core, DeepSpeed", "no counterpart"),
    ),
)

GROUPS = (HYPERPOD, TORCH, TORCHFT, LIBRARIES)

"""Names of HyperPod: hyperpod_checkpointless_training 1.0.1, its elastic agent, tiered checkpointing."""

from __future__ import annotations

from keepstep.migrate.names.name import Group, Name

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
                "HPWrapper(abort=)",
                "Abort",
                "AbortTorchDistributed",
                "HPAbortTorchDistributed",
                "HPCheckpointingAbort",
                "HPDataLoaderAbort",
                "CheckpointlessAbortManager",
                "Compose",
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
            "nothing: what survives are the fields of the `keepstep.State` that `build()` returns to "
            "`run.setup(build)`",
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
            "copies or parity of sharded state: `@keepstep.recoverable(redundancy=keepstep.Copies(2))`. Megatron "
            "itself has no counterpart",
        ),
        Name(
            ("CheckpointlessCallback", "ParameterUpdateLock", "patch_megatron_optimizer"),
            "`CheckpointlessCallback`, `ParameterUpdateLock`, `patch_megatron_optimizer`",
            "`step.commit`: all ranks vote, then update",
        ),
        Name(
            ("CheckpointlessCompatibleConnector", "CheckpointlessAutoResume"),
            "`CheckpointlessCompatibleConnector`, `CheckpointlessAutoResume`",
            "nothing; with `run.checkpoint` a new job begins with the newest checkpoint. With Lightning: "
            '`Trainer(strategy="keepstep", plugins=[KeepstepCheckpointIO()])` '
            "([lightning.md](lightning.md#checkpoints-in-the-background))",
        ),
        Name(
            ("MMAPDataModule", "CheckpointlessDataModule"),
            "`MMAPDataModule(data_module=)`, `CheckpointlessDataModule`",
            "`keepstep.data.cached(loader)`, with a loader of the global order ([data.md](../reference/data.md))",
        ),
        Name(
            (
                "MMAPDataModule(parallel_state_util=)",
                "MMAPDataModule(is_data_loading_rank=)",
                "DataModuleEpochCallback",
            ),
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
            "[`keepstep.elastic_event_detected()`](../reference/elastic.md#keepstepelastic_event_detected---bool), "
            "used alike",
        ),
        Name(
            ("SageMakerCheckpointConfig",),
            "`SageMakerCheckpointConfig(namespace=, world_size=, s3_tier_base_path=, save_to_s3=)`",
            '`run.checkpoint(keepstep.Destination("s3://bucket/run", every_steps=1000, keep_last=3))`; a disk is one '
            "more `Destination`",
        ),
        Name(
            ("SageMakerTieredStorageWriter", "SageMakerTieredStorageReader"),
            "`SageMakerTieredStorageWriter`, `SageMakerTieredStorageReader` in `dcp.async_save`, `dcp.load`",
            "`keepstep.torch.checkpoint.Writer`, `Reader`: also under other launchers",
        ),
    ),
)

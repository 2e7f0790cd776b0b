"""Training loops of other libraries."""

from __future__ import annotations

from keepstep.migrate.names.name import Group, Name

LIBRARIES = Group(
    ("transformers", "accelerate", "lightning", "pytorch_lightning", "nemo", "megatron", "deepspeed", "torchtitan"),
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
            ("lightning.Trainer", "lightning.pytorch.Trainer"),
            "`lightning.Trainer`",
            '`Trainer(strategy="keepstep")` ([lightning.md](../how-to/lightning.md))',
        ),
        Name(
            ("lightning.Fabric", "lightning.fabric.Fabric"),
            "`lightning.Fabric`",
            '`Fabric(strategy="keepstep")` ([lightning.md](../how-to/lightning.md#fabric))',
        ),
        Name(
            (
                "lightning.pytorch.plugins.io.AsyncCheckpointIO",
                "lightning.pytorch.plugins.AsyncCheckpointIO",
                "lightning.fabric.plugins.io.TorchCheckpointIO",
                "lightning.fabric.plugins.TorchCheckpointIO",
            ),
            "Lightning's `AsyncCheckpointIO`, `TorchCheckpointIO`",
            "`KeepstepCheckpointIO` ([lightning.md](../how-to/lightning.md#checkpoints-in-the-background))",
        ),
        Name(
            ("pytorch_lightning.Trainer",),
            "`Trainer` of `pytorch_lightning` and of NeMo",
            "no counterpart: write the loop ([existing_loop.md](../how-to/existing_loop.md)). Unchanged, it restarts "
            "from its checkpoint",
        ),
        Name(
            ("torchtitan.trainer.Trainer", "torchtitan.train.main"),
            "torchtitan",
            "`keepstep.integrations.torchtitan.recoverable(config)`, on CPUs "
            "([torchtitan.md](../how-to/torchtitan.md))",
        ),
        Name(
            ("megatron.core",),
            "Megatron-Core",
            "`keepstep.integrations.megatron.recoverable`, on CPUs ([megatron.md](../how-to/megatron.md))",
        ),
        Name(("deepspeed.initialize",), "DeepSpeed", "no counterpart"),
    ),
)

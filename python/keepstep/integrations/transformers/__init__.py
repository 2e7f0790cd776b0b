"""Hugging Face's Trainer under keepstep (tested with transformers 5.23).

    from keepstep.integrations.transformers import recoverable

    trainer = recoverable(Trainer(model=model, args=args, train_dataset=data))
    trainer.train()

Import it before ``TrainingArguments`` are made.
"""

from __future__ import annotations

from keepstep.integrations.accelerate.process_state import follow_ranks
from keepstep.integrations.transformers.lz_penalty import LZPenalty
from keepstep.integrations.transformers.trainer import RecoverableTrainer, recoverable

follow_ranks()

__all__ = ["LZPenalty", "RecoverableTrainer", "recoverable"]

"""torchtitan under keepstep (tested with 0.3 on CPUs).

    from keepstep.integrations.torchtitan import recoverable

    trainer = recoverable(config)  # in place of config.build()
    trainer.train()

``keepstep run -m keepstep.integrations.torchtitan`` is ``torchtitan.train`` with such a trainer.
"""

from __future__ import annotations

from keepstep.integrations.torchtitan.trainer import RecoverableTrainer, recoverable

__all__ = ["RecoverableTrainer", "recoverable"]

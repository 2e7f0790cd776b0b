"""Lightning under keepstep (tested with 2.6).

import keepstep.integrations.lightning  # before Lightning: a spare then imports it without a rank
import lightning as L

trainer = L.Trainer(strategy="keepstep", ...)
trainer.fit(model, datamodule)
"""

from __future__ import annotations

from keepstep.integrations.place import without_waiting

with without_waiting():
    from lightning.pytorch.strategies import StrategyRegistry

    from keepstep.integrations.lightning.checkpoint_io import KeepstepCheckpointIO
    from keepstep.integrations.lightning.environment import follow_ranks
    from keepstep.integrations.lightning.strategy import KeepstepStrategy

follow_ranks()
if "keepstep" not in StrategyRegistry:
    StrategyRegistry.register("keepstep", KeepstepStrategy, "recovers from faults without losing a step")

__all__ = ["KeepstepCheckpointIO", "KeepstepStrategy"]

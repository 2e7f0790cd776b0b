"""Lightning under keepstep (tested with 2.6).

import keepstep.integrations.lightning  # before Lightning: a spare then imports it without a rank
import lightning as L

trainer = L.Trainer(strategy="keepstep", ...)
trainer.fit(model, datamodule)

fabric = keepstep.integrations.lightning.Fabric()  # L.Fabric(strategy="keepstep"), launched
...  # set up model, optimizer and data
fabric.launch(train)
"""

from __future__ import annotations

from keepstep.integrations.place import without_waiting

with without_waiting():
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.pytorch.strategies import StrategyRegistry

    from keepstep.integrations.lightning.checkpoint_io import KeepstepCheckpointIO
    from keepstep.integrations.lightning.environment import follow_ranks
    from keepstep.integrations.lightning.fabric.fabric import Fabric
    from keepstep.integrations.lightning.fabric.strategy import KeepstepFabricStrategy
    from keepstep.integrations.lightning.sharded import KeepstepModelParallelStrategy
    from keepstep.integrations.lightning.strategy import KeepstepStrategy

follow_ranks()
for registry, strategy in (
    (StrategyRegistry, KeepstepStrategy),
    (StrategyRegistry, KeepstepModelParallelStrategy),
    (STRATEGY_REGISTRY, KeepstepFabricStrategy),
):
    if strategy.strategy_name not in registry:
        registry.register(strategy.strategy_name, strategy, "recovers from faults without losing a step")

__all__ = [
    "Fabric",
    "KeepstepCheckpointIO",
    "KeepstepFabricStrategy",
    "KeepstepModelParallelStrategy",
    "KeepstepStrategy",
]

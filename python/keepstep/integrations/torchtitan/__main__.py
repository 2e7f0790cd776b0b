"""``torchtitan.train`` with recoverable trainers: the same options, started by ``keepstep run -m``."""

from __future__ import annotations

from torchtitan import train
from torchtitan.trainer import Trainer

from keepstep.integrations.torchtitan.trainer import recoverable

if __name__ == "__main__":
    Trainer.Config.build = lambda config: recoverable(config)  # what its main() calls
    train.main()

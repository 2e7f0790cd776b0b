"""Accelerate under keepstep (tested with 1.15).

from keepstep.integrations.accelerate import Accelerator

accelerator = Accelerator()
model, optimizer, loader, evaluation, schedule = accelerator.prepare(model, optimizer, loader, evaluation, schedule)

@accelerator.recoverable
def train():
    for epoch in accelerator.epochs(3):
        for batch in loader:
            ...

train()
"""

from __future__ import annotations

from keepstep.integrations.accelerate.accelerator import Accelerator
from keepstep.integrations.accelerate.process_state import follow_ranks

follow_ranks()

__all__ = ["Accelerator"]

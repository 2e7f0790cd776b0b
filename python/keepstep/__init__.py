"""keepstep: training that keeps step.

Any distributed PyTorch job survives faults without losing a step. Put ``@keepstep.recoverable`` on the training
function, build its state in ``run.setup``, change it in ``step.commit``, and start the script with ``keepstep run``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepstep._destination import Destination
from keepstep._elastic_event import elastic_event_detected
from keepstep._entry import Entry
from keepstep._errors import Interruption, JobOver, KeepstepError
from keepstep._recoverable import recoverable
from keepstep._redundancy import Copies, Parity
from keepstep._state import State
from keepstep.scaling import ScaleConfig, scale_config, scaled_lr

if TYPE_CHECKING:
    from keepstep import data as data
    from keepstep import torch as torch
    from keepstep.publications.subscription import subscribe as subscribe
    from keepstep.torch.reduction import reduce as reduce
    from keepstep.torch.runtime.run import Run as Run
    from keepstep.torch.step import veto as veto
    from keepstep.torch.step.open_step import CommittedStep as CommittedStep
    from keepstep.torch.step.steps import Step as Step

__version__ = "0.2.0"
__all__ = [
    "CommittedStep",
    "Copies",
    "Destination",
    "Entry",
    "Interruption",
    "JobOver",
    "KeepstepError",
    "Parity",
    "Run",
    "ScaleConfig",
    "State",
    "Step",
    "__version__",
    "elastic_event_detected",
    "recoverable",
    "reduce",
    "scale_config",
    "scaled_lr",
    "subscribe",
    "veto",
]

# Imported when one of them is used: most need torch.
_MODULES = {
    "data": "keepstep.data",
    "reduce": "keepstep.torch.reduction.reduce",
    "torch": "keepstep.torch",
    "veto": "keepstep.torch.step.veto",
}
_MEMBERS = {
    "CommittedStep": "keepstep.torch.step.open_step",
    "Run": "keepstep.torch.runtime.run",
    "Step": "keepstep.torch.step.steps",
    "subscribe": "keepstep.publications.subscription",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _MEMBERS:
        return getattr(import_module(_MEMBERS[name]), name)
    raise AttributeError(f"module 'keepstep' has no attribute '{name}'")

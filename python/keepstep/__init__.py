"""keepstep: training that keeps step.

Any distributed PyTorch job survives faults without losing a step. Put ``@keepstep.recoverable`` on the training
function, build in ``run.keep``, change state in ``run.commit``, and start the script with ``keepstep run``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepstep._elastic_event import elastic_event_detected
from keepstep._errors import Interruption, KeepstepError
from keepstep._recoverable import recoverable
from keepstep.scaling import ScaleConfig, scale_config, scaled_lr

if TYPE_CHECKING:
    from keepstep.torch.reduction import reduce as reduce
    from keepstep.torch.runtime.run import Run as Run
    from keepstep.torch.step import veto as veto
    from keepstep.torch.step.steps import Step as Step

__version__ = "0.1.0"
__all__ = [
    "Interruption",
    "KeepstepError",
    "ScaleConfig",
    "__version__",
    "elastic_event_detected",
    "recoverable",
    "scale_config",
    "scaled_lr",
]

# They need torch, which this package imports only when it is used.
_WHERE = {"reduce": "keepstep.torch.reduction.reduce", "veto": "keepstep.torch.step.veto"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return import_module(_WHERE[name])
    raise AttributeError(f"module 'keepstep' has no attribute '{name}'")

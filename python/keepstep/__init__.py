"""keepstep: training that keeps step.

Any distributed PyTorch job survives faults without losing a step. Put ``@keepstep.recoverable`` on the training
function, build in ``run.keep``, change state in ``run.commit``, and start the script with ``keepstep run``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keepstep._errors import Interruption, KeepstepError
from keepstep._recoverable import recoverable

if TYPE_CHECKING:
    from keepstep.torch.run import Run as Run
    from keepstep.torch.steps import Step as Step

__version__ = "0.1.0"
__all__ = ["Interruption", "KeepstepError", "__version__", "recoverable"]

"""Whether jobs here may shard their state with FSDP2."""

import pytest
from torch.distributed.fsdp import FSDPModule

needs_fsdp2 = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="FSDP2 of this torch cannot leave a step in the middle"
)

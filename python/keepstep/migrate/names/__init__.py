"""Names in training scripts, as tables that the pages on migration show too.

`tests/python_migrate/test_names.py` compares them with these pages.
"""

from keepstep.migrate.names.hyperpod import HYPERPOD
from keepstep.migrate.names.libraries import LIBRARIES
from keepstep.migrate.names.torch import TORCH
from keepstep.migrate.names.torchft import TORCHFT

GROUPS = (HYPERPOD, TORCH, TORCHFT, LIBRARIES)

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from harness import PYTHON

INSTALLED = PYTHON.parents[1] / ".keepstep-strangers"


@pytest.fixture(scope="module", autouse=True)
def packages():
    """What scripts/setup.sh installed for these scripts, for the jobs that these tests start; one thread a rank."""
    if PYTHON.parents[1].name == ".venv-oldest":
        pytest.skip("these packages are installed for the newest torch only")
    if not INSTALLED.exists() or not Path(INSTALLED.read_text().strip()).is_dir():
        pytest.fail("the packages of strangers' scripts are not installed: scripts/setup.sh strangers")
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=INSTALLED.read_text().strip(), OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    yield
    os.environ.clear()
    os.environ.update(before)

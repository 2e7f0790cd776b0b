"""A disk that takes its time when it is told to: who gives a file a certain name waits until it is let go."""

import os
import shutil
import sys
import time
from pathlib import Path

KEEPSTEP = Path(os.environ.get("KEEPSTEP_COMMAND") or shutil.which("keepstep", path=Path(sys.executable).parent))
SHIM = KEEPSTEP.resolve().parent / "libkeepstep_held_files.so"


class Held:
    """`name_ends`: of the files that are held. For processes that are started with `environment`."""

    def __init__(self, folder, name_ends):
        assert SHIM.exists(), f"{SHIM} is not built: make build"
        self.folder = folder
        folder.mkdir()
        (folder / "which").write_text(name_ends + "\n")
        os.mkfifo(folder / "gate")
        self.environment = {"LD_PRELOAD": str(SHIM), "KEEPSTEP_HELD_FILES": str(folder)}
        self._gate = -1

    def wait(self, count=1, limit_s=60):
        """Until so many are held: which process, and what it wanted to name."""
        deadline = time.monotonic() + limit_s
        while len(found := sorted(self.folder.glob("reached-*"))) < count:
            assert time.monotonic() < deadline, f"{len(found)} files were held, not {count}"
            time.sleep(0.01)
        return [(int(path.name.split("-")[1]), Path(path.read_text())) for path in found]

    def let_go(self):
        """Of those that are held, and of all that come."""
        if self._gate < 0:
            self._gate = os.open(self.folder / "gate", os.O_RDWR)
            (self.folder / "gate").unlink()

    def close(self):
        self.let_go()
        os.close(self._gate)

"""A copy of what sets a checkout up and builds it, in a folder of its own."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SET_UP = ("scripts", "pyproject.toml", "Makefile")


class Checkout:
    """`folder` with the real scripts; its environments need no packages, and its cache is its own."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        for name in SET_UP:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        (folder / "python").mkdir()
        (folder / "requirements-tests.lock").write_text("# What its tests need.\n")
        self.require("")

    def require(self, text):
        (self.folder / "requirements.lock").write_text(f"# What this checkout needs.\n{text}")

    def run(self, script, *, ok=True, **variables):
        """What `script` says in a shell in this folder."""
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment(**variables), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert (done.returncode == 0) is ok, f"{script}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def environment(self, **variables):
        """Of a shell in which nothing is activated."""
        ours = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHON", "MAKEFLAGS", "MAKELEVEL")  # PYTHON: of scripts/test_python.sh
        values = {name: value for name, value in os.environ.items() if name not in ours}
        values["PATH"] = os.pathsep.join(
            part for part in values["PATH"].split(os.pathsep) if not Path(part).parent.name.startswith(".venv")
        )
        values["XDG_CACHE_HOME"] = str(self.folder / "cache")
        return {**values, **variables}

    def prefix(self):
        """Where its interpreter says that it is."""
        return Path(self.run(".venv/bin/python -c 'import sys; print(sys.prefix)'").strip())

    def key(self):
        return (self.folder / ".venv" / ".keepstep-key").read_text().strip()

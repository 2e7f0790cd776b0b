"""Packages that keepstep is compared with, each in a separate environment, as none is a dependency of keepstep."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from keepstep.bench.harness.environment import BenchError


@dataclass(frozen=True)
class Peer:
    """A package in one version, installed below ~/.cache/keepstep-bench.

    Attributes:
        name: what it is called here.
        package, version: on PyPI.
        module: ``python -m module`` installs it.
    """

    name: str
    package: str
    version: str
    module: str

    @property
    def home(self) -> Path:
        return Path.home() / ".cache" / "keepstep-bench" / f"{self.name}-{self.version}"

    def python(self) -> str:
        """The interpreter with the package and this environment's torch. Raises BenchError if it is not installed."""
        python = self.home / "bin" / "python"
        if not python.exists():
            raise BenchError(
                f"{self.name} is not installed for the comparison; `python -m {self.module}` does it (into "
                f"{self.home}), or leave it out of --against"
            )
        return str(python)

    def install(self) -> None:
        """Creates a virtual environment that also sees this one's packages, and installs the package in it."""
        if self.home.exists():
            shutil.rmtree(self.home)
        subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=True)
        inside = self.home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        # Where this environment's packages are; a .pth file may place torch elsewhere.
        places = [sysconfig.get_path("purelib")]
        torch = find_spec("torch")
        if torch is not None and torch.origin is not None:
            places.append(str(Path(torch.origin).parents[1]))
        (inside / "keepstep_bench.pth").write_text("\n".join(places) + "\n")
        pip = [str(self.home / "bin" / "python"), "-m", "pip", "install", f"{self.package}=={self.version}"]
        subprocess.run(pip, check=True)

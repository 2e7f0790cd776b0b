"""Writes what a build is made of and links to, as a CycloneDX 1.6 bill of materials (JSON): `make sbom`.

The command and the extensions are asked themselves: `ldd` names the shared libraries, each of which is of a Debian
package; `keepstep version --json` names what is compiled in. Python packages are those that pyproject.toml asks for,
with what those need, as they are installed in the environment. https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]

Component = dict[str, Any]


def output(*command: str | Path) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def binaries(build: Path) -> list[Path]:
    """The command and the extensions."""
    found = [build / "keepstep", *sorted((ROOT / "python" / "keepstep").glob("*.so"))]
    if missing := [path for path in found if not path.is_file()]:
        raise SystemExit(f"sbom: {missing[0]} is not there; run make build first")
    return found


def shared_libraries(binary: Path) -> set[Path]:
    """What the loader would load with it."""
    return {Path(path).resolve() for path in re.findall(r"=> (/\S+)", output("ldd", binary))}


def package_of(library: Path) -> str | None:
    """The Debian package that a file is of; where /lib is a link to /usr/lib, packages may name either."""
    if shutil.which("dpkg-query") is None:
        return None
    for name in (library, Path(str(library).removeprefix("/usr"))):
        done = subprocess.run(["dpkg-query", "--search", str(name)], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(": ")[0].split(",")[0]
    return None


def debian(package: str, distribution: str) -> Component:
    """Of an installed package."""
    name, version, architecture = output(
        "dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}", package
    ).split()
    purl = f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    return component(name, version, f"{purl}&distro={distribution}")


def file(path: Path) -> Component:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    hashes = [{"alg": "SHA-256", "content": digest}]
    return {"type": "file", "bom-ref": f"file:{path.name}:{digest[:16]}", "name": path.name, "hashes": hashes}


def component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def compiled_in(versions: dict[str, str]) -> list[Component]:
    """Libraries by the versions that the build found, headers alone among them."""
    return [component(name.lower(), found, f"pkg:generic/{name.lower()}@{found}") for name, found in versions.items()]


def python_packages() -> list[Component]:
    """What an install of keepstep needs, and what that needs in turn."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting, found = list(project["dependencies"]), {}
    while waiting:
        wanted = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        version = importlib.metadata.version(name)
        found[name] = component(name, version, f"pkg:pypi/{name}@{version}")
        waiting += importlib.metadata.requires(name) or []
    return list(found.values())


def distribution() -> str:
    told = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return f"{told.get('ID', 'linux')}-{told.get('VERSION_ID', '')}".replace('"', "")


def bill(build: Path) -> dict[str, Any]:
    """The whole document."""
    made = binaries(build)
    told = json.loads(output(made[0], "version", "--json"))
    system = distribution()
    owners = {library: package_of(library) for library in set[Path]().union(*map(shared_libraries, made))}
    packages = {package for package in owners.values() if package is not None}
    parts = [
        *(debian(package, system) for package in packages),
        *(file(library) for library, package in owners.items() if package is None),
        *compiled_in(told["built_with"]),
        *python_packages(),
    ]
    parts.sort(key=lambda part: part["bom-ref"])
    files = [file(path) for path in made]
    whole = {"type": "application", "bom-ref": "keepstep", "name": "keepstep", "version": told["keepstep"]}
    refs = [part["bom-ref"] for part in [*files, *parts]]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Of the content, so that equal builds have equal bills.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([files, parts]))}",
        "version": 1,
        "metadata": {"component": whole},
        "components": [*files, *parts],
        "dependencies": [{"ref": "keepstep", "dependsOn": refs}],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="the build folder (default %(default)s)")
    parser.add_argument("--out", type=Path, help="a file (default: standard output)")
    chosen = parser.parse_args()
    text = json.dumps(bill(chosen.build), indent=2) + "\n"
    if chosen.out is None:
        sys.stdout.write(text)
    else:
        chosen.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

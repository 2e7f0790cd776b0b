"""`make wheel`, then what comes of its wheels on machines where nothing was prepared for them."""

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from fresh_root import HOME, USER, FreshRoot, why_not

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD_LIMIT_S = 7200
INSTALL_LIMIT_S = 3600  # torch and what it needs are 3 GB to fetch and 5 GB to unpack
WORK = f"{HOME}/my work"
PYTHON = f"{WORK}/venv/bin/python"
NEWEST_GLIBC = (2, 35)
S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def starts(python):
    return subprocess.run(["sh", "-c", f"{python} -c ''"], capture_output=True).returncode == 0


def interpreters():
    """Those to build with: PYTHONS, else one of each kind that this machine has by name."""
    if os.environ.get("PYTHONS"):
        return os.environ["PYTHONS"].split()
    found = []
    for names in (("python3.10",), ("python3.11",), ("python3.12", "python3.13", "python3.14")):
        found += [name for name in names if starts(name)][:1]
    return found


@pytest.fixture(scope="module")
def wheels():
    """What `make wheel` makes of the tree as it is, by the tag of Python and ABI."""
    if (missing := why_not()) is not None:
        pytest.skip(missing)
    for old in (ROOT / "dist").glob("*.whl"):
        old.unlink()
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True, timeout=BUILD_LIMIT_S,
                   env=os.environ | {"PYTHONS": " ".join(interpreters())})  # fmt: skip
    return {"-".join(path.stem.split("-")[2:4]): path for path in (ROOT / "dist").glob("*.whl")}


def wheel_for(wheels, tag):
    if tag not in wheels:
        pytest.skip(f"no wheel for {tag}: no such interpreter here (PYTHONS= names them)")
    return wheels[tag]


@pytest.mark.long
def test_a_wheel_has_everything_in_it_and_runs_with_an_old_c_library(wheels):
    assert wheels
    for wheel in wheels.values():
        version = re.search(r"manylinux_(\d+)_(\d+)_x86_64", wheel.name)
        assert version, f"{wheel.name} names no C library"
        assert tuple(map(int, version.groups())) <= NEWEST_GLIBC
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            assert any(name.endswith(".data/scripts/keepstep") for name in names)
            assert len([name for name in names if name.endswith(".so")]) == 2, names
            assert not [name for name in names if ".libs/" in name], "a library of this machine is in it"
            assert any(name.endswith("licenses/libssl-dev.txt") for name in names)


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "tag", "torch"),
    [
        ("jammy", "cp310-cp310", "2.14.1"),  # Python 3.10, for which there is no newer torch
        ("bookworm", "cp311-cp311", "2.11.0"),
        ("bookworm", "cp311-cp311", "2.15.0"),
        ("trixie", "cp312-abi3", "2.11.0"),  # Python 3.13
        ("trixie", "cp312-abi3", "2.15.0"),
        ("forky", "cp312-abi3", "2.15.0"),  # Python 3.14
    ],
)
def test_it_is_installed_survives_a_kill_and_leaves_nothing(wheels, versitygw_tls, tmp_path, suite, tag, torch):
    if (missing := why_not(suite)) is not None:
        pytest.skip(missing)
    wheel = wheel_for(wheels, tag)
    root = FreshRoot(tmp_path / "root", suite)
    try:
        for compiler in ("cc", "gcc", "g++", "clang", "make", "cmake"):
            assert not root.path(f"/usr/bin/{compiler}").exists()
        root.path(WORK).mkdir()
        os.chown(root.path(WORK), USER, USER)
        root.give(wheel, f"{HOME}/{wheel.name}")
        root.give(ROOT / "examples" / "gpt", f"{WORK}/gpt")
        for script in ("kill_a_rank.py", "talk_tls.py"):
            root.give(HERE / script, f"{HOME}/{script}")
        root.run("python3", "-m", "venv", f"{WORK}/venv", limit_s=600)
        # Torch alone, without compiling what is never imported.
        root.run(PYTHON, "-m", "pip", "install", "-q", "--no-compile", f"torch=={torch}", limit_s=INSTALL_LIMIT_S)
        before = root.files("/home", "/tmp", "/var/tmp")
        root.run(PYTHON, "-m", "pip", "install", "-q", f"{HOME}/{wheel.name}", limit_s=INSTALL_LIMIT_S)
        asked = "import torch; print(torch.__version__)"
        assert torch in root.run(PYTHON, "-c", asked, limit_s=300)

        keepstep = f"{WORK}/venv/bin/keepstep"
        assert "openssl" in root.run(keepstep, "version", "--json", limit_s=60)
        said = root.run(
            PYTHON, f"{HOME}/kill_a_rank.py", keepstep, f"{WORK}/gpt/train.py", f"{WORK}/runs", limit_s=1200
        )
        found = json.loads(said.splitlines()[-1])
        assert found["same"] and found["lost_steps"] == 0 and found["steps"] == found["last_step"] == 60, said
        assert found["killed"] == [9], said
        assert re.search(r"rank 1|ranks \(0, 1\)", found["stacks"]) and "train.py" in found["stacks"], said
        assert found["left_in_shm"] == [], said
        check_tls(root, versitygw_tls)

        root.run(PYTHON, "-m", "pip", "uninstall", "-q", "-y", "keepstep", limit_s=600)
        left = {path for path in root.files("/home", "/tmp", "/var/tmp") - before if "keepstep" in path}
        assert left <= {f"tmp/keepstep-{USER}"} and not list(root.path(f"/tmp/keepstep-{USER}").iterdir())
    finally:
        root.remove()


def check_tls(root, server):
    """A server whose certificate is trusted once it is where Debian keeps those, and Python's ssl beside it."""
    url = server.bucket().partition("&ca_file")[0]
    trusted = "/etc/ssl/certs/ca-certificates.crt"  # pip brought Debian's own
    words = (PYTHON, f"{HOME}/talk_tls.py", url, server.endpoint, trusted)
    keys = {name: value for name, value in server.environment().items() if name in S3_KEYS}
    assert "name those to trust by ca_file=" in root.run(*words, limit_s=600, ok=False, **keys)
    with root.path(trusted).open("ab") as file:
        file.write(server.certificate.read_bytes())
    assert root.run(*words, limit_s=600, **keys).splitlines() == ["ssl: 403", "store: hello beside torch keepstep"]

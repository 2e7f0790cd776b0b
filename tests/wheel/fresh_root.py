"""Fresh Debian and Ubuntu roots made with mmdebstrap, and commands that run in them as a user without root.

What is mounted is seen only by these commands, and goes with them. Needs root, mmdebstrap and unshare.
"""

import os
import shutil
import subprocess
from pathlib import Path

USER = 1000
HOME = "/home/user"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
UBUNTU_KEYS = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
MAKE_LIMIT_S = 1800
# $1: the root. /dev/shm is its own, so what a job leaves there can be seen.
ENTER = """
set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
root=$1
shift
exec chroot --userspec=1000:1000 "$root" "$@"  # USER
"""


def why_not(suite=""):
    """What is missing here, or None."""
    if os.geteuid() != 0:
        return "roots are made and entered as root"
    for program in ("mmdebstrap", "unshare", "chroot"):
        if shutil.which(program) is None:
            return f"no {program}: apt-get install mmdebstrap"
    if suite == "jammy" and not UBUNTU_KEYS.exists():
        return f"no {UBUNTU_KEYS}: it is in Ubuntu's package ubuntu-keyring"
    return None


class FreshRoot:
    def __init__(self, folder, suite):
        """The system's essential packages and Python with venv, nothing else; network settings are this machine's."""
        self.folder = Path(folder)
        components = ["--components=main,universe"] if suite == "jammy" else []  # Ubuntu's venv is in universe
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv", *components,
             '--aptopt=Acquire::Check-Valid-Until "false"',  # a mirror may be a snapshot
             suite, self.folder],
            capture_output=True, text=True, timeout=MAKE_LIMIT_S,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        for name in ("resolv.conf", "hosts"):
            shutil.copy(Path("/etc") / name, self.folder / "etc" / name)
        subprocess.run(
            ["chroot", self.folder, "useradd", "--create-home", "--uid", str(USER), "user"], check=True, timeout=60
        )
        # For pip alone: the root has no certificates of its own.
        if CERTIFICATES.exists():
            shutil.copy(CERTIFICATES, self.folder / "opt" / "pip.pem")

    def path(self, inside):
        return self.folder / str(inside).lstrip("/")

    def give(self, source, inside):
        """A copy that belongs to the user."""
        target = self.path(inside)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        for path in (target, *target.rglob("*")):
            os.chown(path, USER, USER)

    def run(self, *words, limit_s, ok=True, **variables):
        """Its output, standard error included. Variables come without any of the caller's, but for pip's."""
        values = {name: value for name, value in os.environ.items() if name.startswith("PIP_INDEX")}
        values |= {"PATH": "/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                   "PIP_NO_CACHE_DIR": "1"}  # fmt: skip
        if self.path("/opt/pip.pem").exists():
            values["PIP_CERT"] = "/opt/pip.pem"
        values |= variables
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", ENTER, "enter"]
        clean = ["env", "-i", *(f"{name}={value}" for name, value in values.items())]
        done = subprocess.run(
            [*enter, self.folder, *clean, *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
        )  # fmt: skip
        assert not ok or done.returncode == 0, f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout

    def files(self, *inside):
        """All paths below these folders, as seen in the root."""
        found = set()
        for folder in inside:
            found |= {str(path.relative_to(self.folder)) for path in self.path(folder).rglob("*")}
        return found

    def remove(self):
        shutil.rmtree(self.folder)

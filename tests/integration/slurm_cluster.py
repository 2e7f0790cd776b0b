"""A real Slurm cluster of several nodes on this machine: munged, slurmctld and one slurmd a node, all ours.

Nothing of the system's own Slurm is touched: configuration, sockets, spool and logs are in one folder. Nodes are named
after loopback addresses, so that their names mean something to everybody, as names of real nodes do.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from several_nodes import free_ports

PROGRAMS = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel"]
PACKAGES = "slurmctld slurmd slurm-client munge"
SEARCHED = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def why_not():
    """Why there can be no cluster here; None if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: {PACKAGES}; scripts/setup.sh installs them)"
    if os.geteuid() != 0:
        return "slurmd wants to be root"
    return None


class Cluster:
    """Use as a context manager."""

    def __init__(self, folder, nodes):
        self.folder = Path(folder)
        self.nodes = nodes
        self.processes = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.munge_socket = self.folder / "munge.socket"
        self._run(
            "munged", "--foreground", "--force", f"--socket={self.munge_socket}", f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        self._wait(self.munge_socket.exists, "munged listens")
        self._write_configuration()
        self._run("slurmctld", "-D", "-f", self.folder / "slurm.conf")
        for node in range(self.nodes):
            self._run("slurmd", "-D", "-N", f"127.0.0.{node + 1}", "-f", self.folder / "slurm.conf")
        self._wait(self._all_idle, "all nodes are idle")

    def _write_configuration(self):
        host = socket.gethostname()
        control, *ports = free_ports(1 + self.nodes)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={control}",
            f"SlurmUser={getpass.getuser()}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.munge_socket},cred_expire=5",  # a requeued job waits for that
            "CredType=cred/munge",
            "CommunicationParameters=NoAddrCache",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdLogFile={self.folder}/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/linear",
            "SlurmdParameters=config_overrides",
            "MpiDefault=none",
            "ReturnToService=2",
            "JobAcctGatherType=jobacct_gather/none",
            "KillWait=10",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,requeue_delay=0",
            *(
                f"NodeName=127.0.0.{node + 1} NodeHostname={host} Port={ports[node]} CPUs=2 State=UNKNOWN"
                for node in range(self.nodes)
            ),
            f"PartitionName=all Nodes=127.0.0.[1-{self.nodes}] Default=YES MaxTime=INFINITE State=UP",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def environment(self):
        """For a client of this cluster, with nothing of another one."""
        values = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "KEEPSTEP_"))}
        values["SLURM_CONF"] = str(self.folder / "slurm.conf")
        values["PATH"] = SEARCHED
        return values

    def _run(self, program, *args):
        log = open(self.folder / f"{program}.{len(self.processes)}.out", "wb")
        with log:
            self.processes.append(
                subprocess.Popen(
                    [shutil.which(program, path=SEARCHED), *map(str, args)], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, env=self.environment(), start_new_session=True,
                )
            )  # fmt: skip

    def client(self, *command, **how):
        """A finished command (scontrol, squeue, ...)."""
        return subprocess.run(
            [str(part) for part in command], env=self.environment(), capture_output=True, text=True, check=False, **how
        )

    def start(self, output, *command, variables=None, folder=None):
        """A command that runs (srun, ...); what it says goes to the file `output`."""
        with open(output, "wb") as out:
            return subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**self.environment(), **(variables or {})}, start_new_session=True, cwd=folder or self.folder,
            )  # fmt: skip

    def _all_idle(self):
        found = self.client("sinfo", "-h", "-N", "-o", "%T")
        return found.stdout.split() == ["idle"] * self.nodes

    def state(self, job):
        return self.client("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()

    def wait_for(self, done, what, limit_s=60):
        self._wait(done, what, limit_s)

    def _wait(self, done, what, limit_s=60):
        deadline = time.monotonic() + limit_s
        while not done():
            ended = [process.args for process in self.processes if process.poll() is not None]
            assert not ended, f"{ended} ended:\n{self.logs()}"
            assert time.monotonic() < deadline, f"not within {limit_s} s: {what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self):
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-2500:]}" for path in files)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()

"""`srun keepstep run` under a real Slurm of this machine: slurmctld, munged and a slurmd for each node."""

import json
import os
import signal
import stat

import pytest

import several_nodes
import slurm_cluster
from harness import JOBS, KEEPSTEP, PYTHON, json_lines

SHOW = 'echo "{\\"rank\\": $RANK, \\"node\\": $GROUP_RANK, \\"world\\": $WORLD_SIZE}"'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm") / "cluster", nodes=3) as running:
        yield running


@pytest.fixture
def slurm(cluster, tmp_path):
    """The cluster, with nothing of this test left behind."""
    tmp_path.chmod(0o755)
    yield Test(cluster, tmp_path)
    cluster.client("scancel", "-u", str(os.geteuid()), "--full")
    cluster.wait_for(lambda: cluster.client("squeue", "-h").stdout == "", "no job is left")


class Test:
    __test__ = False

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.variables = {"KEEPSTEP_PYTHON": str(PYTHON), "OMP_NUM_THREADS": "1", "HOME": str(folder / "home")}
        (folder / "home").mkdir()

    def srun(self, nodes, *command, options=(), variables=None):
        """Starts it; returns the process and the file with its output."""
        output = self.folder / f"srun{len(list(self.folder.glob('srun*.txt')))}.txt"
        process = self.cluster.start(
            output, "srun", "-N", nodes, "--ntasks-per-node=1", *options, *command,
            variables={**self.variables, **(variables or {})}, folder=self.folder,
        )  # fmt: skip
        return process, output

    def keepstep(self, nodes, *words, **how):
        return self.srun(nodes, KEEPSTEP, "run", *words, **how)

    def ends(self, process, output, limit_s=120):
        try:
            return process.wait(limit_s)
        except Exception:
            print(output.read_text(errors="replace"), self.cluster.logs())
            raise

    def job(self):
        (job,) = self.cluster.client("squeue", "-h", "-o", "%i").stdout.split()
        return job

    def notes(self):
        return [note for path in sorted(self.folder.glob("*.jsonl")) for note in json_lines(path)]

    def wait_for_step(self, step, output, restarts=0):
        def there():
            text = output.read_text(errors="replace") if output.exists() else ""
            assert "Traceback" not in text and "keepstep: error" not in text, text
            begun = sum("start" in note and note["restarts"] == restarts for note in self.notes())
            return begun and any(note.get("step", 0) >= step for note in self.notes())

        self.cluster.wait_for(there, f"step {step}", 120)

    def tokens_left(self):
        return [str(path) for path in (self.folder / "home").rglob("*") if path.is_file()]


def lines_of(output):
    return sorted((json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")),
                  key=lambda line: line["rank"])  # fmt: skip


def test_srun_alone_starts_a_job_of_all_its_nodes_and_leaves_no_token(slurm):
    process, output = slurm.keepstep(3, "--nproc-per-node", 2, "--no-python", "bash", "-c", SHOW)
    assert slurm.ends(process, output) == 0, output.read_text()
    assert lines_of(output) == [{"rank": i, "node": i // 2, "world": 6} for i in range(6)]
    assert slurm.tokens_left() == []
    folder = slurm.folder / "home" / ".keepstep"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_given_token_and_endpoint_count_before_slurms(slurm):
    (port,) = several_nodes.free_ports(1)
    process, output = slurm.keepstep(
        2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--no-python", "bash", "-c", 'echo "t ${KEEPSTEP_TOKEN-none}"',
        variables={"KEEPSTEP_TOKEN": "a token of this test, and no secret"},
    )  # fmt: skip
    assert slurm.ends(process, output) == 0, output.read_text()
    assert output.read_text().count("t none") == 2
    assert not (slurm.folder / "home" / ".keepstep").exists()


def test_several_tasks_on_a_node_are_refused_with_the_way_out(slurm):
    process, output = slurm.srun(2, KEEPSTEP, "run", "--no-python", "true", options=["--ntasks-per-node=2"])
    assert slurm.ends(process, output) == 2
    assert "srun started 4 tasks on 2 node(s)" in output.read_text()


def test_ranks_that_srun_started_have_one_store_on_all_nodes(slurm):
    rank = f"RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec {PYTHON} {JOBS / 'standalone.py'} across"
    process, output = slurm.srun(
        2, "bash", "-c", rank,
        variables={
            "KEEPSTEP_STORE": ",".join(f"127.0.0.1:{port}" for port in several_nodes.free_ports(2)),
            "KEEPSTEP_TOKEN": "a token of this test, and no secret",
            "KEEPSTEP_COMMAND": str(KEEPSTEP),
        },
    )  # fmt: skip
    assert slurm.ends(process, output) == 0, output.read_text()
    assert output.read_text().count("fine") == 2, output.read_text()


def test_where_no_folder_is_shared_a_node_says_where_it_looked(slurm):
    alone = slurm.folder / "alone.sh"
    alone.write_text(
        "#!/bin/bash\nmkdir -p $PWD/home$SLURM_NODEID && export HOME=$PWD/home$SLURM_NODEID\n"
        f"exec {KEEPSTEP} run --join-timeout 2 --no-python true\n"
    )
    alone.chmod(0o755)
    process, output = slurm.srun(2, alone)
    assert slurm.ends(process, output) == 1
    assert "node 0 left no job token at" in output.read_text(), output.read_text()
    assert "KEEPSTEP_TOKEN=$(openssl rand -hex 32) srun keepstep run" in output.read_text()


def test_usr1_to_a_step_stops_all_ranks_after_the_same_step(slurm):
    process, output = slurm.keepstep(2, JOBS / "noticed.py", "--out", slurm.folder)
    slurm.wait_for_step(3, output)
    # Slurm signals every process of the step: zygotes and workers too.
    assert slurm.cluster.client("scancel", "--signal=USR1", f"{slurm.job()}.0").returncode == 0
    assert slurm.ends(process, output) == 75, output.read_text()
    assert_saved_alike(slurm, 2)
    assert "Killed" not in output.read_text() and "died" not in output.read_text(), output.read_text()


def assert_saved_alike(slurm, world):
    notes = slurm.notes()
    last = {note["rank"]: note["step"] for note in notes if "step" in note}
    saved = {note["rank"]: note["saving"] for note in notes if "saving" in note}
    assert saved == last and len(saved) == world and len(set(saved.values())) == 1, notes
    assert not any("finished" in note for note in notes), notes


def batch(slurm, *, until, options=(), lines=()):
    script = slurm.folder / "job.sh"
    (slurm.folder / "log").mkdir(exist_ok=True)
    command = [
        KEEPSTEP, "run", "--on-notice", "requeue", "--journal", "log/journal-${SLURM_RESTART_COUNT:-0}",
        JOBS / "noticed.py", "--out", slurm.folder, "--until", until,
    ]  # fmt: skip
    script.write_text(
        "\n".join(
            [
                "#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append",
                f"#SBATCH --output={slurm.folder}/batch.txt", *lines,
                "srun " + " ".join(map(str, command)), 'echo "srun ended with $?"',
            ]
        )
        + "\n"
    )  # fmt: skip
    submitted = slurm.cluster.start(
        slurm.folder / "sbatch.txt", "sbatch", "--parsable", *options, script, variables=slurm.variables,
        folder=slurm.folder,
    )  # fmt: skip
    assert submitted.wait(60) == 0, (slurm.folder / "sbatch.txt").read_text()
    return (slurm.folder / "sbatch.txt").read_text().strip(), slurm.folder / "batch.txt"


@pytest.mark.long
def test_a_job_that_is_told_before_its_end_saves_is_requeued_and_goes_on(slurm):
    job, output = batch(slurm, until=1000)
    slurm.wait_for_step(3, output)
    slurm.cluster.client("scancel", "--signal=USR1", job)  # what `--signal=USR1@60` does 60 s before the end
    slurm.cluster.wait_for(lambda: (slurm.folder / "saved.pt").exists(), "it saved")
    slurm.wait_for_step(3, output, restarts=1)
    begun = {note["start"] for note in slurm.notes() if note.get("restarts") == 1 and "start" in note}
    saved = {note["saving"] for note in slurm.notes() if "saving" in note}
    assert begun == saved and len(saved) == 1 and saved.pop() >= 3, slurm.notes()
    assert f"Slurm is asked to requeue job {job}" in output.read_text(), output.read_text()


@pytest.mark.long
def test_a_cancelled_job_stops_after_its_step_and_is_not_requeued(slurm):
    job, output = batch(slurm, until=1000)
    slurm.wait_for_step(3, output)
    assert slurm.cluster.client("scancel", job).returncode == 0
    slurm.cluster.wait_for(lambda: slurm.cluster.state(job) in ("CANCELLED", ""), "it is cancelled")
    assert_saved_alike(slurm, 2)
    assert f"the job {job} is not requeued: Slurm says that it is COMPLETING" in output.read_text(), output.read_text()
    assert not any(note.get("restarts") == 1 for note in slurm.notes())


@pytest.mark.long
def test_a_launcher_that_is_killed_is_a_lost_node_and_a_spare_node_takes_its_ranks(slurm):
    process, output = slurm.keepstep(
        3, "--spare-nodes", 1, "--journal", slurm.folder / "journal", JOBS / "noticed.py", "--out", slurm.folder,
        "--until", 60,
    )  # fmt: skip
    slurm.wait_for_step(3, output)
    (launcher,) = [pid for pid in launchers() if variable(pid, "SLURM_NODEID") == "1"]
    os.kill(launcher, signal.SIGKILL)
    slurm.ends(process, output)
    notes = slurm.notes()
    assert {note["rank"] for note in notes if "finished" in note} == {0, 1}, output.read_text()
    steps = [line["step"] for line in json_lines(slurm.folder / "journal" / "metrics.jsonl")]
    assert steps == list(range(1, 61)), output.read_text()


def launchers():
    """Processes of this machine that are `keepstep run` under Slurm."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as line:
                words = line.read().split(b"\0")
        except OSError:
            continue
        if words[0] == os.fsencode(KEEPSTEP) and variable(int(name), "SLURM_STEP_ID") is not None:
            found.append(int(name))
    return found


def variable(pid, name):
    try:
        with open(f"/proc/{pid}/environ", "rb") as values:
            for value in values.read().split(b"\0"):
                if value.startswith(name.encode() + b"="):
                    return value.decode().partition("=")[2]
    except OSError:
        pass
    return None

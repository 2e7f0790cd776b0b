"""A file that cannot be migrated: exit code 2, nothing on standard output, and what is wrong where."""

import subprocess
import sys

import pytest
from migrating import migrate

JOB = "kind: HyperPodPyTorchJob\nspec:\n  replicaSpecs:\n    - replicas: 1\n      template:\n        spec:\n"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("job.sh", "python train.py\n", "job.sh: no launch found"),
        ("job.yaml", "a: [1\n", "job.yaml: line 2: this is no YAML"),
        ("job.yaml", "kind: Pod\n", "job.yaml: this YAML has neither kind: HyperPodPyTorchJob nor"),
        ("job.yaml", "trainer: {}\nmodel: {}\n", "job.yaml: line 1: this looks like a recipe"),
        ("job.yaml", "compute_environment: LOCAL_MACHINE\n", "line 1: a configuration of Accelerate"),
        ("job.yaml", "kind: PyTorchJob\nspec: {}\n---\nkind: PyTorchJob\n", "job.yaml: line 4: a second job"),
        ("job.yaml", "kind: PyTorchJob\n", "line 1: the job has no spec"),
        ("job.yaml", "kind: PyTorchJob\nspec:\n  x: 1\n", "line 3: the job has no pytorchReplicaSpecs with a template"),
        (
            "job.yaml",
            "kind: HyperPodPyTorchJob\nspec:\n  x: 1\n",
            "line 3: the job has no replicaSpecs with",
        ),
        ("job.yaml", JOB + "          containers: []\n", "the template of the pods has no containers"),
        (
            "job.yaml",
            JOB + "          containers:\n            - {image: x}\n",
            "line 8: spec.replicaSpecs[0]",
        ),
        (
            "job.yaml",
            JOB.replace("1", "many") + "          containers:\n            - {command: [hyperpodrun, a.py]}\n",
            "line 4: spec.replicaSpecs[0].replicas is 'many'; a whole number is needed",
        ),
        (
            "job.yaml",
            JOB + "          containers:\n            - {command: [bash, start.sh]}\n",
            "line 8: the container runs the script start.sh; migrate that script instead",
        ),
        (
            "job.yaml",
            JOB + "          containers:\n            - {command: [/start.sh]}\n",
            "line 8: in the command of the pods no launch found",
        ),
        ("train.py", "def f(:\n", "train.py: line 1: this is no Python"),
        ("train.py", b"\xff\xfe", "train.py is no text"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, complaint):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    done = migrate(name, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_not_there_and_wrong_options(tmp_path):
    assert "No such file" in migrate("job.sh", tmp_path).stderr
    command = [sys.executable, "-m", "keepstep.migrate"]
    for arguments, code in (([], 2), (["--help"], 0), (["--wrong"], 2), (["a", "b"], 2)):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, arguments
        assert "usage: keepstep migrate FILE" in done.stdout + done.stderr

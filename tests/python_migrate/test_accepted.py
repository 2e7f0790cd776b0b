"""What the command printed, given to bash and the `keepstep run` that ships."""

import os
import re
import subprocess

import pytest
from migrating import CASES, ROOT, file_of, migrate, options_of_run

LAUNCHES = [case for case in CASES if file_of(case).suffix != ".py"]
# Starts the command after its own options.
SRUN = '#!/bin/sh\nuntil [ "$1" = keepstep ] || [ "$1" = bash ]; do shift; done\nexec "$@"\n'
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0,1",
    "MASTER_ADDR": "localhost",
    "NODE_0": "localhost",
    "NODE_RANK": "0",
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NUM_NODES": "4",
}


SHOWS_ARGUMENTS = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def run(script, folder, keepstep=None):
    """What bash and all that it starts print; `folder` is where the training script is missing.

    `keepstep`: a script in place of the command.
    """
    commands = folder / "commands"
    commands.mkdir()
    others = {"srun": SRUN, "scontrol": "#!/bin/sh\n", "sbatch": '#!/bin/sh\nexec bash "$1"\n', "keepstep": keepstep}
    for name, text in others.items():
        if text is None:
            continue
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    token = folder / "job.token"
    token.touch(0o600)
    token.write_text("0123456789abcdef" * 4)
    path = f"{commands}:{ROOT / 'build'}:{os.environ['PATH']}"
    (folder / "script").write_text(script.replace("cd /tmp", "cd ."))
    done = subprocess.run(
        ["bash", "script"], cwd=folder, env=ENVIRONMENT | {"PATH": path, "HOME": str(folder)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    texts = [done.stdout, done.stderr, *(each.read_text() for each in folder.glob("*.txt"))]
    return "".join(texts).splitlines()


@pytest.mark.parametrize("case", LAUNCHES, ids=lambda case: case.name)
def test_keepstep_run_has_no_complaint_but_the_missing_training_script(case, tmp_path):
    lines = run((case / "stdout").read_text(), tmp_path)
    assert lines
    assert not [line for line in lines if not re.match(r"the script '.*' does not exist", line)], lines


def test_a_wrong_log_rule_would_be_a_complaint(tmp_path):
    printed = migrate("job.yaml", file_of(next(case for case in CASES if case.name == "hyperpod_job")).parent).stdout
    lines = run(printed.replace("(nan|inf)", "(nan"), tmp_path)
    assert any("is no regular expression" in line for line in lines), lines


@pytest.mark.parametrize("case", LAUNCHES, ids=lambda case: case.name)
def test_every_option_is_on_the_page_of_keepstep_run(case, tmp_path):
    words = run((case / "stdout").read_text(), tmp_path, SHOWS_ARGUMENTS)
    options = {word.partition("=")[0].replace("_", "-") for word in words[: end_of_options(words)] if word[:1] == "-"}
    assert options
    assert options <= {"-m"} | {f"--{name}" for name in options_of_run()}


def end_of_options(words):
    return next(at for at, word in enumerate(words) if word.endswith(".py") or word == "package.evaluate")

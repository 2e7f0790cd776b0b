"""Log rules on real jobs: what a rank prints is journalled, replaces it, or stops the job."""

import subprocess

import pytest

from harness import JOBS, KEEPSTEP, environment, finish, start
from user_scripts import run_script

PRINTS = """
def build():
    model = torch.nn.Linear(4, 4)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.01))
@keepstep.recoverable
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    for step in run.steps(Data(), global_batch=4, micro_batch=1, last_step=6):
        for x in step:
            step.backward(replica(x).square().mean())
        if run.generation == 1 and step.number == 3 and run.rank == 1:
            print("WHAT", flush=True)
            torch.distributed.barrier()  # nobody votes on this step before the rule was applied
        elif run.generation == 1 and step.number == 3:
            torch.distributed.barrier()
            run._engine.wait_interruption() if WAITS else None
            run._check_interrupted()
        step.commit(optimizer.step)
train()
"""


def rules(folder, text):
    path = folder / "rules.yaml"
    path.write_text(text)
    return ["--log-rules", path]


def run_printing(folder, line, waits, options):
    return run_script(folder, PRINTS.replace("WHAT", line).replace("WAITS", str(waits)), options=options)


def test_a_rank_that_prints_what_a_rule_forbids_is_replaced(tmp_path):
    rule = "rules:\n  - {name: hot, pattern: 'core at ([0-9]+) C', threshold: '> 90', action: replace}\n"
    job = run_printing(tmp_path, "core at 97 C", True, rules(tmp_path, rule))
    assert job.exit_code == 0, job.explain()
    (found,) = job.events("log_rule")
    assert (found["rule"], found["action"], found["rank"]) == ("hot", "replace", 1)
    assert "rank 1 broke the log rule 'hot': it printed 'core at 97 C'" in found["because"]
    second = job.events("generation_prepared")[1]
    assert second["newcomers"] == [1], job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, 7)), job.explain()
    assert "broke the log rule 'hot'" in job.output


def test_a_value_within_its_bounds_is_nothing(tmp_path):
    rule = "rules:\n  - {name: hot, pattern: 'core at ([0-9]+) C', threshold: '> 90', action: replace}\n"
    job = run_printing(tmp_path, "core at 60 C", False, rules(tmp_path, rule))
    assert job.exit_code == 0, job.explain()
    assert not job.events("log_rule") and len(job.events("generation_prepared")) == 1, job.explain()


def test_a_rule_may_only_tell_the_journal(tmp_path):
    job = run_printing(
        tmp_path, "disk is slow", False, rules(tmp_path, "rules:\n  - {name: disk, pattern: 'disk is slow'}\n")
    )
    assert job.exit_code == 0, job.explain()
    (found,) = job.events("log_rule")
    assert (found["action"], found["rank"]) == ("journal", 1)
    assert len(job.events("generation_prepared")) == 1, job.explain()


def test_a_rule_may_stop_the_job(tmp_path):
    rule = "rules:\n  - {name: licence, pattern: 'licence .* expired', action: stop}\n"
    job = run_printing(tmp_path, "licence 7 expired", True, rules(tmp_path, rule))
    assert job.exit_code == 1, job.explain()
    assert "rank 1 broke the log rule 'licence'" in job.output


def program(folder, body):
    path = folder / "program.sh"
    path.write_text("#!/bin/bash\n" + body)
    path.chmod(0o755)
    return path


def test_rules_hold_for_programs_without_python(tmp_path):
    # The first try of rank 0 prints and then does nothing more; the restarted one ends well.
    body = (
        'if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = 00 ]; then echo "ECC error" >&2; fi\n'
        'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then read -r <> <(:); fi\n'
    )
    options = ["--no-python", *rules(tmp_path, "rules:\n  - {name: ecc, pattern: ECC, action: replace}\n")]
    process, command = start(tmp_path, program(tmp_path, body), options=options)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    assert job.events("log_rule")[0]["rank"] == 0
    assert job.events("rung")[0]["rung"] == "restart", job.explain()


@pytest.mark.parametrize("action", ["journal", "stop"])
def test_what_a_rank_prints_last_is_journalled_too(tmp_path, action):
    body = 'if [ "$RANK" = 1 ]; then echo "disk is slow"; fi\n'
    rule = f"rules:\n  - {{name: disk, pattern: 'disk is slow', action: {action}}}\n"
    process, command = start(tmp_path, program(tmp_path, body), options=["--no-python", *rules(tmp_path, rule)])
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0 or action == "stop", job.explain()
    (found,) = job.events("log_rule")
    assert (found["action"], found["rank"]) == (action, 1)


def test_a_line_that_does_not_come_in_time_is_found(tmp_path):
    body = 'if [ "$RANK$TORCHELASTIC_RESTART_COUNT" = 00 ]; then read -r <> <(:); fi\necho ready\n'
    options = [
        "--no-python", *rules(tmp_path, "rules:\n  - {name: ready, pattern: ready, first_within: 1, action: replace}\n")
    ]  # fmt: skip
    process, command = start(tmp_path, program(tmp_path, body), options=options)
    job = finish(tmp_path, process, command)
    assert job.exit_code == 0, job.explain()
    (found,) = job.events("log_rule")
    assert found["rank"] == 0 and "nothing that matches 'ready' within 1 s" in found["because"]


def test_mistakes_in_a_rules_file_are_listed_before_anything_starts(tmp_path):
    options = rules(tmp_path, "rules:\n  - name: a\n    pattern: '('\n    action: shout\n")
    done = subprocess.run(
        [KEEPSTEP, "run", *map(str, options), "--spares", "-1", JOBS / "small.py", "--out", tmp_path],
        env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "rules.yaml:3: the pattern '('" in done.stderr and "rules.yaml:4: action is 'shout'" in done.stderr
    assert "--spares" in done.stderr, "with the mistakes of other options"

"""Health checks on real jobs: a worker that fails is not used, and a node that fails again and again has no ranks."""

import pytest

from harness import json_lines
from several_nodes import finish_nodes, free_port, kill, start_node, start_nodes
from user_scripts import run_script, script

TRAINS = """
def check():
    CHECK
def build():
    model = torch.nn.Linear(4, 4)
    return keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.01))
@keepstep.recoverable(health_check=check)
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    for step in run.steps(Data(), global_batch=8, micro_batch=1, last_step=UNTIL):
        for x in step:
            step.backward(replica(x).square().mean())
        step.commit(optimizer.step)
train()
"""
ONCE = """
    try:
        os.close(os.open(sys.argv[1] + "/failed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise RuntimeError("the fan stands still")
"""


def body(check, until=6):
    return TRAINS.replace("CHECK", check).replace("UNTIL", str(until))


def test_a_worker_that_fails_its_check_is_replaced_before_it_joins(tmp_path):
    job = run_script(tmp_path, body(ONCE), args=[tmp_path])
    assert job.exit_code == 0, job.explain()
    (unfit,) = job.events("unfit")
    assert (unfit["check"], unfit["measured"]) == (
        "health_check of the script", "RuntimeError: the fan stands still"
    )  # fmt: skip
    (fault,) = job.events("fault_detected")
    assert fault["kind"] == "unfit" and fault["worker"] == unfit["worker"] and fault["exit_code"] == 76
    assert unfit["worker"] not in job.events("generation_prepared")[0]["workers"], job.explain()
    assert len(job.events("generation_prepared")) == 1, job.explain()


LATER = """
    passed = f"{sys.argv[1]}/passed{os.getpid()}"
    if os.path.exists(passed) or not os.path.exists(sys.argv[1] + "/later"):
        open(passed, "w").close()
        return
"""


def test_a_newcomer_that_fails_its_check_is_not_given_the_rank(tmp_path):
    # Of generation 1 all pass, and go on passing; the first process that asks for a rank after a step fails.
    text = body(LATER + ONCE).replace(
        "        step.commit(optimizer.step)",
        '        open(sys.argv[1] + "/later", "w").close()\n        step.commit(optimizer.step)',
    )
    job = run_script(tmp_path, text, args=[tmp_path], options=["--inject", "kill:rank=1,step=3,phase=backward"])
    assert job.exit_code == 0, job.explain()
    (unfit,) = job.events("unfit")
    used = [worker for line in job.events("generation_prepared") for worker in line["workers"]]
    assert unfit["worker"] not in used, job.explain()
    assert len(job.events("generation_prepared")) == 2, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, 7)), job.explain()


def test_a_node_all_of_whose_workers_fail_ends_the_job_and_says_which(tmp_path):
    job = run_script(tmp_path, body("raise RuntimeError('no fan')"), args=[tmp_path])
    assert job.exit_code != 0
    assert "node 0" in job.output and "3 workers in a row failed their health check" in job.output, job.output
    assert not job.events("generation_prepared"), job.explain()


def test_checks_can_be_left_out(tmp_path):
    job = run_script(tmp_path, body("raise RuntimeError('no fan')"), args=[tmp_path], options=["--health-check", "off"])
    assert job.exit_code == 0, job.explain()
    assert not job.events("unfit"), job.explain()


@pytest.mark.long
def test_a_node_that_fails_again_and_again_has_its_ranks_moved_to_a_spare_node(tmp_path):
    check = "if os.environ.get('THE_NODE') == '1': raise OSError('no fan')"
    endpoint = f"127.0.0.1:{free_port()}"
    path = script(tmp_path, body(check, until=10))
    nodes = []
    try:
        for rank in range(3):
            nodes.append(
                start_node(
                    tmp_path, rank, endpoint, path, tmp_path, world=1, options=["--spare-nodes", 1],
                    variables={"THE_NODE": str(rank)},
                )
            )  # fmt: skip
        for node in nodes:
            node.process.wait(120)
    finally:
        for node in nodes:
            kill(node)
    outputs = "\n".join(node.output() for node in nodes)
    assert [node.process.returncode for node in nodes] == [0, 1, 0], outputs
    assert "is not fit for ranks: 3 workers in a row" in nodes[1].output(), outputs
    journal = json_lines(tmp_path / "journal" / "journal.jsonl")
    moved = [line for line in journal if line["event"] == "node_replaced"]
    assert [(line["lost_node"], line["by_node"]) for line in moved] == [(1, 2)], outputs
    steps = [line["step"] for line in json_lines(tmp_path / "journal" / "metrics.jsonl")]
    assert steps == list(range(1, 11)), outputs


RECORDS = """
from keepstep.torch.recovery import health
check_loopback = health._engine.check_loopback
def noted(tcp):
    print(f"the loopback check: tcp={tcp}", flush=True)
    return check_loopback(tcp)
health._engine.check_loopback = noted
"""


@pytest.mark.long
def test_ranks_of_several_nodes_check_that_they_can_talk_over_tcp(tmp_path):
    path = script(tmp_path, RECORDS + body("pass"))
    job = finish_nodes(start_nodes(tmp_path, path, tmp_path, world=1))
    assert job.exit_code == 0, job.explain()
    for tcp in (False, True):
        assert job.output.count(f"the loopback check: tcp={tcp}") == 2, job.output

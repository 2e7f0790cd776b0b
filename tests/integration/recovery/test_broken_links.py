"""The connection between two nodes breaks while both reach the coordinator: that is nobody's exception."""

import pytest

from harness import JOBS, assert_same_history, assert_survivors_kept_their_process
from several_nodes import finish_nodes, free_port, kill, start_node, start_nodes


def run_with_cuts(folder, monkeypatch, *, rank, at, times, world=1, options=(), model="plain"):
    for name, value in (("RANK", rank), ("AT", at), ("TIMES", times)):
        monkeypatch.setenv(f"CUT_{name}", str(value))
    return finish_nodes(
        start_nodes(folder, JOBS / "cut_links.py", "--out", folder, "--model", model, world=world, options=options)
    )


@pytest.mark.parametrize(
    ("rank", "times", "world", "model"),
    [
        (1, 2, 1, "rich"),
        *(pytest.param(*cut, marks=pytest.mark.long) for cut in ((0, 1, 1, "plain"), (2, 2, 2, "rich"))),
    ],
)
def test_a_link_that_breaks_at_one_step_is_made_anew_and_the_step_redone(
    tmp_path, undisturbed, monkeypatch, rank, times, world, model
):
    job = run_with_cuts(tmp_path, monkeypatch, rank=rank, at=5, times=times, world=world, model=model)
    assert job.output.count("cut ") == times, job.explain()
    assert_same_history(job, undisturbed(2 * world, model=model), 12)
    assert_survivors_kept_their_process(job, [], 2 * world)
    faults = job.events("fault_detected")
    assert {fault["kind"] for fault in faults} == {"link"}, job.explain()
    assert any("the link between rank" in fault["because"] for fault in faults), job.explain()
    assert [line["rung"] for line in job.events("rung")] == ["redo"] * times, job.explain()


@pytest.mark.long
def test_a_link_that_never_holds_ends_the_job_with_words_about_the_network(tmp_path, monkeypatch):
    job = run_with_cuts(tmp_path, monkeypatch, rank=0, at=2, times=100, options=["--max-restarts", 0])
    assert job.exit_code == 1, job.explain()
    rungs = [line["rung"] for line in job.events("rung")]
    # The other rank may have been at the step before when it was cut the first time.
    assert rungs in (["redo"] * 3 + ["end"], ["redo"] * 4 + ["end"]), job.explain()
    assert "Both ends reach the coordinator, but not each other" in job.output, job.explain()


@pytest.mark.long
def test_a_link_that_never_holds_costs_one_of_its_nodes_the_ranks_when_a_spare_node_waits(tmp_path, undisturbed):
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = []
    try:
        for node in range(3):
            # Its connections break until another node has the rank.
            variables = {"CUT_RANK": "1", "CUT_AT": "5", "CUT_TIMES": "100" if node == 1 else "0"}
            nodes.append(
                start_node(tmp_path, node, endpoint, JOBS / "cut_links.py", "--out", tmp_path, world=1,
                           options=["--spare-nodes", 1], variables=variables)
            )  # fmt: skip
        job = finish_nodes(nodes)
    finally:
        for node in nodes:
            kill(node)
    assert_same_history(job, undisturbed(2), 12)
    rungs = [line["rung"] for line in job.events("rung")]
    assert rungs in (["redo"] * 3 + ["replace_node"], ["redo"] * 4 + ["replace_node"]), job.explain()
    (moved,) = job.events("node_replaced")
    assert (moved["lost_node"], moved["by_node"], moved["ranks"]) == (1, 2, [1]), job.explain()
    assert_survivors_kept_their_process(job, [1], 2)

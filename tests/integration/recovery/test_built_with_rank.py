"""States that are built when a process has its rank: run.setup(build, with_rank=True)."""

from harness import JOBS, finish, start


def run(folder, *options):
    folder.mkdir()
    script = JOBS / "built_with_rank.py"
    process, command = start(folder, script, "--out", folder, world=2, spares=1, options=options)
    job = finish(folder, process, command)
    assert job.exit_code == 0, job.explain()
    return job


def test_a_replacement_builds_alone_and_takes_the_state_of_its_peers(tmp_path):
    undisturbed = run(tmp_path / "undisturbed")
    killed = run(tmp_path / "killed", "--inject", "kill:rank=1,step=5,phase=backward")
    assert [line["bits"] for line in killed.metrics] == [line["bits"] for line in undisturbed.metrics]
    assert len(killed.metrics) == 12
    built = [(note["built_by"], note["of"], note["generation"]) for note in killed.notes if "built_by" in note]
    assert sorted(built) == [(0, 2, 1), (1, 2, 1), (1, 2, 2)], killed.explain()

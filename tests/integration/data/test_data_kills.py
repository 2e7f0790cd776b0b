"""Real kills of ranks that read corpora: every sample is used once, and its bits are those of an undisturbed job."""

import random

from harness import JOBS, finish, start
from keepstep import _engine
from keepstep.data import Blend

UNTIL = 14
MICRO_BATCHES = 7


def write_corpora(folder):
    numbers = random.Random(4)
    prefixes = []
    for name, documents in (("a", 40), ("b", 15)):  # epochs of both end within the job
        prefix = str(folder / name)
        writer = _engine.TokenWriter.create(prefix, "uint16")
        for _ in range(documents):
            writer.add([numbers.randrange(60_000) for _ in range(numbers.randrange(60))])
            writer.end_document()
        writer.finish()
        prefixes.append(prefix)
    return prefixes


def run_tokens(folder, prefixes, world, *extra, spares=0, inject=()):
    injected = [part for text in inject for part in ("--inject", text)]
    process, command = start(
        folder, JOBS / "token_job.py", "--corpora", *prefixes, "--until", UNTIL, *extra,
        world=world, spares=spares, options=injected,
    )  # fmt: skip
    return finish(folder, process, command)


def micro_batches(job):
    """What each committed step used: (samples, digest) of its micro-batches, in order."""
    assert job.exit_code == 0, job.explain()
    assert [line["step"] for line in job.metrics] == list(range(1, UNTIL + 1)), job.explain()
    steps = []
    for line in job.metrics:
        found = [line[f"micro_{number}"] for number in range(MICRO_BATCHES)]
        steps.append([(micro["samples"], micro["digest"]) for micro in found])
    return steps


def test_killed_ranks_skip_and_repeat_no_sample_and_batches_are_those_of_one_rank(tmp_path):
    prefixes = write_corpora(tmp_path)
    inject = [
        "kill:rank=1,step=3,phase=backward",
        "kill:rank=0,step=6,phase=before_vote",
        "kill:rank=2,step=6,phase=between",
        "kill:rank=2,step=10,phase=after_vote",
        "kill:rank=1,step=12,phase=update",
    ]
    disturbed = run_tokens(tmp_path / "disturbed", prefixes, 3, spares=1, inject=inject)
    alone = run_tokens(tmp_path / "alone", prefixes, 1)
    assert len(disturbed.events("verdict")) >= 4, disturbed.explain()
    assert micro_batches(disturbed) == micro_batches(alone)
    used = [sample for step in micro_batches(disturbed) for samples, _ in step for sample in samples]
    data = Blend(dict(zip(prefixes, (0.7, 0.3), strict=True)), sequence_length=16)
    assert len(used) > 2 * len(data), "no epoch ended"
    assert used == data.job_order(disturbed.metrics[0]["seed"], 0, len(used))


def test_a_corpus_that_is_truncated_under_the_job_ends_it_with_the_files_name_and_no_crash(tmp_path):
    """Ranks that read what is gone get an error in time: no step is committed that zeros were computed in."""
    (tmp_path / "whole").mkdir()
    alone = run_tokens(tmp_path / "alone", write_corpora(tmp_path / "whole"), 1)
    job = run_tokens(tmp_path / "job", write_corpora(tmp_path), 2, "--truncate", 5)
    assert job.exit_code not in (0, None), job.explain()
    assert "a.bin' had" in job.output and "has 0 bytes now" in job.output, job.explain()
    assert "SIGBUS" not in job.output and "signal 7" not in job.output, job.explain()
    for ours, theirs in zip(job.metrics, alone.metrics, strict=False):
        for number in range(MICRO_BATCHES):
            assert ours[f"micro_{number}"] == theirs[f"micro_{number}"], f"step {ours['step']}"
    assert len(job.metrics) >= 4, job.explain()

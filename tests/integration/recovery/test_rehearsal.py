"""Spares rehearse a step before they wait: nothing of it may show, but that the first step is cheaper."""

import re

import pytest

from harness import assert_same_history, assert_survivors_kept_their_process, run_small
from user_scripts import run_script

BODY = """
log = open(sys.argv[1] + f"/{os.getpid()}.jsonl", "a", buffering=1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return self.layer(x)
class Odd:
    def __init__(self): self.uses = 0
    def state_dict(self): return {"uses": self.uses}
    def load_state_dict(self, state): pass  # it forgets to
def build():
    model, odd = Net(), Odd()
    COMPILED
    optimizer = torch.optim.AdamW(model.parameters())
    return keepstep.State(model=model, optimizer=optimizer, EXTRA)
@keepstep.recoverable(OPTIONS)
def train(run):
    state = run.setup(build)
    model, optimizer = state.model, state.optimizer
    replica = run.ddp(model)
    if run.rehearsing:
        print("PRINTED IN A REHEARSAL")
        log.write(f'{{"rehearsal": {os.getpid()}, "rank": {run.rank}, "world": {run.world_size}, '
                  f'"env": "{os.environ["RANK"]}", "generation": {run.generation}}}\\n')
    for step in run.steps(Data(), global_batch=8, micro_batch=1, last_step=8):
        AT_STEP
        for x in step:
            step.backward(replica(x).square().mean())
        step.log(calls=int(model.calls))
        run.once("never in a rehearsal", log.write, f'{{"once": {int(run.rehearsing)}}}\\n')
        step.commit(optimizer.step)
    log.write('{"after": 1}\\n')
train()
"""
KILL = ("--inject", "kill:rank=1,step=4,phase=backward")


def body(options="rehearse=True", extra="", at_step="pass", compiled="pass"):
    words = {"OPTIONS": options, "EXTRA": extra, "AT_STEP": at_step, "COMPILED": compiled}
    return re.sub("|".join(words), lambda found: words[found[0]], BODY)


def newcomer(job):
    """The worker that took the place of rank 1."""
    return job.events("generation_prepared")[1]["workers"][1]


@pytest.mark.parametrize("model", ["rich", pytest.param("plain", marks=pytest.mark.long)])
def test_a_rehearsed_spare_goes_on_with_the_same_bits(tmp_path, undisturbed, model):
    job = run_small(
        tmp_path, world=2, spares=1, model=model, inject=["kill:rank=1,step=6,phase=backward"], extra=["--rehearse"]
    )
    assert_same_history(job, undisturbed(2, model), 12)
    assert_survivors_kept_their_process(job, [1], 2)
    assert job.events("rehearsed"), job.explain()
    assert not job.events("not_rehearsed"), job.explain()
    assert newcomer(job) in {line["worker"] for line in job.events("rehearsed")}, job.explain()


def test_a_rehearsal_passes_for_the_last_rank_and_has_no_effects(tmp_path):
    job = run_script(tmp_path, body(), args=[tmp_path], spares=1, options=KILL)
    assert job.exit_code == 0, job.explain()
    rehearsals = [note for note in job.notes if "rehearsal" in note]
    assert rehearsals, job.explain()
    for note in rehearsals:
        assert (note["rank"], note["world"], note["env"], note["generation"]) == (1, 2, "1", 0)
    assert "PRINTED" not in job.output
    assert [note["once"] for note in job.notes if "once" in note] == [0], job.explain()
    # Each step has four forwards a rank, in the committed history: the rehearsal's count was put back.
    assert [line["calls"] for line in job.metrics] == [4 * step for step in range(1, 9)], job.explain()


def test_an_exception_in_a_rehearsal_is_said_once_and_costs_nothing_else(tmp_path):
    raises = "if run.rehearsing: raise ValueError('not on a spare')"
    job = run_script(tmp_path, body(at_step=raises), args=[tmp_path], spares=2, options=KILL)
    assert job.exit_code == 0, job.explain()
    findings = job.events("not_rehearsed")
    assert newcomer(job) in {line["worker"] for line in findings}, job.explain()
    assert all("ValueError: not on a spare" in line["because"] for line in findings)
    assert len({line["worker"] for line in findings}) == len(findings), job.explain()
    assert job.output.count("could not rehearse") == 1, job.output
    assert [line["calls"] for line in job.metrics] == [4 * step for step in range(1, 9)], job.explain()


@pytest.mark.long
def test_a_process_group_of_another_backend_ends_a_rehearsal_at_once(tmp_path):
    other = "torch.distributed.new_group(backend='gloo')"
    job = run_script(tmp_path, body(at_step=other), args=[tmp_path], spares=1)
    assert job.exit_code == 0, job.explain()
    assert not job.events("rehearsed"), job.explain()


@pytest.mark.long
def test_rehearsals_can_be_left_out(tmp_path):
    job = run_script(tmp_path, body(options="rehearse=False"), args=[tmp_path], spares=1, options=KILL)
    assert job.exit_code == 0, job.explain()
    assert not job.events("rehearsed") and not job.events("not_rehearsed"), job.explain()
    assert not [note for note in job.notes if "rehearsal" in note]


@pytest.mark.long
def test_by_default_only_what_is_compiled_is_rehearsed(tmp_path):
    job = run_script(tmp_path, body(options=""), args=[tmp_path], spares=1, options=KILL)
    assert job.exit_code == 0, job.explain()
    assert not job.events("rehearsed") and not job.events("not_rehearsed"), job.explain()
    assert [line["calls"] for line in job.metrics] == [4 * step for step in range(1, 9)], job.explain()
    compiled = body(options="", compiled="model.compile(backend='eager')")
    (tmp_path / "compiled").mkdir()
    kill = ["--inject", "kill:rank=1,step=4,phase=before_vote"]  # in what is compiled no hook is called
    job = run_script(tmp_path / "compiled", compiled, args=[tmp_path], spares=1, options=kill)
    assert job.exit_code == 0, job.explain()
    assert newcomer(job) in {line["worker"] for line in job.events("rehearsed")}, job.explain()


OBJECTS = """names = [run.rank, None]
        torch.distributed.broadcast_object_list(names, src=0)
        mine = [None]
        torch.distributed.scatter_object_list(mine, [[0], [1]] if run.rank == 0 else None, src=0)
        all_names = [None] * run.world_size
        torch.distributed.all_gather_object(all_names, (run.rank, mine))
        if run.rank == 0: torch.distributed.send_object_list(["hello"], dst=1)
        else: torch.distributed.recv_object_list(mine, src=0)
        assert names[0] in (0, run.rank) and all_names[run.rank][0] == run.rank"""


@pytest.mark.long
def test_object_collectives_leave_in_a_rehearsal_what_this_rank_has(tmp_path):
    job = run_script(tmp_path, body(at_step=OBJECTS), args=[tmp_path], spares=1, options=KILL)
    assert job.exit_code == 0, job.explain()
    assert not job.events("not_rehearsed"), job.explain()
    assert newcomer(job) in {line["worker"] for line in job.events("rehearsed")}, job.explain()


@pytest.mark.long
def test_a_rehearsal_that_asks_for_more_memory_than_there_is_costs_no_spare(tmp_path):
    # Untouched, so that only a limit can refuse it.
    greedy = "torch.empty(health.available_bytes() + (2 << 30), dtype=torch.uint8) if run.rehearsing else None"
    imports = "from keepstep.torch.recovery import health\n"
    job = run_script(tmp_path, imports + body(at_step=greedy), args=[tmp_path], spares=1, options=KILL)
    assert job.exit_code == 0, job.explain()
    assert job.events("not_rehearsed") and not job.events("rehearsed"), job.explain()
    assert "allocate memory" in job.events("not_rehearsed")[0]["because"], job.explain()
    assert newcomer(job) == job.events("not_rehearsed")[0]["worker"] == 2, job.explain()


def test_a_spare_whose_state_cannot_be_put_back_builds_it_again(tmp_path):
    changes = "state.odd.uses += 1"
    job = run_script(tmp_path, body(extra="odd=odd", at_step=changes), args=[tmp_path], spares=1, options=KILL)
    assert not job.events("unfit") and not job.events("rehearsed"), job.explain()
    finding = job.events("not_rehearsed")[0]
    assert "odd/uses, which could not be put back; run.setup builds it again" in finding["because"], job.explain()
    assert newcomer(job) == finding["worker"] == 2, job.explain()
    assert [line["calls"] for line in job.metrics[:3]] == [4, 8, 12], job.explain()


@pytest.mark.long
def test_a_spare_whose_state_can_neither_be_put_back_nor_built_again_is_not_used(tmp_path):
    elsewhere = body(extra="odd=ODD", at_step="ODD.uses += 1").replace("def build", "ODD = Odd()\ndef build")
    job = run_script(tmp_path, elsewhere, args=[tmp_path], spares=1, options=KILL)
    assert "'odd/uses'" not in job.output and "odd/uses, which could not be put back" in job.output, job.output
    rehearsed = {line["worker"] for line in job.events("rehearsed")}
    assert not rehearsed, job.explain()
    assert job.exit_code == 0, job.explain()
    (unfit,) = job.events("unfit")
    assert unfit["check"] == "rehearsal" and unfit["worker"] != newcomer(job), job.explain()

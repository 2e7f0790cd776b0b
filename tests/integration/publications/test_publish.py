"""`run.publish` and `keepstep.subscribe`: whole committed versions, in processes that are no ranks, through kills."""

import json
import mmap
import os
import subprocess
import sys
import time

import pytest

import keepstep
from harness import PHASES, ROOT, environment, finish, json_lines, start
from keepstep.checkpoint.safetensors import read_layout
from keepstep.torch.tensors import mapped
from published import digest_of
from running_jobs import command, refused
from several_nodes import TOKEN, free_port, kill, start_node
from user_scripts import run_script, script, steps_done, training, wait_for

EXAMPLES = ROOT / "examples" / "rollouts"
BODY = """
import hashlib, json, time
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 64)
        self.norm = torch.nn.BatchNorm1d(64)  # forward passes change its statistics
        self.second = torch.nn.Linear(64, 4).bfloat16()
        self.tied = self.first
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        for parameter in self.second.parameters():
            parameter.requires_grad = False
    def forward(self, x):
        return self.second(self.norm(self.first(x)).bfloat16()).float()
def build():
    model = Net()
    return keepstep.State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
def digest(module):
    state = {name: each for name, each in module.state_dict().items()}
    return hashlib.sha256(b"".join(
        name.encode() + each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if each.dim() else
        name.encode() + each.reshape(1).view(torch.uint8).numpy().tobytes()
        for name, each in sorted(state.items()))).hexdigest()
def note(run, module):
    if run.rank == 0:
        with open(sys.argv[1] + "/digests.jsonl", "a") as file:
            print(json.dumps({"step": run.version, "digest": digest(module)}), file=file, flush=True)
@keepstep.recoverable
def train(run):
    state = run.setup(build)
    run.publish("weights", every_steps=int(sys.argv[2]))
    run.publish("adapters", state.model, every_steps=2, only_trained=True)
    run.evaluate(lambda step: note(run, state.model), every_steps=1)
    model = run.ddp(state.model)
    if run.version == 0:
        note(run, state.model)
    for step in run.steps(Data(), global_batch=4 * run.world_size, micro_batch=4, last_step=int(sys.argv[3])):
        for x in step:
            time.sleep(0.02)
            step.backward(model(x).square().mean())
        step.commit(state.optimizer.step)
train()
"""


def tensors_of(path, others):
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    layout, metadata = read_layout(memoryview(memory), str(path))
    assert metadata == others
    found = mapped.tensors(memory, layout)
    return found | {name: found[other] for name, other in others.items() if other in found}


def digests(folder):
    """Of the state at each step, as rank 0 saw it; the same each time."""
    found = {}
    for line in json_lines(folder / "digests.jsonl"):
        assert found.setdefault(line["step"], line["digest"]) == line["digest"]
    return found


def test_readers_see_whole_committed_versions_while_every_rank_is_killed(tmp_path):
    kills = [f"kill:rank={i % 2},step={6 + 4 * i},phase={phase}" for i, phase in enumerate(PHASES)]
    options = ["--rdzv-id", f"published-{os.getpid()}", *(part for text in kills for part in ("--inject", text))]
    process, words = start(tmp_path, script(tmp_path, BODY), tmp_path, 1, 44, spares=1, options=options)
    seen = {}
    with keepstep.subscribe("weights", f"published-{os.getpid()}") as weights:
        for version in weights:
            seen[version.step] = digest_of(version.tensors)
    job = finish(tmp_path, process, words)
    assert job.exit_code == 0, job.explain()
    assert len(job.events("fault_detected")) == len(kills), job.explain()
    truth = digests(tmp_path)
    assert list(seen) == sorted(seen) and len(seen) > 20, sorted(seen)
    assert seen == {step: truth[step] for step in seen}
    assert not [name for name in os.listdir("/dev/shm") if "keepstep" in name]


def test_a_version_stays_and_a_file_of_it_is_read_by_others(tmp_path):
    name = f"kept-{os.getpid()}"
    process, words = start(tmp_path, script(tmp_path, BODY), tmp_path, 3, 60, options=["--rdzv-id", name])
    with keepstep.subscribe("weights", name) as weights, keepstep.subscribe("adapters", name) as adapters:
        first = weights.next()
        tensors = first.tensors
        before = digest_of(tensors)
        assert first.step % 3 == 0 and weights.next(timeout_s=0) is None
        assert weights.next().step > first.step and weights.next().step % 3 == 0
        assert digest_of(tensors) == before, "it never changes"
        tensors["norm.weight"].zero_()  # only this process sees that
        trained = adapters.next().tensors
        assert set(tensors) - set(trained) == {"second.weight", "second.bias"}
        first.save(tmp_path / "first.safetensors")
    assert digest_of(tensors_of(tmp_path / "first.safetensors", first.metadata)) == before
    listed = json.loads(command("weights", name, "--json").stdout)
    assert {each["name"] for each in listed} == {"adapters", "weights"}
    saved = command("weights", name, "weights", "--out", tmp_path / "second.safetensors")
    assert saved.returncode == 0 and "weights" in saved.stdout, saved
    assert "nothing named 'other'" in refused("weights", name, "other", "--out", tmp_path / "none.safetensors")
    assert not list(tmp_path.glob("*none*")) and not list(tmp_path.glob(".*partial"))
    process.terminate()
    finish(tmp_path, process, words)
    with pytest.raises(keepstep.KeepstepError, match="closed"):
        weights.next()


def test_over_the_network_with_the_token_and_not_without(tmp_path):
    endpoint = f"127.0.0.1:{free_port()}"
    body = script(tmp_path, BODY)
    nodes = [start_node(tmp_path, rank, endpoint, body, tmp_path, 2, 100000, world=1) for rank in (0, 1)]
    token, other = tmp_path / "token", tmp_path / "other"
    for path, text in ((token, TOKEN), (other, "x" * 40)):
        path.write_text(text)
        path.chmod(0o600)
    try:
        with keepstep.subscribe("weights", endpoint, token_file=token) as weights:
            seen = {version.step: digest_of(version.tensors) for version in (weights.next(), weights.next())}
            assert len(seen) == 2
        with pytest.raises(keepstep.KeepstepError, match="token"):
            keepstep.subscribe("weights", endpoint, token_file=other, timeout_s=0)
        truth = digests(tmp_path)
        assert seen == {step: truth[step] for step in seen}
    finally:
        for node in nodes:
            kill(node)


def test_what_comes_after_a_timeout_is_the_newest(tmp_path):
    name = f"late-{os.getpid()}"
    process, words = start(tmp_path, script(tmp_path, BODY), tmp_path, 1, 100_000, options=["--rdzv-id", name])
    with keepstep.subscribe("weights", name) as weights:
        first = weights.next()
        while weights.next(timeout_s=0) is not None:
            pass
        wait_for(lambda: steps_done(tmp_path) > first.step + 10, "ten steps")
        assert weights.next().step >= steps_done(tmp_path) - 1
        process.terminate()
        finish(tmp_path, process, words)
        with pytest.raises(keepstep.JobOver):
            for _ in range(100):  # some may still have come
                weights.next()


def test_what_a_restart_takes_back_is_published_again(tmp_path):
    """Its bits may differ: here they depend on the process. The start from a checkpoint is published, due or not."""
    name = f"again-{os.getpid()}"
    body = BODY.replace("square().mean()", "square().mean() * (1 + os.getpid() % 1000 / 1000)")
    body = body.replace(
        "model = run.ddp",
        "run.checkpoint(keepstep.Destination(sys.argv[1] + '/saved', every_steps=4))\n    model = run.ddp",
    )
    options = ["--rdzv-id", name, "--inject", "kill:rank=0,step=7,phase=before_vote"]
    process, words = start(tmp_path, script(tmp_path, body), tmp_path, 5, 12, world=1, options=options)
    seen = []
    with keepstep.subscribe("weights", name) as weights:
        for version in weights:
            seen.append((version.step, digest_of(version.tensors)))
    job = finish(tmp_path, process, words)
    assert job.exit_code == 0, job.explain()
    committed = {line["step"]: line["digest"] for line in json_lines(tmp_path / "digests.jsonl")}
    assert [step for step, _ in seen] == [0, 5, 4, 5, 10], job.explain()
    assert all(committed[step] == digest for step, digest in seen[2:])
    assert seen[1][1] != seen[3][1]


def test_a_reader_that_dies_or_stops_disturbs_nobody(tmp_path):
    name = f"readers-{os.getpid()}"
    process, words = start(tmp_path, script(tmp_path, BODY), tmp_path, 1, 60, options=["--rdzv-id", name])
    follow = f"import keepstep\nfor v in keepstep.subscribe('weights', '{name}'): print(v.step, flush=True)"
    readers = [subprocess.Popen([sys.executable, "-c", follow], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for reader in readers:
        assert reader.stdout.readline()
    readers[0].kill()
    readers[1].send_signal(19)
    job = finish(tmp_path, process, words)
    assert job.exit_code == 0, job.explain()
    last = [int(line) for line in readers[2].communicate(timeout=60)[0].split()][-1]
    assert last >= 55 and readers[2].returncode == 0
    readers[1].kill()
    for reader in readers[:2]:
        reader.communicate()


def test_mistakes_are_told(tmp_path):
    lines = [
        "model = torch.nn.Linear(4, 4)",
        "state = run.setup(lambda: keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters())))",
        "run.publish('twice', every_steps=1)",
        "other = torch.nn.Linear(2, 2)",
        "for name, module, every in [('', None, 1), ('w', None, 0), ('w', other, 1), ('twice', None, 1)]:",
        "    try: run.publish(name, module, every_steps=every)",
        "    except keepstep.KeepstepError as error: print(error)",
    ]
    job = run_script(tmp_path, training(*lines), world=1)
    assert job.exit_code == 0, job.explain()
    for said in ("1 to 100 bytes", "from 1 on", "is not protected", "already in this entry"):
        assert said in job.output, job.explain()


def test_one_rank_may_publish_alone_what_all_hold(tmp_path):
    """Copies in the agents' memory do not make it state that is divided."""
    lines = [
        "model = torch.nn.Linear(4, 4)",
        "state = run.setup(lambda: keepstep.State(model=model, optimizer=torch.optim.SGD(model.parameters())))",
        "run.checkpoint(sys.argv[1], memory_every_steps=1)",
        "if run.rank == 0: run.publish('weights', every_steps=1)",
        "trained = run.ddp(state.model)",
        "for step in run.steps(Data(), global_batch=4, micro_batch=2, last_step=3):",
        "    for x in step: step.backward(trained(x).square().mean())",
        "    step.commit(state.optimizer.step)",
    ]
    job = run_script(tmp_path, training(*lines), [tmp_path / "saves"])
    assert job.exit_code == 0 and not job.events("fault_detected"), job.explain()


def test_subscribing_to_no_job_says_so():
    began = time.monotonic()
    with pytest.raises(keepstep.KeepstepError, match="no job 'nowhere'"):
        keepstep.subscribe("weights", "nowhere", timeout_s=0.2)
    assert wait_for(lambda: time.monotonic() - began >= 0.2, "the wait")


def reinforcement(folder, kills=(), mortal=False):
    """examples/rollouts to its end, with two workers; `mortal`: they are killed and replaced all the time."""
    name = f"rollouts-{folder.name}-{os.getpid()}"
    episodes = folder / "episodes"
    injected = [part for text in kills for part in ("--inject", text)]
    process, words = start(
        folder, EXAMPLES / "train.py", "--folder", episodes, "--steps", 160, spares=1,
        options=["--rdzv-id", name, *injected],
    )  # fmt: skip
    work = [sys.executable, EXAMPLES / "rollout.py", "--job", name, "--folder", episodes]
    beside = [subprocess.Popen(work, env=environment()) for _ in range(2)]
    beside.append(
        subprocess.Popen(
            [sys.executable, EXAMPLES / "evaluate.py", "--job", name], env=environment(), stdout=subprocess.PIPE,
            text=True,
        )
    )  # fmt: skip
    killed = 0
    try:
        while mortal and killed < 4:
            wait_for(lambda: steps_done(folder) >= 8 * (killed + 1), "a step")
            beside[killed % 2].kill()
            beside[killed % 2].wait()
            beside[killed % 2] = subprocess.Popen(work, env=environment())
            killed += 1
        job = finish(folder, process, words)
        evaluated = beside[2].communicate(timeout=60)[0]
        assert [each.wait(60) for each in beside] == [0, 0, 0] and "reward" in evaluated
        assert job.exit_code == 0, job.explain()
        return job, killed
    finally:
        for each in (process, *beside):
            if each.poll() is None:
                each.kill()
                each.wait()


@pytest.mark.long
def test_rollout_workers_follow_the_trainer_through_kills_on_both_sides(tmp_path):
    kills = [f"kill:rank={i % 2},step={5 + 4 * i},phase={phase}" for i, phase in enumerate(PHASES)]
    disturbed, killed = reinforcement(tmp_path / "disturbed", kills, mortal=True)
    assert len(disturbed.events("fault_detected")) == len(kills) and killed == 4, disturbed.explain()
    reference, _ = reinforcement(tmp_path / "reference")
    assert disturbed.metrics[-1]["step"] == 160
    keys = ("step", "loss")
    assert [[line[key] for key in keys] for line in disturbed.metrics] == [
        [line[key] for key in keys] for line in reference.metrics
    ]

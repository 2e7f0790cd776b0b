"""The process that writes checkpoints for the ranks of a node: real ones, on a disk that takes its time.

The test is its agent."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed.checkpoint as dcp
from held import Held
from states import LoadPlanner, Reader, assert_same, zeros

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint.background import packets
from keepstep.checkpoint.background.link import Link
from keepstep.checkpoint.background.news import News
from keepstep.checkpoint.background.recipe import Recipe
from keepstep.checkpoint.background.sums import as_json, from_json
from keepstep.checkpoint.saving import Begun
from keepstep.torch.checkpoint.handing_over import HandingOver
from keepstep.torch.checkpoint.snapshot_memory import Memory

LIMIT_S = 60


class BackgroundWriter:
    """One, and the agent's end of what connects them."""

    def __init__(self, node=0, environment=(), before_exec=None, job="one job"):
        self.job = job
        self.folder = tempfile.TemporaryDirectory()  # of this user alone
        self.path = f"{self.folder.name}/background"
        self.agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        fds = (self.listener.fileno(), theirs.fileno())
        self.start = lambda: subprocess.Popen(
            [sys.executable, "-m", "keepstep.checkpoint.background", *map(str, fds), str(node)],
            pass_fds=fds, env={**os.environ, **dict(environment)}, preexec_fn=before_exec,
        )  # fmt: skip
        self.process = self.start()
        self._theirs = theirs

    def link(self, place):
        return Link(self.path, place.as_uri(), self.job)

    def end(self):
        packets.send(self.agent, {"end": True})
        assert self.process.wait(LIMIT_S) == 0

    def kill(self):
        """And another one in its place."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.process = self.start()

    def close(self):
        self.listener.close()
        self.folder.cleanup()
        self._theirs.close()
        if self.agent.fileno() >= 0:
            self.agent.shutdown(socket.SHUT_RDWR)  # also where a thread reads from it
            self.agent.close()
        self.process.wait(LIMIT_S)


@pytest.fixture
def backgrounds():
    """Starts them; they end with the test."""
    started = []

    def start(**how):
        started.append(BackgroundWriter(**how))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def held(tmp_path):
    """Files of this name take their time."""
    made = []

    def make(name_ends):
        made.append(Held(tmp_path / "held", name_ends))
        return made[-1]

    yield make
    for each in made:
        each.close()


def state_of(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {"weight": torch.randn(300, 40, generator=generator), "half": torch.arange(7).to(torch.bfloat16)}
    return {"model": tensors, "step": seed}


def hand_over(background, place, step):
    memory = Memory(state_of(step)["model"])
    for name, tensor in state_of(step)["model"].items():
        memory.tensors[name].copy_(tensor)
    link = background.link(place)
    writer = HandingOver(place.as_uri(), step, background.job, link, generation=step)
    writer.memory = memory
    dcp.save({"model": memory.tensors, "step": step}, storage_writer=writer)
    return link, writer


def rank_that_hands_over(background, place, step):
    """A process that has handed over all of a save, and goes on."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            hand_over(background, place, step)
            os.write(write, b"all")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        assert told.read(3) == b"all"
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def steps_of(place):
    return [
        info.step for info in _checkpoint.Catalog(_checkpoint.open_store(place.as_uri())).checkpoints() if info.complete
    ]


def assert_whole(place, step):
    loaded = zeros(state_of(0))
    dcp.load(loaded, storage_reader=Reader(place, step), planner=LoadPlanner())
    assert_same(loaded, state_of(step))
    alone = zeros(state_of(0))
    dcp.load(alone, checkpoint_id=place / _checkpoint.folder_of(step))
    assert_same(alone, state_of(step))


@pytest.mark.parametrize("name", ["/__0_0.1-1.distcp", "/step-000000000003/.metadata"])
def test_a_save_outlives_its_rank_and_the_next_one_waits_for_it_and_hears_of_it(tmp_path, backgrounds, held, name):
    slow = held(name)
    place = tmp_path / "saves"
    background = backgrounds(environment=slow.environment)
    rank = rank_that_hands_over(background, place, 3)
    ((pid, named),) = slow.wait()
    assert pid == background.process.pid and str(named).endswith(name)
    kill(rank)
    successor = background.link(place)
    with ThreadPoolExecutor(1) as threads:
        free = threads.submit(successor.await_free, 0, 7)
        assert background.link(place).await_free(1, 7) == [], "another rank has nothing to wait for"
        assert not free.done() and not steps_of(place)
        slow.let_go()
        (ended,) = free.result(LIMIT_S)
    assert (ended["version"], ended["error"]) == (3, "")
    assert_whole(place, 3)
    successor.told(ended["attempt"])
    assert successor.await_free(0, 7) == []


@pytest.mark.parametrize("name", ["/__0_0.1-2.distcp", "/step-000000000003/.metadata", "/manifest.json"])
def test_a_save_of_a_version_that_was_given_up_does_not_stay(tmp_path, backgrounds, held, name):
    """All ranks died, and the job goes on from step 2: of step 3 nobody knows."""
    place = tmp_path / "saves"
    slow = held(f"/step-000000000003{name}" if "manifest" in name else name)
    background = backgrounds(environment=slow.environment)
    link, _ = hand_over(background, place, 2)
    link.await_complete()
    link.told(1)
    rank = rank_that_hands_over(background, place, 3)
    slow.wait()
    kill(rank)
    with ThreadPoolExecutor(1) as threads:
        free = threads.submit(background.link(place).await_free, 0, 2)
        slow.let_go()
        assert free.result(LIMIT_S) == []
    assert steps_of(place) == [2]
    hand_over(background, place, 3)[0].await_complete()
    assert_whole(place, 3)


def test_the_agent_is_told_at_once_of_a_save_that_is_complete_though_its_rank_is_gone(tmp_path, backgrounds, held):
    slow = held("/step-000000000003/.metadata")
    place = tmp_path / "saves"
    background = backgrounds(environment=slow.environment)
    kill(rank_that_hands_over(background, place, 3))
    slow.wait()
    slow.let_go()
    background.agent.settimeout(LIMIT_S)
    said, fds = packets.receive(background.agent)
    assert (said, fds) == ({"saved": 3, "generation": 3}, [])
    assert_whole(place, 3)


@pytest.mark.parametrize("job", ["one job", "another job"])
def test_a_place_that_another_job_had_meanwhile_is_taken_again_once_that_has_ended(tmp_path, backgrounds, job):
    place = tmp_path / "saves"
    background, other = backgrounds(), backgrounds(job=job)
    hand_over(background, place, 1)[0].await_complete()
    # As if it were on another machine, where nobody can look for it, and had not renewed for long.
    record = json.loads((place / "owner.json").read_text())
    (place / "owner.json").write_text(json.dumps(record | {"process": "elsewhere/1", "renewed": 0}))
    hand_over(other, place, 3)[0].await_complete()
    for _ in range(2):
        for refused in (background.link(place).claim, lambda: background.link(place).begin(4)):
            with pytest.raises(KeepstepError, match=f"taken over by job '{job}'"):
                refused()
    other.end()
    link = background.link(place)
    with pytest.raises(KeepstepError, match="which saved step 3"):
        link.begin(2)
    hand_over(background, place, 4)[0].await_complete()
    assert steps_of(place) == [1, 3, 4]
    assert_whole(place, 4)
    owner = _checkpoint.read_owner(_checkpoint.open_store(place.as_uri()))
    assert (owner.pid, owner.token) == (background.process.pid, 3)
    for step in (3, 4):
        _checkpoint.Catalog(_checkpoint.open_store(place.as_uri())).remove(step)
    hand_over(background, place, 2)[0].await_complete()


def test_places_are_let_go_of_side_by_side(tmp_path, backgrounds, held):
    slow = held("/nothing yet")
    background = backgrounds(environment=slow.environment)
    places = [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        background.link(place).claim()
    (slow.folder / "which").write_text("/owner.json\n")
    packets.send(background.agent, {"end": True})
    assert {name.parent for _, name in slow.wait(count=3)} == set(places)
    slow.let_go()
    assert background.process.wait(LIMIT_S) == 0
    assert all(_checkpoint.read_owner(_checkpoint.open_store(place.as_uri())).released for place in places)


def test_signals_that_came_before_it_could_ignore_them_end_nothing(tmp_path, backgrounds):
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}

    def signalled():  # as the agent starts it
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        for number in signals:
            os.kill(os.getpid(), number)

    background = backgrounds(before_exec=signalled)
    background.link(tmp_path).claim()
    status = dict(line.split(":\t", 1) for line in open(f"/proc/{background.process.pid}/status") if ":\t" in line)
    assert int(status["SigBlk"], 16) == int(status["ShdPnd"], 16) == 0
    assert all(int(status["SigIgn"], 16) & 1 << (number - 1) for number in signals)


def test_a_process_that_is_forked_does_not_keep_a_snapshot(tmp_path):
    memory = Memory({"part": torch.ones(1 << 20)})
    memory.tensors["part"].fill_(1)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        theirs.send(b"forked")
        theirs.recv(1)
        os._exit(0)

    def has(process):
        opened = []
        for fd in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the list itself
                opened.append(os.readlink(f"/proc/{process}/fd/{fd}"))
        return [name for name in [*opened, *open(f"/proc/{process}/maps")] if "memfd:keepstep-snapshot" in name]

    try:
        assert ours.recv(6) == b"forked"
        assert len(has(os.getpid())) >= 2, "its descriptor and its mapping"
        assert not has(pid)
    finally:
        ours.send(b"-")
        assert os.waitpid(pid, 0)[1] == 0
        ours.close()
        theirs.close()
    assert memory.tensors["part"].sum() == 1 << 20


def test_one_save_after_the_other_by_one_owner_who_lets_go_at_the_end(tmp_path, backgrounds):
    background = backgrounds()
    for step in (1, 2, 5):
        link, _ = hand_over(background, tmp_path, step)
        link.await_file()
        link.await_complete()
        link.prune(2, None)
    assert steps_of(tmp_path) == [2, 5]
    for step in steps_of(tmp_path):
        assert_whole(tmp_path, step)
    owner = _checkpoint.read_owner(_checkpoint.open_store(tmp_path.as_uri()))
    assert (owner.pid, owner.token, owner.released) == (background.process.pid, 1, False)
    background.end()
    assert _checkpoint.read_owner(_checkpoint.open_store(tmp_path.as_uri())).released


def test_credentials_that_a_rank_renews_are_used_from_then_on(tmp_path, backgrounds, monkeypatch):
    link = backgrounds().link(tmp_path)
    (first, _), (second, _) = link.begin(1), link.begin(2)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a newer one")
    (third, _), (fourth, _) = link.begin(3), link.begin(4)
    assert [each.token for each in (first, second, third, fourth)] == [1, 1, 2, 2], "claimed anew with them"


def test_it_ends_with_its_agent_in_the_middle_of_a_write(tmp_path, backgrounds, held):
    slow = held("/__0_0.1-1.distcp")
    place = tmp_path / "saves"
    background = backgrounds(environment=slow.environment)
    kill(rank_that_hands_over(background, place, 3))
    slow.wait()
    background.agent.close()
    assert background.process.wait(LIMIT_S) == 1
    slow.let_go()
    assert not list(place.glob("step-*"))
    another = backgrounds()
    link, _ = hand_over(another, place, 4)  # the same job: at once
    link.await_complete()
    assert_whole(place, 4)


@pytest.mark.long
def test_a_save_that_is_broken_off_at_the_end_leaves_what_was_there(tmp_path, backgrounds, held):
    slow = held("/step-000000000004/.metadata")
    place = tmp_path / "saves"
    background = backgrounds(environment=slow.environment)
    link, _ = hand_over(background, place, 3)
    link.await_complete()
    hand_over(background, place, 4)
    slow.wait()
    background.end()
    assert steps_of(place) == [3]
    assert_whole(place, 3)


def test_a_write_that_fails_is_told_to_who_waits_and_to_who_comes(tmp_path, backgrounds, held):
    slow = held("/__0_0.1-1.distcp")
    place = tmp_path / "saves"
    background = backgrounds(environment=slow.environment)
    link, writer = hand_over(background, place, 3)
    slow.wait()
    (place / "step-000000000003" / "__0_0.1-1.distcp" / "in the way").mkdir(parents=True)
    slow.let_go()
    with pytest.raises(KeepstepError, match="rank 0: give its name to"):
        link.await_complete()
    link.await_file()
    successor = background.link(place)
    (ended,) = successor.await_free(0, 7)
    assert ended["attempt"] == writer.attempt
    assert "rank 0: give its name to" in ended["error"]
    hand_over(background, place, 4)[0].await_complete()
    assert_whole(place, 4)


def test_another_process_takes_over_what_the_first_one_was_asked_for(tmp_path, backgrounds):
    background = backgrounds()
    link, _ = hand_over(background, tmp_path, 1)
    link.await_complete()
    background.kill()
    assert link.await_free(0, 7) == []
    hand_over(background, tmp_path, 2)[0].await_complete()
    background.kill()
    for await_it in (link.await_file, link.await_complete):  # nor is the next one asked about what it was not handed
        with pytest.raises(KeepstepError, match="background_writer_ended"):
            await_it()
    assert steps_of(tmp_path) == [1, 2]
    assert_whole(tmp_path, 2)


def test_files_of_another_node_complete_the_save_once_it_says_so(tmp_path, backgrounds, held):
    """Two nodes, whose messages this process carries as their agents would."""
    slow = held("/__1_0.1-1.distcp")
    place = tmp_path / "saves"
    nodes = [backgrounds(node=0), backgrounds(node=1, environment=slow.environment)]
    carried = [threading.Thread(target=carry, args=(nodes, number), daemon=True) for number in (0, 1)]
    for each in carried:
        each.start()
    first, second = nodes[0].link(place), nodes[1].link(place)
    begun, node = first.begin(3)
    assert node == 0
    names = [_checkpoint.data_file_name(rank, 0, begun.token, begun.attempt) for rank in (0, 1)]
    memory = Memory({"part": torch.zeros(2, 5)})
    layout = _checkpoint.Layout()
    layout.files = names
    parts = []
    for rank, link in enumerate((first, second)):
        memory.tensors["part"].fill_(rank)
        recipe = Recipe(memory.address, memory.bytes)
        recipe.append(b"before")
        recipe.append_memory(memory.tensors["part"].data_ptr(), memory.tensors["part"].nbytes)
        link.hand_over_file(begun, rank, node, recipe, memory.fd)
        parts.append(_checkpoint.Part([2 * rank, 0], [2, 5], _checkpoint.Extent(rank, 0, recipe.size), 6))
        if rank == 0:
            link.await_file()  # the memory is used for the other one, too
    layout.add_tensor("whole", _checkpoint.TensorEntry("float32", [4, 5], ["whole"], parts))
    metadata = b"what DCP would write"
    manifest = _checkpoint.Manifest(
        step=3, world=2, created_s=1, job="one job", token=begun.token, layout=layout,
        sums=[_checkpoint.sums_to_come(46), _checkpoint.sums_to_come(46)], metadata=_checkpoint.sums_of(metadata),
    )  # fmt: skip
    first.hand_over_rest(begun, manifest, metadata, generation=1)
    slow.wait()
    assert not steps_of(place)
    slow.let_go()
    first.await_complete()
    second.await_file()
    stored = _checkpoint.Catalog(_checkpoint.open_store(place.as_uri())).manifest(3)
    for rank, (name, sums) in enumerate(zip(names, stored.sums, strict=True)):
        written = (place / "step-000000000003" / name).read_bytes()
        assert written == b"before" + torch.full((2, 5), float(rank)).numpy().tobytes()
        assert sums.whole == _checkpoint.sums_of(written).whole


def test_a_save_is_given_up_when_a_node_is_lost_that_writes_for_it(tmp_path, backgrounds, held):
    slow = held("/__1_0.1-1.distcp")
    nodes = [backgrounds(node=0), backgrounds(node=1, environment=slow.environment)]
    first, second = nodes[0].link(tmp_path), nodes[1].link(tmp_path)
    begun, node = first.begin(3)
    memory = Memory({"part": torch.zeros(2, 5)})
    recipe = Recipe(memory.address, memory.bytes)
    recipe.append_memory(memory.address, 40)
    second.hand_over_file(begun, 1, node, recipe, memory.fd)
    ((to, news),) = [heard_from(nodes[1])]
    assert to == 0
    layout = _checkpoint.Layout()
    layout.files = [_checkpoint.data_file_name(1, 0, begun.token, begun.attempt)]
    layout.add_object("some", _checkpoint.ObjectEntry(["some"], _checkpoint.Extent(0, 0, 1)))
    metadata = b"what DCP would write"
    manifest = _checkpoint.Manifest(
        step=3, world=2, created_s=1, job="one job", token=begun.token, layout=layout,
        sums=[_checkpoint.sums_to_come(40)], metadata=_checkpoint.sums_of(metadata),
    )  # fmt: skip
    first.hand_over_rest(begun, manifest, metadata, generation=1)
    slow.wait()
    tell(nodes[0], 1, news)
    packets.send(nodes[0].agent, {"gone": 2})  # which writes nothing
    packets.send(nodes[0].agent, {"gone": 1})
    with pytest.raises(KeepstepError, match="node 1's, which has no ranks any more"):
        first.await_complete()
    assert not steps_of(tmp_path)
    hand_over(nodes[0], tmp_path, 4)[0].await_complete()
    assert_whole(tmp_path, 4)


def heard_from(node):
    """Which node it has something to say to, and what."""
    message, (fd,) = packets.receive(node.agent)
    body = packets.body_of(fd)
    os.close(fd)
    return message["to"], body


def tell(node, sender, body):
    copy = packets.memory_of("keepstep-news", body)
    packets.send(node.agent, {"from": sender, "bytes": len(body)}, (copy,))
    os.close(copy)


def carry(nodes, number):
    while True:
        try:
            received = packets.receive(nodes[number].agent)
        except OSError:
            return
        if received is None:
            return
        message, fds = received
        if "to" in message:
            (fd,) = fds
            tell(nodes[message["to"]], number, packets.body_of(fd))
            os.close(fd)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[" * 100_000, "[]", "{}", '{"kind": "written", "url": "u", "key": 7}',
        '{"kind": "written", "url": "u", "key": "k"}', '{"kind": "written", "url": "u", "key": "k", "sums": [1, 2, 3]}',
        '{"kind": "written", "url": "u", "key": "k", "sums": [1, 0, 0, []]}',
        '{"kind": "written", "url": "u", "key": "k", "sums": [1, 0, 0, [[0, -1]]]}',
        '{"kind": "written", "url": "u", "key": "k", "sums": [1, 0, 0, [[0, true]]]}',
        '{"kind": "written", "url": "u", "key": "k", "sums": [9999999999999999999999, 0, 0, []]}',
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_what_another_node_says_that_cannot_be_is_refused(text):
    said = []
    news = News(lambda node, message: said.append(message), lambda: None)
    with pytest.raises(KeepstepError, match="cannot be read"):
        news.take(1, text)
    assert not said and news.of(("u", "k")) is None


def test_sums_come_back_as_they_were():
    for size in (0, 1, 4 << 20, (4 << 20) + 1):
        sums = _checkpoint.sums_of(bytes(size))
        again = from_json(json.loads(json.dumps(as_json(sums))))
        assert again.__getstate__() == sums.__getstate__()


def garbage(kind, memory):
    """What a request for a file could hold that it must not; the descriptors it comes with."""
    recipe = Recipe(memory.address, memory.bytes)
    recipe.append(b"literal")
    packed, size, shared = recipe.packed(), recipe.size, memory.fd
    if kind == "a range outside the memory":
        packed = b"\1" + (memory.bytes - 3).to_bytes(8, "little") + (4).to_bytes(8, "little")
        size = 4
    elif kind == "a range that runs over":
        packed = b"\1" + (2**64 - 1).to_bytes(8, "little") + (4).to_bytes(8, "little")
    elif kind == "a literal that is cut off":
        packed = packed[:-1]
    elif kind == "an unknown piece":
        packed = b"\7" + packed[1:]
    elif kind == "another size":
        size += 1
    elif kind == "memory that can shrink":
        shared = os.memfd_create("loose")
        os.ftruncate(shared, 100)
    return size, packets.memory_of("recipe", packed), shared


@pytest.mark.parametrize(
    "kind",
    [
        "a range outside the memory", "a range that runs over", "a literal that is cut off", "an unknown piece",
        "another size", "memory that can shrink",
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_writes_nothing(tmp_path, backgrounds, kind):
    background = backgrounds()
    memory = Memory({"part": torch.zeros(100)})
    link = background.link(tmp_path)
    begun, node = link.begin(3)
    size, recipe, shared = garbage(kind, memory)
    link._ask({"op": "file", **begun._asdict(), "rank": 0, "node": node, "bytes": size}, (recipe, shared))
    link.await_file()
    metadata = b"of DCP"
    layout = _checkpoint.Layout()
    layout.files = [_checkpoint.data_file_name(0, 0, begun.token, begun.attempt)]
    layout.add_object("some", _checkpoint.ObjectEntry(["some"], _checkpoint.Extent(0, 0, 1)))
    manifest = _checkpoint.Manifest(
        step=3, world=1, created_s=1, job="one job", token=begun.token, layout=layout,
        sums=[_checkpoint.sums_to_come(size)], metadata=_checkpoint.sums_of(metadata),
    )  # fmt: skip
    link.hand_over_rest(begun, manifest, metadata, generation=1)
    with pytest.raises(KeepstepError, match=r"recipe|sealed"):
        link.await_complete()
    assert not list(tmp_path.glob("step-*"))
    again, _ = hand_over(background, tmp_path, 4)
    again.await_complete()
    assert_whole(tmp_path, 4)


@pytest.mark.parametrize(
    "message",
    [
        {"op": "begin"}, {"op": "begin", "step": -1}, {"op": "begin", "step": "7"}, {"op": "file", "step": 1},
        {"op": "nothing"}, {"op": ["begin"]}, {}, {"op": "complete"}, {"op": "await_complete"},
        {"op": "prune", "keep": 1}, {"op": "open", "url": "ftp://x", "job": "", "environment": {}},
        {"op": "open", "url": 7, "job": "", "environment": {}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_request_that_cannot_be_is_refused_and_the_next_one_answered(tmp_path, backgrounds, message):
    link = backgrounds().link(tmp_path)
    link.claim()
    with pytest.raises(KeepstepError):
        link._ask(message)
    assert link.await_free(0, 7) == []


def test_a_packet_that_is_no_json_and_one_of_a_save_that_another_followed(tmp_path, backgrounds):
    background = backgrounds()
    link = background.link(tmp_path)
    link.claim()
    for nonsense in (b"\xff{", b"[]", b"[" * 100_000, b"{" * 1000, b'{"op": 1' + b"0" * 10_000 + b"}"):
        link._connection.send(nonsense)
        answer, _ = packets.receive(link._connection)
        assert "error" in answer
    begun, node = link.begin(1)
    other = Begun(begun.step, begun.token + 1, begun.attempt)
    manifest = _checkpoint.Manifest(
        step=1, world=1, created_s=1, job="", token=other.token, layout=_checkpoint.Layout(), sums=[],
        metadata=_checkpoint.sums_of(b"x"),
    )  # fmt: skip
    with pytest.raises(KeepstepError, match="another one followed"):
        link.hand_over_rest(other, manifest, b"x", generation=1)
    assert node == 0

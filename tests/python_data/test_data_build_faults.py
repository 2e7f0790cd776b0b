"""`keepstep data build` is killed, stopped, and runs out of disk: nothing half-built looks whole, and it goes on."""

import ctypes
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from build_inputs import KEEPSTEP, command, json_lines, run, sources

LIMIT_S = 120


def until(condition, what):
    """Waits for what another process does; fails after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        os.sched_yield()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid):
    """No such process, or one that only waits for its parent to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three parts: two that are quick, and one of sixty million empty lines, during which there is time to kill."""
    folder = tmp_path_factory.mktemp("shards")
    texts = [text for _, text in sources()]
    for number in (0, 1):
        (folder / f"{number}.jsonl").write_text(json_lines(texts[number::2]))
    compressor = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS + 16)
    member = compressor.compress(b"\n" * 10_000_000) + compressor.flush()
    (folder / "2.jsonl.gz").write_bytes(member * 6)
    return folder


@pytest.fixture(scope="module")
def undisturbed(shards, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("undisturbed") / "corpus"
    process = command("build", "--input", shards, "--out", prefix, "--json", "--workers", 1)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert json.loads(out)["parts"] == 3 and json.loads(out)["parts_kept"] == 0
    return prefix


def begun(shards, prefix, *options):
    """A build whose first two parts are done and whose third is under way; and its worker."""
    process = command("build", "--input", shards, "--out", prefix, "--json", "--workers", 1, *options)
    folder = Path(f"{prefix}.building")
    until(lambda: any(folder.glob("000002.*")) or process.poll() is not None, "the third part is begun")
    assert process.poll() is None, process.communicate()
    (worker,) = children(process.pid)
    return process, worker


def assert_it_goes_on(shards, prefix, undisturbed):
    assert not prefix.with_suffix(".bin").exists() and not prefix.with_suffix(".idx").exists()
    process = command("build", "--input", shards, "--out", prefix, "--json", "--workers", 2)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert json.loads(out)["parts_kept"] == 2
    for suffix in (".bin", ".idx"):
        assert prefix.with_suffix(suffix).read_bytes() == undisturbed.with_suffix(suffix).read_bytes()
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["corpus.bin", "corpus.build.json", "corpus.idx"]


def test_a_killed_build_leaves_nothing_that_looks_whole_and_goes_on(shards, undisturbed, tmp_path):
    prefix = tmp_path / "corpus"
    process, worker = begun(shards, prefix)
    process.kill()
    process.communicate()
    until(lambda: gone(worker), "its worker dies with it")
    assert_it_goes_on(shards, prefix, undisturbed)


def test_ctrl_c_ends_all_processes_and_says_how_to_go_on(shards, undisturbed, tmp_path):
    prefix = tmp_path / "corpus"
    process, worker = begun(shards, prefix)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    kept = f"finished parts are kept in {prefix}.building: the same command goes on from there"
    assert err == f"keepstep data build: stopped; {kept}\n"
    assert gone(worker)
    assert_it_goes_on(shards, prefix, undisturbed)


def test_a_killed_worker_ends_the_build_and_is_named(shards, undisturbed, tmp_path):
    prefix = tmp_path / "corpus"
    process, worker = begun(shards, prefix)
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert (
        f"worker {worker} was killed by SIGKILL (out of memory?) while it built part 2, from '{shards}/2.jsonl.gz'"
        in err
    )
    assert_it_goes_on(shards, prefix, undisturbed)


def test_another_build_at_the_same_time_is_refused(shards, tmp_path):
    prefix = tmp_path / "corpus"
    process, _ = begun(shards, prefix)
    other = command("build", "--input", shards, "--out", prefix, "--force")
    _, err = other.communicate(timeout=LIMIT_S)
    assert other.returncode == 1 and "another build writes" in err
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_build_goes_on_only_with_the_same_input_and_options(tmp_path, capsys):
    texts = [text for _, text in sources()]
    shard = tmp_path / "a.jsonl"
    lines = json_lines(texts).splitlines(keepends=True)
    lines[-1] = "broken\n"  # in the last part: the others are done
    shard.write_text("".join(lines))
    build = ["build", "--input", shard, "--out", tmp_path / "corpus", "--workers", 1, "--json"]
    assert "broken JSON" in run(capsys, *build).err
    building = tmp_path / "corpus.building"
    assert (building / "000000.json").exists()
    before = {path.name: path.stat().st_mtime_ns for path in building.iterdir()}
    refused = run(capsys, *build, "--append-eod")
    assert refused.code == 1 and "holds an unfinished different build: vocabulary was 256, now 257" in refused.err
    assert "on_error_skip was False, now True" in run(capsys, *build, "--on-error", "skip").err
    (tmp_path / "b.jsonl").write_text(json_lines(["more"]))
    more = [*build[:3], tmp_path / "b.jsonl", *build[3:]]
    assert f"'{tmp_path}/b.jsonl' is new among the input" in run(capsys, *more).err
    assert {path.name: path.stat().st_mtime_ns for path in building.iterdir()} == before
    shard.write_text(json_lines(texts))
    assert f"'{shard}' has changed" in run(capsys, *build).err
    built = run(capsys, *build, "--force").json
    assert built["documents"] == len(texts) and built["parts_kept"] == 0 and not building.exists()


def test_a_part_that_changed_on_disk_is_not_joined(tmp_path, capsys):
    lines = json_lines(text for _, text in sources()).splitlines(keepends=True)
    shard = tmp_path / "a.jsonl"
    shard.write_text("".join(lines[:-1]) + "broken\n")
    build = ["build", "--input", shard, "--out", tmp_path / "corpus", "--workers", 1, "--json"]
    assert run(capsys, *build).code == 1
    with open(tmp_path / "corpus.building" / "000000.bin", "r+b") as part:
        part.write(b"\0" * 100)  # as after a power loss
    changed = shard.stat().st_mtime_ns
    shard.write_text("".join(lines[:-1]) + " " * 6 + "\n")  # as many bytes, without the mistake
    os.utime(shard, ns=(changed, changed))
    failed = run(capsys, *build)
    assert failed.code == 1 and "000000.bin' is not what was written" in failed.err
    assert not (tmp_path / "corpus.idx").exists()
    assert run(capsys, *build).json["documents"] == len(lines) - 1
    assert run(capsys, "verify", tmp_path / "corpus").code == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, with 3 MiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "disk"
    place.mkdir()
    if libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=3m") != 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    yield place, lambda: libc.mount(b"none", str(place).encode(), b"tmpfs", 32, b"size=64m")  # MS_REMOUNT
    assert libc.umount2(str(place).encode(), 2) == 0


def test_a_full_disk_is_named_and_the_build_goes_on_when_there_is_room(tmp_path, small_disk, capsys):
    disk, enlarge = small_disk
    texts = [text for _, text in sources()]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    build = ["build", "--input", tmp_path / "a.jsonl", "--out", disk / "corpus", "--workers", 1, "--json"]
    failed = run(capsys, *build)
    assert failed.code == 1 and "No space left on device" in failed.err and "finished parts are kept" in failed.err
    assert not (disk / "corpus.bin").exists() and not (disk / "corpus.idx").exists()
    assert enlarge() == 0
    built = run(capsys, *build).json
    assert built["documents"] == len(texts) and built["parts_kept"] >= 1
    assert run(capsys, "verify", disk / "corpus").code == 0


def test_a_limit_on_file_sizes_met_while_joining_leaves_no_corpus(tmp_path):
    texts = [text for _, text in sources()]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    limit = 3 << 20  # parts are smaller, the corpus is larger
    words = ["build", "--input", tmp_path / "a.jsonl", "--out", tmp_path / "corpus", "--workers", 1, "--json"]
    process = command(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1 and "File too large" in err and "corpus.building/joined.bin" in err
    assert sorted(path.name for path in tmp_path.glob("corpus*")) == ["corpus.building"]
    process = command(*words)
    out, _ = process.communicate(timeout=LIMIT_S)
    built = json.loads(out)
    assert built["parts_kept"] == built["parts"] and built["documents"] == len(texts)


JOIN_AND_DIE = """
import os, signal, sys
from keepstep.data.builder import command

command.SYNC_BYTES = 1  # so that each part goes as soon as it is in
deleted, remove = 0, command._remove

def one_more(path):
    global deleted
    when, last = sys.argv[1], int(sys.argv[2])
    if path.endswith(".bin") and deleted == last and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    remove(path)
    deleted += path.endswith(".bin")
    if path.endswith(".bin") and deleted == last and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

command._remove = one_more
sys.exit(command.main(sys.argv[3:]))
"""


def join_and_die(when, last, *words):
    """A build that is killed while it joins: around the deletion of its part number `last`."""
    arguments = [sys.executable, "-c", JOIN_AND_DIE, when, last, *words]
    process = subprocess.run([str(each) for each in arguments], capture_output=True, text=True, timeout=LIMIT_S)
    return process.returncode, process.stderr


@pytest.fixture(scope="module")
def many_parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many-parts")
    texts = [text for _, text in sources()]
    (folder / "a.jsonl").write_text(json_lines(texts * 3))
    build = ["--input", folder / "a.jsonl", "--workers", 2, "--json"]
    process = command("build", *build, "--out", folder / "whole")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and json.loads(out)["parts"] >= 4, err
    return folder, build, json.loads(out)


@pytest.mark.parametrize(("when", "last"), [("before", 0), ("after", 1), ("before", 2), ("after", 3)])
def test_a_build_killed_while_it_joins_goes_on_without_the_parts_that_are_in(many_parts, tmp_path, when, last):
    folder, build, whole = many_parts
    prefix = tmp_path / "corpus"
    code, err = join_and_die(when, last, *build, "--out", prefix)
    assert code == -signal.SIGKILL, err
    assert not prefix.with_suffix(".bin").exists() and not prefix.with_suffix(".idx").exists()
    assert len(list(Path(f"{prefix}.building").glob("0*.bin"))) == whole["parts"] - last
    process = command("build", *build, "--out", prefix)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert json.loads(out)["parts_kept"] == whole["parts"]
    for suffix in (".bin", ".idx"):
        assert prefix.with_suffix(suffix).read_bytes() == (folder / "whole").with_suffix(suffix).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.bin", "corpus.build.json", "corpus.idx"]


def test_what_was_lost_of_the_joined_file_is_built_again(many_parts, tmp_path):
    folder, build, whole = many_parts
    prefix = tmp_path / "corpus"
    assert join_and_die("after", 2, *build, "--out", prefix)[0] == -signal.SIGKILL
    os.truncate(f"{prefix}.building/joined.bin", 1000)
    process = command("build", *build, "--out", prefix)
    assert "000000.bin' is not what was written" in process.communicate(timeout=LIMIT_S)[1]
    process = command("build", *build, "--out", prefix)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert json.loads(out)["parts_kept"] == whole["parts"] - 2
    assert prefix.with_suffix(".bin").read_bytes() == (folder / "whole").with_suffix(".bin").read_bytes()


def test_joining_needs_room_for_one_part_more_and_not_for_all_of_them(many_parts, tmp_path):
    folder, build, whole = many_parts
    disk = tmp_path / "disk"
    disk.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    room = whole["bytes"] * 5 // 4 + (4 << 20)  # the corpus, a part, indexes
    assert room < 2 * whole["bytes"]
    if libc.mount(b"none", str(disk).encode(), b"tmpfs", 0, f"size={room}".encode()) != 0:
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        code, err = join_and_die("never", 0, *build, "--out", disk / "corpus")
        assert code == 0, err
        assert (disk / "corpus.bin").read_bytes() == (folder / "whole.bin").read_bytes()
    finally:
        assert libc.umount2(str(disk).encode(), 2) == 0


def test_a_terminal_gets_a_bar(tmp_path):
    (tmp_path / "a.jsonl").write_text(json_lines(text for _, text in sources()))
    words = [KEEPSTEP, "data", "build", "--input", tmp_path / "a.jsonl", "--out", tmp_path / "corpus", "--workers", 1]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm"}
        )
        os.close(theirs)
        seen = b""
        try:
            while data := terminal.read(4096):
                seen += data
        except OSError:  # the other end is closed
            pass
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert b"reading" in seen and b"%" in seen and b"B/s" in seen

"""For all tests: what a process inherits from whoever started them, and how several pytests share the tests out."""

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Behind `&` of a script SIGINT is ignored, and so it would be in every command that a test starts and sends a Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Jobs of tests are found by commands of the same pytest, and leave nothing where other jobs of this user are.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="keepstep-runtime-")


@atexit.register
def remove_runtime_folder(folder=os.environ["XDG_RUNTIME_DIR"], pid=os.getpid()):
    if os.getpid() == pid:  # not at the end of a process that a test forked
        shutil.rmtree(folder, ignore_errors=True)


@atexit.register
def end_what_tests_started(pid=os.getpid()):
    """After Ctrl-C a test's job would go on training."""
    if os.getpid() != pid:
        return
    for path in Path("/proc/self/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                leads = os.getpgid(child) == child
                os.kill(-child if leads else child, signal.SIGKILL)


for folder in ("servers", "held_files"):
    sys.path.insert(0, str(Path(__file__).resolve().parent / folder))
pytest_plugins = ("s3_servers",)  # the fixtures versitygw and minio


def pytest_addoption(parser):
    parser.addoption(
        "--share", metavar="DIR", help="an empty folder, the same for several pytests: each file's tests run in one"
    )


def pytest_runtestloop(session):
    """With --share: the next file that no other pytest has taken, until there is none."""
    folder = session.config.getoption("share")
    if not folder or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors while collecting")
    mine = itertools.chain.from_iterable(
        items for path, items in itertools.groupby(session.items, lambda item: item.path) if take(folder, path)
    )
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def take(folder, path):
    try:
        os.close(os.open(os.path.join(folder, str(path).replace("/", "-")), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

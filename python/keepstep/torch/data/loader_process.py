"""The loader process: iterates the user's loader and fills the ring. One per node, forked from a rank.

It inherits the user's loader from the rank that forks it: nothing is sent. docs/formats/data_ring.md describes what it
is told, and how its death is noticed.
"""

from __future__ import annotations

import array
import ctypes
import os
import select
import signal
import socket
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from keepstep import _engine, _session
from keepstep._errors import KeepstepError
from keepstep.torch import seeds
from keepstep.torch.data import batch_codec
from keepstep.worker import use_temp_folder

SKIPPED, BATCH, ERROR, END = _engine.ITEM_SKIPPED, _engine.ITEM_BATCH, _engine.ITEM_ERROR, _engine.ITEM_END
_MAX_ERROR_BYTES = 100_000


@dataclass(frozen=True)
class Beginning:
    """A loader's position before item `position`, from a checkpoint."""

    position: int
    epoch: int
    index: int
    state: Any = None  # from Source.state; None if the loader has none


class Source:
    """A loader's epochs, one after the other, starting at any item. Seeds random numbers before each epoch."""

    def __init__(self, loader: Any, seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self._has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._draws_here = _is_torchdatas(loader) and loader.num_workers == 0
        self.epoch = 0
        self.index = 0
        self._iterator: Iterator[Any] | None = None

    def begin(self, epoch: int, index: int, state: Any = None) -> None:
        """Continues with item `index` of `epoch`; `state`: what `state()` returned before that item."""
        self.epoch, self.index = epoch, index
        self._seed_epoch()
        if state is not None and self._has_state:
            self._loader.load_state_dict(state["loader"])
            self._iterator = iter(self._loader)
            if state["random"] is not None:
                seeds.set_generator_states(state["random"])
            return
        self._iterator = iter(self._loader)
        for done in range(index):
            if next(self._iterator, self) is self:
                raise KeepstepError(
                    f"cached: epoch {epoch} of the loader ended after {done} batches, where an earlier run of it had "
                    f"{index} at least. A loader must yield the same epoch each time it is asked for it"
                )

    def begin_at(self, position: int) -> None:
        """Item `position`, counted from the first one of epoch 0."""
        length = _length(self._loader)
        if length:
            self.begin(position // length, position % length)
            return
        self.begin(0, 0)
        for _ in range(position):
            if self.next() is None:
                raise KeepstepError(f"cached: the loader has no batch {position}")

    def next(self) -> tuple[int, int, Any] | None:
        """(epoch, index, item), or None if there are no more. After an epoch comes the next one."""
        assert self._iterator is not None
        for batch in self._iterator:
            self.index += 1
            return self.epoch, self.index - 1, batch
        if self.index == 0:
            return None
        self.begin(self.epoch + 1, 0)
        return self.next()

    def state(self) -> batch_codec.Encoded | None:
        """The loader's own state after the last item; None if it has none that can be stored.

        For torchdata's loader the random state of this process is included, so that a data set draws the same numbers
        (to augment samples) after a death. Its workers draw from their own random state, which cannot be read. Other
        loaders may need the epoch's seed to find their order again.
        """
        if not self._has_state:
            return None
        try:
            random = seeds.generator_states() if self._draws_here else None
            state = {"loader": self._loader.state_dict(), "random": random}
            return batch_codec.Encoded(state, "the loader's state_dict()")
        except KeepstepError as error:
            self._has_state = False
            sys.stderr.write(f"keepstep: a new loader process will run the epoch forward: {error}\n")
            return None

    def _seed_epoch(self) -> None:
        value = _engine.mix_seed(self._seed, self.epoch)
        seeds.seed_all(value)
        loader = self._loader
        samplers = samplers_of(loader)
        for part in (loader, *samplers):
            generator = getattr(part, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(value & ((1 << 63) - 1))
        for part in (loader, getattr(loader, "dataset", None), *samplers):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)


def samplers_of(loader: Any) -> list[Any]:
    """The objects that may decide which samples a DataLoader yields, and in which order; None for each missing one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]


def _is_torchdatas(loader: Any) -> bool:
    """Whether its state contains its order, so that it needs no random numbers to continue."""
    return any(each.__module__.startswith("torchdata.") for each in type(loader).__mro__)


def _length(loader: Any) -> int:
    """Items of an epoch; 0 if the loader cannot say."""
    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return 0  # what it says is a guess
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def start(loader: Any, ring: _engine.Ring, fd: int, seed: int, beginning: Beginning | None) -> None:
    """Forks the loader process of `ring`. `fd`: from `ring.ask_for_loader`; closed here."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # our threads and torch's, which the child does not need
        middle = os.fork()
    if middle == 0:
        # Twice, so that it is not our child: it outlives us, and its new parent sees how it ends.
        code, middle = 1, os.getpid()
        try:
            if os.fork() == 0:
                _await_end(middle)
                _run(loader, ring, fd, seed, beginning)
            code = 0
        finally:
            os._exit(code)
    os.close(fd)
    os.waitpid(middle, 0)


def _await_end(parent: int) -> None:
    """Waits until `parent` is gone: only then can our new parent see how we end."""
    if os.getppid() == parent:
        try:
            pidfd = os.pidfd_open(parent)
        except ProcessLookupError:
            return
        select.select([pidfd], [], [])
        os.close(pidfd)


def _run(loader: Any, ring: _engine.Ring, fd: int, seed: int, beginning: Beginning | None) -> NoReturn:
    code = 1
    try:
        _leave_the_rank(loader, fd)
        channel = socket.socket(fileno=fd)
        _say_hello(channel)
        threading.Thread(target=_end_with_the_agent, args=(channel,), daemon=True).start()
        fill(loader, ring.writer(), seed, beginning)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        _end(code)


def _leave_the_rank(loader: Any, channel: int) -> None:
    """Drops what belongs to the rank that forked us and not to a loader process."""
    os.setsid()
    use_temp_folder(f"loader{os.getpid()}")  # the rank's own ends with the rank
    _cut_connections(channel)
    _session.set_session(None)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(15, b"keepstep-loader", 0, 0, 0)  # PR_SET_NAME, for ps
    torch.set_num_threads(1)  # as in a DataLoader's worker; a team of threads does not survive a fork
    if getattr(loader, "pin_memory", False):
        loader.pin_memory = False  # it would start CUDA here


def _cut_connections(channel: int) -> None:
    """The rank's sockets but for `channel`: its peers must see its end, though we live on.

    Their numbers stay taken, so that nobody here who knows one meets another file under it.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) != channel and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.dup2(nowhere, int(name), inheritable=False)
        except OSError:
            pass  # the descriptor that lists the folder is among them
    os.close(nowhere)


def _say_hello(channel: socket.socket) -> None:
    """Tells the agent who we are, and waits for its word."""
    pidfd = os.pidfd_open(os.getpid())
    rights = array.array("i", [pidfd])
    channel.sendmsg([b"{}"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(pidfd)
    if not channel.recv(1024):
        _end(0)  # nobody wants us any more


def _end_with_the_agent(channel: socket.socket) -> None:
    while channel.recv(1024):
        pass
    _end(0)


def _end(code: int) -> NoReturn:
    """Ends, and the workers of a DataLoader with us."""
    _end_children()
    os._exit(code)


def _end_children() -> None:
    for child in _children(os.getpid()):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:
            pass  # that thread is gone
    return found


def fill(loader: Any, writer: _engine.RingWriter, seed: int, beginning: Beginning | None) -> None:
    """Fills the ring from its head until the loader ends, fails, or the process is ended."""
    epoch, index = 0, 0
    try:
        source = Source(loader, seed)
        _resume(source, writer, beginning)
        while True:
            epoch, index = source.epoch, source.index
            item = source.next()
            if item is None:
                break
            epoch, index, batch = item
            _put(writer, epoch, index, batch_codec.Encoded(batch), source.state())
    except Exception as error:
        if _worker_was_killed(loader, error):
            raise  # as if this process had been: its successor loads the batch again
        what = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-_MAX_ERROR_BYTES:]
        _put_text(writer, ERROR, epoch, index, what)
        return
    _put_text(writer, END, epoch, index, b"")


def _worker_was_killed(loader: Any, error: Exception) -> bool:
    """Whether a DataLoader's worker is gone without a word: that is a fault, and no mistake in the loader."""
    if not getattr(loader, "num_workers", 0) or str(error).startswith("Caught "):  # the worker's own exception
        return False
    # Torch says so; or what the dead one was to hand over cannot be had.
    said = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
    return said or isinstance(error, (ConnectionError, EOFError))


def _resume(source: Source, writer: _engine.RingWriter, beginning: Beginning | None) -> None:
    last = writer.last()
    if last is not None:
        kind, epoch, index = last
        if kind in (ERROR, END):
            _end(0)  # it was said already
        state = writer.last_state()
        source.begin(epoch, index + 1, batch_codec.decode(bytearray(state)) if state else None)
    elif beginning is not None and beginning.position == writer.head:
        source.begin(beginning.epoch, beginning.index, beginning.state)
    else:
        source.begin_at(writer.head)


def _put(
    writer: _engine.RingWriter, epoch: int, index: int, batch: batch_codec.Encoded, state: batch_codec.Encoded | None
) -> None:
    pieces = batch.pieces
    if state is not None:
        pieces = pieces + state.moved(batch_codec.aligned(batch.bytes))
    writer.put(BATCH, epoch, index, batch.bytes, 0 if state is None else state.bytes, pieces)


def _put_text(writer: _engine.RingWriter, kind: int, epoch: int, index: int, text: bytes) -> None:
    held = ctypes.create_string_buffer(text, len(text)) if text else None
    pieces = [] if held is None else [(0, ctypes.addressof(held), len(text))]
    writer.put(kind, epoch, index, len(text), 0, pieces)

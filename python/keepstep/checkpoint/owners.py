"""Which namespaces this process writes into: it claims one at its first save and lets go when it ends."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time

from keepstep import _checkpoint

_lock = threading.Lock()  # of the dictionaries
_owners: dict[tuple[int, str], _checkpoint.Owner] = {}
_asking: dict[tuple[int, str], threading.Lock] = {}  # each namespace's own: one that is slow keeps no other waiting
_taken: dict[tuple[int, str], int] = {}  # the token that this process had when another one took it, last
_attempts = itertools.count(1)


def job_name() -> str:
    """The same for every start of one job, where the environment says it; else empty."""
    for name in ("KEEPSTEP_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value not in ("", "none"):  # "none" is what torchrun calls all of its jobs
            return value
    return ""


def owner_of(url: str, store: _checkpoint.Store, job: str) -> _checkpoint.Owner:
    """This process's hold on a namespace, made sure of; claimed if it has none. Error ABORTED: another job has it.

    What was taken from it is claimed again once whoever took it has ended, also where that is a start of the same job:
    of two that live, the one that was taken over stays so.
    """
    key = (os.getpid(), url)  # a forked child is nobody's heir
    with _lock:
        asking = _asking.setdefault(key, threading.Lock())
    with asking:
        owner = _owners.get(key)
        if owner is not None:
            try:
                owner.renew()
            except _checkpoint.Error as error:
                if error.code != "NOT_FOUND" and not (error.code == "ABORTED" and _is_free(store)):
                    raise
                if error.code == "ABORTED":
                    with _lock:
                        _taken[key] = owner.token
                owner = None  # the whole namespace was removed, or nobody has it any more: begin anew
        if owner is None:
            owner = _checkpoint.Owner(store, job)
            with _lock:
                _owners[key] = owner
        return owner


def taken_since(url: str) -> int | None:
    """Where this process lost a namespace and has it again: whoever had it meanwhile has tokens above this one."""
    with _lock:
        return _taken.get((os.getpid(), url))


def _is_free(store: _checkpoint.Store) -> bool:
    try:
        return _checkpoint.read_owner(store).is_gone(int(time.time()))
    except _checkpoint.Error as error:
        if error.code != "NOT_FOUND":
            raise
        return True


def next_attempt() -> int:
    """A number that no save of this process had before: what it writes has names of its own."""
    return next(_attempts)


def let_go(url: str | None = None) -> None:
    """Of one namespace, or of all."""
    with _lock:
        keys = [key for key in _owners if key[0] == os.getpid() and url in (None, key[1])]
        released = [_owners.pop(key) for key in keys]
    # Side by side: each that cannot be reached takes 10 s.
    threads = [threading.Thread(target=_release, args=(owner,), name="keepstep-let-go") for owner in released[1:]]
    for thread, owner in zip(threads, released[1:], strict=True):
        try:
            thread.start()
        except RuntimeError:  # not any more, at the end of the interpreter
            _release(owner)
    for owner in released[:1]:
        _release(owner)
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def _release(owner: _checkpoint.Owner) -> None:
    with contextlib.suppress(_checkpoint.Error):
        owner.release()  # else it was taken over, or cannot be reached, and the lease runs out


atexit.register(let_go)

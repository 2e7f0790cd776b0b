"""The namespaces that this process writes to: it claims each at its first save and releases it when it ends."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time

from keepstep import _checkpoint

_lock = threading.Lock()  # protects the dictionaries
_owners: dict[tuple[int, str], _checkpoint.Owner] = {}
_asking: dict[tuple[int, str], threading.Lock] = {}  # one per namespace, so a slow one does not delay the others
_taken: dict[tuple[int, str], int] = {}  # this process's token when another one last took the namespace
_attempts = itertools.count(1)


def job_name() -> str:
    """The job's name from the environment, the same for every start of the job; empty if there is none."""
    for name in ("KEEPSTEP_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name, "")
        if value not in ("", "none"):  # torchrun calls all of its jobs "none"
            return value
    return ""


def owner_of(url: str, store: _checkpoint.Store, job: str) -> _checkpoint.Owner:
    """Claims a namespace for this process, or confirms that it still owns it. Error ABORTED: another job owns it.

    A namespace that was taken over is claimed again once its new owner has ended, even if that is a later start of the
    same job. While both live, the process that lost the namespace does not take it back.
    """
    key = (os.getpid(), url)  # a forked child inherits nothing
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
                owner = None  # the namespace was removed or has no owner any more: claim it again
        if owner is None:
            owner = _checkpoint.Owner(store, job)
            with _lock:
                _owners[key] = owner
        return owner


def taken_since(url: str) -> int | None:
    """This process's token before it lost a namespace, if it did. Owners since then have higher tokens."""
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
    """A number that no save of this process has used, so its file names are unique."""
    return next(_attempts)


def let_go(url: str | None = None) -> None:
    """Releases one namespace, or all."""
    with _lock:
        keys = [key for key in _owners if key[0] == os.getpid() and url in (None, key[1])]
        released = [_owners.pop(key) for key in keys]
    # In parallel, because each unreachable one takes 10 s.
    threads = [threading.Thread(target=_release, args=(owner,), name="keepstep-let-go") for owner in released[1:]]
    for thread, owner in zip(threads, released[1:], strict=True):
        try:
            thread.start()
        except RuntimeError:  # impossible at interpreter exit
            _release(owner)
    for owner in released[:1]:
        _release(owner)
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def _release(owner: _checkpoint.Owner) -> None:
    with contextlib.suppress(_checkpoint.Error):
        owner.release()  # on an error it was taken over, or is unreachable and its lease will expire


atexit.register(let_go)

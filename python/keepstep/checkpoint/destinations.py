"""Destinations and checkpoints as users name them, and the checkpoint that is meant."""

from __future__ import annotations

import functools
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep import _checkpoint
from keepstep._command import keepstep_command
from keepstep._errors import KeepstepError

METADATA = ".metadata"
MAX_METADATA_BYTES = 1 << 29
FORMS = "a folder, file:///folder, s3://bucket/prefix or memory://NAME (a letter first)"


def url_of(destination: str | os.PathLike[str]) -> str:
    """``file:///data/run`` for a path; a URL unchanged."""
    text = os.fspath(destination)
    if "://" in text:
        return text
    if not text:
        raise KeepstepError(f"a destination for checkpoints is needed: {FORMS}")
    return Path(text).absolute().as_uri()


def in_memory(destination: str | os.PathLike[str]) -> bool:
    """Whether it is in this machine's memory server: what begins with a digit, or has a colon, is a running job's."""
    return re.fullmatch(r"memory://[A-Za-z][A-Za-z0-9._-]{0,99}(\?.*)?", os.fspath(destination)) is not None


def with_drain(url: str, drain: str | os.PathLike[str], keep: int | None) -> str:
    """``memory://run?drain=file%3A...``: a destination in memory whose checkpoints are copied to `drain`."""
    if not in_memory(url) or "?" in url:
        raise KeepstepError(f"drain={os.fspath(drain)!r} with the destination '{url}'; a drain is of a memory://NAME")
    if keep is not None and keep < 1:
        raise KeepstepError(f"drain_keep={keep}; at least 1 is needed, or None to keep all")
    kept = "" if keep is None else f"&drain_keep={keep}"
    return f"{url}?drain={urllib.parse.quote(url_of(drain), safe='')}{kept}"


def open_store(destination: str | os.PathLike[str], environment: dict[str, str] | None = None) -> _checkpoint.Store:
    """`environment`: the variables in which S3 finds its credentials; None: os.environ."""
    memory = os.fspath(destination).startswith("memory://")
    if memory and not in_memory(destination):
        raise KeepstepError(
            f"'{destination}' is the memory of a running job, which `keepstep ckpt ls`, `show` and `verify` look into. "
            f"A destination for checkpoints is {FORMS}"
        )
    try:
        return _checkpoint.open_store(url_of(destination), environment, keepstep_command() if memory else "")
    except _checkpoint.Error as error:
        raise KeepstepError(f"'{destination}' is no destination for checkpoints: {error}") from None


def split_step(text: str) -> tuple[str, int | None]:
    """``out/run@120`` is step 120 of ``out/run``."""
    found = re.fullmatch(r"(.+)@(\d+)", text)
    return (found[1], int(found[2])) if found else (text, None)


@dataclass(frozen=True)
class Opened:
    """A checkpoint that was found."""

    store: _checkpoint.Store
    folder: str  # "", or ends with a slash
    step: int | None  # None for one that DCP itself wrote
    manifest: _checkpoint.Manifest | None  # None for one that DCP itself wrote
    layout: _checkpoint.Layout
    skipped: Sequence[str]  # why newer ones were passed over

    @functools.cached_property
    def tensors(self) -> dict[str, _checkpoint.TensorEntry]:
        return self.layout.tensors  # a copy each time

    @functools.cached_property
    def objects(self) -> dict[str, _checkpoint.ObjectEntry]:
        return self.layout.objects

    @property
    def words(self) -> str:
        """For messages."""
        return f"{self.store.describe()}{'/' + self.folder.rstrip('/') if self.folder else ''}"

    def files(self, others: Sequence[_checkpoint.Store] = (), with_metadata: bool = False) -> _checkpoint.StoredFiles:
        """Its files, to be read and checked. A chunk that is corrupt here is read from `others`, in order."""
        if self.manifest is None:
            raise KeepstepError(f"{self.words} has no manifest.json: DCP itself wrote it, without checksums")
        folder = _checkpoint.folder_of(self.manifest.step) + "/"
        sources = [(self.store, self.folder), *((other, folder) for other in others)]
        return _checkpoint.StoredFiles(self.manifest, sources, with_metadata)


def _plain(store: _checkpoint.Store, folder: str) -> Opened:
    pickle = store.read_all(folder + METADATA, MAX_METADATA_BYTES)
    try:
        layout = _checkpoint.read_metadata(pickle)
    except _checkpoint.Error as error:
        raise KeepstepError(f"{store.describe()}: '{folder}{METADATA}' cannot be loaded: {error}") from None
    return Opened(store, folder, None, None, layout, ())


def _there(store: _checkpoint.Store, key: str) -> bool:
    try:
        store.head(key)
    except _checkpoint.Error as error:
        if error.code == "NOT_FOUND":
            return False
        raise
    return True


def _of_step(store: _checkpoint.Store, step: int) -> Opened:
    catalog = _checkpoint.Catalog(store)
    folder = _checkpoint.folder_of(step) + "/"
    try:
        manifest = catalog.manifest(step)
    except _checkpoint.Error as error:
        if error.code != "NOT_FOUND":
            raise
        found = {info.step: info for info in catalog.checkpoints()}
        if step in found and found[step].foreign and _there(store, folder + METADATA):
            return _plain(store, folder)
        complete = sorted(info.step for info in found.values() if info.complete)
        what = "is not complete: a save that did not end, or runs" if step in found else "is not there"
        raise KeepstepError(
            f"{store.describe()}: step {step} {what}. Complete are {steps_in_words(complete)}"
        ) from None
    return Opened(store, folder, step, manifest, manifest.layout, ())


def steps_in_words(steps: Sequence[int]) -> str:
    if not steps:
        return "none"
    shown = ", ".join(map(str, steps[-10:]))
    return shown if len(steps) <= 10 else f"{len(steps)} steps, the newest {shown}"


def open_checkpoint(destination: str | os.PathLike[str], step: int | None = None) -> Opened:
    """The checkpoint of `step`, otherwise the newest complete one of a namespace, otherwise the destination itself: a
    single folder of ours or of DCP.

    KeepstepError: there is none, or it cannot be read.
    """
    store = open_store(destination)
    try:
        if step is not None:
            return _of_step(store, step)
        try:
            manifest, skipped = _checkpoint.Catalog(store).newest()
        except _checkpoint.Error as error:
            if error.code != "NOT_FOUND":
                raise
        else:
            folder = _checkpoint.folder_of(manifest.step) + "/"
            return Opened(store, folder, manifest.step, manifest, manifest.layout, skipped)
        if _there(store, "manifest.json"):
            manifest = _checkpoint.Catalog(store).manifest_in("")
            return Opened(store, "", manifest.step, manifest, manifest.layout, ())
        if _there(store, METADATA):
            return _plain(store, "")
        raise KeepstepError(
            f"{store.describe()} has no complete checkpoint: neither step-*/manifest.json nor one of DCP (.metadata)"
        )
    except _checkpoint.Error as error:
        raise KeepstepError(str(error)) from None

"""Joining a generation: report what we hold, hydrate or serve, and go on together."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import torch

from keepstep import _engine
from keepstep._engine import Fill
from keepstep._errors import KeepstepError
from keepstep._session import Session
from keepstep.torch.sharded.shards import Shards
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry, manifest_json
from keepstep.torch.tensors import cuda
from keepstep.torch.tensors.memory import dense, region


def join(
    session: Session,
    registry: Registry,
    capsule: Capsule,
    shards: Shards,
    load: Callable[[int], None] | None = None,
) -> None:
    """Takes part in forming the current generation. Afterwards all ranks are clean at its version.

    `load`: fills the state from where it was saved, for when no peer has it.

    Raises `_engine.Interrupted` when the generation ends before it formed, `KeepstepError` when this rank's protected
    state does not match its peers'.
    """
    engine = session.engine
    version = engine.version
    carried = session.carries_state
    if carried and not shards.wanted:
        engine.set_state("clean", 0)  # ranks that skipped the previous function hydrate from this one
    session.carries_state = False
    fill, gives, texts = engine.ready(shards.wanted, shards.as_built)
    staged: list[torch.Tensor] = []  # what others may read until the generation formed
    if session.unfilled_from and fill is Fill.NOTHING and engine.state()[0] != "clean":
        raise KeepstepError(
            f"the state that {session.unfilled_from}() returned is lost with the processes that held it, before any "
            "rank had committed a step with it. Save it in that function (run.checkpoint), and load it in build of "
            "this one"
        )
    if fill is not Fill.NOTHING:
        engine.filling()
    if fill is Fill.SAVED:
        _load_saved(load, version, shards.wanted)
    elif fill is Fill.PEERS:
        staged = _hydrate(session, registry, capsule, skipped=version == 0 and session.functions > 0 and not carried)
    elif fill is Fill.COPY:
        shards.fill(texts[0], version, capsule)
    elif fill is Fill.PARTS:
        shards.fill_of_parts(texts, version, capsule)
    elif gives:
        flat = registry.flatten_sent(capsule.ids)
        staged = [dense(tensor) for tensor in flat.tensors.values()]
        cuda.synchronize()  # the engine reads beside torch's streams
        inherited = capsule.take() if version == 0 and session.functions > 0 else b""
        engine.publish(manifest_json(flat, inherited), [region(tensor) for tensor in staged])
    try:
        engine.filled()
        restored = fill in (Fill.COPY, Fill.PARTS) or capsule.restore(engine, version)
        if not restored and version == 0:
            capsule.save(engine, 0)  # the start of a job: a redo of its first step begins here
            restored = True
        if not restored and shards.wanted:
            raise KeepstepError(f"the buffers that forward changed in step {version} are lost in this process")
        engine.want_capsule(not (capsule.empty or shards.wanted))
        engine.form()
    except _engine.Interrupted:
        raise
    except Exception:
        if fill is not Fill.NOTHING:
            engine.drop_state()  # leaving restores options as this process's last commit left them, not the peer's
        raise
    finally:
        if staged:
            engine.stop_publishing()
    session.unfilled_from = ""
    # What was lost with its node came from another one while the generation formed, if any had a copy.
    if not restored and not capsule.restore(engine, version):
        raise KeepstepError(
            f"the per-rank buffers of rank {session.rank_or_none} at step {version} (BatchNorm statistics and "
            "the like) are lost with the processes that held them, and no other node has a copy; the job cannot go on "
            "with the same bits"
        )
    if shards.wanted:
        shards.copy(version)  # a replacement has no copies elsewhere yet


def _load_saved(load: Callable[[int], None] | None, version: int, sharded: bool) -> None:
    if load is None and sharded:
        raise KeepstepError(f"no copy of what this rank held at step {version} is left")
    if load is None:
        raise KeepstepError(
            f"the state of step {version} was saved, but this rank does not say where: call run.checkpoint on all "
            "ranks alike"
        )
    load(version)


def _hydrate(session: Session, registry: Registry, capsule: Capsule, skipped: bool) -> list[torch.Tensor]:
    """Fills the registry, and the capsule too if this process `skipped` the function before: its own is lost.

    Returns what other newcomers of this node may read until `stop_publishing`.
    """
    engine = session.engine
    manifest = json.loads(engine.pull_manifest())
    names = [name for name, _, _ in manifest["tensors"]]
    capsule.release(names)
    registry.frozen.adopt(names)
    tensors = registry.prepare(manifest["tensors"], manifest["values"], capsule.ids)
    targets = list(tensors.values())
    # A tensor that is not dense receives its bytes in a stand-in.
    stand_ins = [dense(tensor) for tensor in targets]
    session.injector.at("hydrate", engine.version + 1)
    cuda.synchronize()  # kernels that used this memory before may still be running
    engine.pull([region(tensor) for tensor in stand_ins])
    try:
        with torch.no_grad():
            for tensor, stand_in in zip(targets, stand_ins, strict=True):
                if tensor is not stand_in:
                    tensor.copy_(stand_in)
        registry.load_values(manifest["values"], tensors)
        if skipped and manifest["capsule"]:
            capsule.put_back(base64.b64decode(manifest["capsule"]))
    except BaseException:
        engine.stop_publishing()
        raise
    registry.reserved.clear()
    return stand_ins

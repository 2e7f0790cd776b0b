"""Sharded state: what only this rank holds is copied while the next step computes, and restored from the copies.

Follows docs/design/sharded.md; copying, and parity instead of copies elsewhere, are the engine's
(src/rank/shards/shard_replicas.h). A copy is the local bytes of all protected tensors, and a text: their names, the
small values, and the capsule.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from keepstep._errors import KeepstepError
from keepstep._redundancy import Copies, Parity
from keepstep.torch.sharded import fsdp, reshard
from keepstep.torch.sharded.layout import ShardLayout
from keepstep.torch.state.capsule import Capsule
from keepstep.torch.state.registry import Registry
from keepstep.torch.tensors import cuda
from keepstep.torch.tensors.memory import dense, region

if TYPE_CHECKING:
    from keepstep._session import Session


class ShardCounts(NamedTuple):
    """What copying cost. Times are in nanoseconds.

    Attributes:
        versions: copied completely, to all their places.
        bytes: of one version.
        copied_ns: for the newest version.
        given_ns: of that, sending it to other nodes.
        waits: votes that waited for a copy.
        waited_ns: in those votes.
    """

    versions: int
    bytes: int
    copied_ns: int
    given_ns: int
    waits: int
    waited_ns: int


def _copies_and_parity(redundancy: Copies | Parity) -> tuple[int, tuple[int, int]]:
    """In the engine's form: number of nodes; ranks per group; parity blocks (0: copies)."""
    if isinstance(redundancy, Parity):
        return 1, (redundancy.data, redundancy.parity)
    return redundancy.nodes, (0, 0)


class Shards:
    """The copies of one rank's state.

    Attributes:
        divided: ``run.setup(sharded=True)`` built state that depends on the rank.
        of_replicas: copies are wanted though ranks hold the same.
    """

    def __init__(self, session: Session, registry: Registry, redundancy: Copies | Parity) -> None:
        self._session = session
        self._registry = registry
        self._redundancy = redundancy
        self.divided = False
        self.of_replicas = False
        self._held: list[torch.Tensor] = []  # while they are copied
        self._layout: ShardLayout | None = None
        self._trained = False  # this process did a step, so the state is no longer as built
        self._sharded: bool | None = None
        self._every = 1
        self._under_way: int | None = None  # the version that is copied

    def copy_every(self, steps: int) -> None:
        """Makes copies of every `steps`-th version only, and when a generation begins. The same on all ranks."""
        self._every = steps

    def check(self) -> None:
        """Raises if copying only some versions would lose steps that a peer could save."""
        if self._every > 1 and not self.wanted:
            raise KeepstepError(
                f"run.checkpoint(memory_every_steps={self._every}): all ranks hold the same state here, and with "
                f"copies of every {self._every}th step in memory the death of one rank would take all back to the last "
                "of these. Give 1 (copies of every step), or leave it out (living ranks are the copies)"
            )

    @property
    def wanted(self) -> bool:
        """Whether this rank's state is treated as if no other rank held it."""
        if self._sharded is None:
            self._sharded = self.divided or self.of_replicas or self._registry.sharded()
        return self._sharded

    @property
    def as_built(self) -> bool:
        """Whether nothing changed the state since it was built."""
        return not self._trained

    def fill(self, text: bytes, version: int, capsule: Capsule) -> None:
        """Loads the copy of this rank's shard that belongs to this text, and what goes with it."""
        engine = self._session.engine
        written: dict[str, Any] = json.loads(text)
        self._session.injector.at("hydrate", version + 1)
        self._make_way(written, capsule)
        tensors = self._registry.prepare(written["tensors"], written["values"], capsule.ids, set(written["layout"]))
        targets = list(tensors.values())
        stand_ins = [dense(tensor) for tensor in targets]
        cuda.synchronize()
        engine.load_shard(version, [region(tensor) for tensor in stand_ins])
        with torch.no_grad():
            for tensor, stand_in in zip(targets, stand_ins, strict=True):
                if tensor is not stand_in:
                    tensor.copy_(stand_in)
        self._registry.load_values(written["values"], tensors)
        if written["capsule"]:
            engine.save_capsule(version, base64.b64decode(written["capsule"]))
            capsule.restore(engine, version)

    def fill_of_parts(self, texts: list[bytes], version: int, capsule: Capsule) -> None:
        """The state was divided among other ranks, whose shards these texts describe: assembles this rank's new shard
        as a copy of its own, and loads it.
        """
        engine = self._session.engine
        written = [json.loads(text) for text in texts]
        first = written[0]
        reshard.check_alike(written)
        self._make_way(first, capsule)
        parts = self._registry.parts(first["layout"])
        wanted = reshard.local_tensors(first, parts)
        made = self._registry.prepare(wanted, first["values"], capsule.ids, set(parts))
        self._registry.load_values(first["values"], made)
        self._layout = ShardLayout(self._registry, capsule.ids)
        saved = engine.load_capsule(version)  # a survivor keeps its own
        own = first["capsule"] if saved is None else base64.b64encode(saved).decode()
        text = self._layout.text(first["values"], own)
        manifests = [reshard.manifest(each, version) for each in written]
        engine.reshard(version, manifests, reshard.manifest(json.loads(text), version), text)
        self.fill(text, version, capsule)

    def _make_way(self, written: dict[str, Any], capsule: Capsule) -> None:
        """The tensors that this text names are about to be loaded: neither the capsule's nor frozen any more."""
        names = [name for name, _, _ in written["tensors"]]
        capsule.release(names)
        self._registry.frozen.adopt(names)
        fsdp.reset_iteration(self._registry.modules())

    def wait(self, version: int) -> None:
        """Called before the vote on the step after `version`: waits until the copies up to `version` are safe, so their
        sources may change from now on."""
        if self._under_way is not None and self._under_way <= version:
            self._session.engine.wait_shard(self._under_way)
            self._under_way = None
        self._held = []
        self._trained = True  # from here on an update may begin, and fail halfway

    def protect(self, version: int) -> None:
        """Begins to copy the state, which is that of `version`, if that is due."""
        if version % self._every == 0:
            self.copy(version)

    def copy(self, version: int) -> None:
        """Begins to copy the state, which is that of `version`."""
        engine = self._session.engine
        ids = self._session.capsule_ids()
        flat = None if self._layout is None else self._layout.again(ids)
        if self._layout is None or flat is None:
            self._layout = ShardLayout(self._registry, ids)
            flat = self._layout.rest()
        cuda.synchronize()
        self._held = [*self._layout.tensors, *self._layout.stand_ins()]
        saved = engine.load_capsule(version)
        text = self._layout.text(flat.values, "" if saved is None else base64.b64encode(saved).decode())
        engine.protect_shard(version, self._layout.regions, text, *_copies_and_parity(self._redundancy))
        self._under_way = version

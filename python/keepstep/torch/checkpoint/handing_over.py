"""DCP's StorageWriter for ``run.checkpoint``: records what to write, and hands it over."""

from __future__ import annotations

from keepstep import _checkpoint
from keepstep.checkpoint.background.link import Link
from keepstep.checkpoint.background.recipe import Recipe
from keepstep.checkpoint.saving import Begun
from keepstep.torch.checkpoint.snapshot_memory import Memory
from keepstep.torch.checkpoint.writer import File, Writer, _Assignment


class HandingOver(Writer):
    """Like `Writer`, for one save, but this node's background writer, at `link`, does the writing.

    `memory`: where the saved tensors are; set before there is a plan. What is elsewhere is copied into the recipe.
    """

    def __init__(self, url: str, step: int, job: str, link: Link, generation: int) -> None:
        super().__init__(url, step, replace=True, job=job)
        self._link = link
        self._generation = generation
        self.memory: Memory | None = None
        self.attempt = 0  # of the save, on rank 0
        self.has_handed_over = False

    def _begin(self) -> tuple[Begun, int]:
        assert self.step is not None
        begun, node = self._link.begin(self.step)
        self.attempt = begun.attempt
        return begun, node

    def _new_file(self, mine: _Assignment, expected_bytes: int) -> File:
        assert self.memory is not None
        return Recipe(self.memory.address, self.memory.bytes)

    def _end_file(self, mine: _Assignment, file: File) -> _checkpoint.FileSums:
        assert isinstance(file, Recipe) and self.memory is not None
        self.has_handed_over = True  # or it might be
        begun = Begun(mine.step, mine.token, mine.attempt)
        self._link.hand_over_file(begun, mine.rank, mine.node, file, self.memory.fd)
        return file.commit()

    def _complete(self, manifest: _checkpoint.Manifest, metadata: bytes) -> None:
        assert self._planned is not None
        begun = Begun(self._planned.step, self._planned.token, self._planned.attempt)
        self._link.hand_over_rest(begun, manifest, metadata, self._generation)

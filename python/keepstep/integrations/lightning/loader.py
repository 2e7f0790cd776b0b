"""The batches of a Trainer's training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loops.fetchers import _DataFetcher

from keepstep.torch.prepared.batch_source import BatchSource
from keepstep.torch.prepared.prepared_loader import LoaderStep, PreparedLoader, SummedLossStep

if TYPE_CHECKING:
    from keepstep.integrations.lightning.fit import Fit
    from keepstep.torch.runtime.run import Run


class FitLoader(PreparedLoader):
    """A `PreparedLoader` that tells `fit` of its steps."""

    def __init__(self, run: Run, source: BatchSource, per_step: int | None, fit: Fit) -> None:
        super().__init__(run, source, None, per_step)
        self._fit = fit

    def begin(self, epoch: int, batches: int) -> Iterator[Any]:
        """The batches of `epoch` that no committed step has used; `batches`: of this rank, before them."""
        if self._run.version == 0 and self._taken == 0:
            self._begin_at(epoch, batches)  # of a checkpoint; else it is 0, too
        self.set_epoch(epoch)
        return iter(self)

    def batches_in(self, epoch: int) -> int:
        """This rank's, of the whole epoch."""
        begin = self._end_of(epoch - 1) if epoch else self._base
        return self._rounds(begin, self._end_of(epoch))

    def batch_before(self) -> Any:
        """This rank's last batch before the position, loaded again."""
        first = self._run._committed.position - self._size
        [batch] = self._source.batches([(first, first + self._run.rank)], self._size)
        return batch

    def _new_step(self, number: int) -> LoaderStep:
        self._fit.step_begins()
        return SummedLossStep(self, number)

    def _commit(self, update: tuple[Callable[[], Any], ...], communicates: bool, veto: Any) -> None:
        commit = super()._commit
        self._fit.commit(lambda: commit(update, communicates, veto))


class Fetcher(_DataFetcher):
    """What Lightning's loop gets batches from: those of one epoch after another."""

    def __init__(self, loader: FitLoader) -> None:
        super().__init__()
        self.loader = loader
        self._batches: Iterator[Any] | None = None

    def begin(self, epoch: int, batches: int) -> None:
        """`batches` of `epoch` are used."""
        self.finish()
        self._batches = self.loader.begin(epoch, batches)
        self.fetched = batches
        self.length = self.loader.batches_in(epoch)
        self.done = self.fetched >= self.length

    def __iter__(self) -> Fetcher:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self._batches is None or self.done:
            raise StopIteration
        self._start_profiler()
        try:
            batch = next(self._batches)
        finally:
            self._stop_profiler()
        self.fetched += 1
        self.done = self.fetched >= self.length  # type: ignore[operator]
        return batch, self.fetched - 1, 0

    def finish(self) -> None:
        """The epoch is over. If batches are left, nobody gets them."""
        if self.done and self._batches is not None:
            assert next(self._batches, None) is None
        self.drop()

    def drop(self) -> None:
        """An entry is over, however it ended."""
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]

    def reset(self) -> None:
        pass

    def teardown(self) -> None:
        self.drop()


class _Limited:
    """Only the first `length` batches of each epoch of `source`."""

    def __init__(self, source: BatchSource, length: int) -> None:
        self._source = source
        self.length = length

    def _inner(self, number: int) -> int:
        epoch, index = divmod(number, self.length)
        return epoch * self._source.length + index

    def batches(self, rounds: Iterable[tuple[int, int]], size: int) -> Iterator[Any]:
        return self._source.batches(((self._inner(first), self._inner(mine)) for first, mine in rounds), size)

    def samples(self, number: int) -> list[int]:
        return self._source.samples(self._inner(number))


def limited(source: BatchSource, length: int) -> BatchSource:
    """`source`, with epochs of at most `length` batches."""
    return source if length >= source.length else _Limited(source, length)

"""`Blend`: several data sets as one, in shares that hold at every point of the training."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.torch.data.mapped_samples import MappedSamples
from keepstep.torch.data.token_dataset import TokenDataset

if TYPE_CHECKING:
    from keepstep.torch.data.map_dataset import MapDataset


class Blend:
    """Map-style data sets mixed by weight: of the first n samples of the training, n * weight come from each source.

    This holds to within one sample, for every n. A source that ends before the others begins its next epoch, in another
    order. Sample numbers count through the sources, one after the other; `job_order` gives their order from the
    position alone.

    Attributes:
        weights: of each source, by name, as exact fractions that add up to 1. Those that would repeat after more than
            1,048,576 samples are rounded to multiples of 1 / 1,048,576.
        sources: the data sets, by name.
    """

    def __init__(self, weights: Mapping[str, float], **token_dataset: Any) -> None:
        """Opens and mixes corpora: ``Blend({"web": 0.7, "code": 0.3}, sequence_length=2048)``.

        Args:
            weights: a positive weight for each corpus, by its prefix; they need not add up to 1.
            token_dataset: arguments of each `TokenDataset`.
        """
        self._mix({prefix: TokenDataset(prefix, **token_dataset) for prefix in weights}, weights)

    @classmethod
    def of(cls, sources: Mapping[str, MapDataset], weights: Mapping[str, float]) -> Blend:
        """Mixes data sets of any kind, by the same names."""
        if sources.keys() != weights.keys():
            raise KeepstepError(f"Blend.of: sources {sorted(sources)}, weights of {sorted(weights)}")
        blend = cls.__new__(cls)
        blend._mix(dict(sources), weights)
        return blend

    def _mix(self, sources: dict[str, Any], weights: Mapping[str, float]) -> None:
        self.sources = sources
        names = list(sources)
        counts = _counts([weights[name] for name in names], names)
        self._blend = _engine.Blend(counts)
        self.weights = {name: Fraction(count, self._blend.period) for name, count in zip(names, counts, strict=True)}
        self._datasets = list(sources.values())
        self._lengths = [len(source) for source in self._datasets]
        for name, length in zip(names, self._lengths, strict=True):
            if length == 0:
                raise KeepstepError(f"Blend: '{name}' is empty")
        self._starts = [0, *accumulate(self._lengths)]
        layouts = {getattr(source, "layout", None) for source in self._datasets}
        # Then a batch is one allocation, and every source writes its rows into it.
        self._alike = len(layouts) == 1 and all(isinstance(source, MappedSamples) for source in self._datasets)

    def __len__(self) -> int:
        """The samples of all sources. A blend has no epochs."""
        return self._starts[-1]

    def job_order(self, seed: int, position: int, count: int, shuffle: bool = True) -> list[int]:
        """The numbers of the samples at `position` .. `position` + `count` of the training. Constant time for each."""
        sources, own = self._blend.run(position, count)
        numbers = [0] * count
        for source, places in _by_value(sources).items():
            # Samples of one source are neighbours in its own order: the blend takes them in sequence.
            first, length, start = own[places[0]], self._lengths[source], self._starts[source]
            if shuffle:
                samples = _engine.samples_at(_engine.mix_seed(seed, source, 0), first, len(places), length)
            else:
                samples = [(first + i) % length for i in range(len(places))]
            for place, sample in zip(places, samples, strict=True):
                numbers[place] = start + sample
        return numbers

    def _place(self, sample: int) -> tuple[int, int]:
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of a blend, which has {len(self)}")
        source = bisect_right(self._starts, sample) - 1
        return source, sample - self._starts[source]

    def __getitem__(self, sample: int) -> Any:
        source, number = self._place(sample)
        return self._datasets[source][number]

    def _by_source(self, samples: Sequence[int]) -> list[tuple[Any, list[int], list[int]]]:
        """(source, its samples, their rows) of each source that has some."""
        places = [self._place(sample) for sample in samples]
        found = _by_value([source for source, _ in places])
        return [(self._datasets[source], [places[row][1] for row in rows], rows) for source, rows in found.items()]

    def make_batch(self, samples: Sequence[int]) -> Any:
        """These samples as one batch: with one copy if all sources are corpora of one shape, else collated."""
        if not self._alike:
            return default_collate([self[sample] for sample in samples])
        tensors = self._datasets[0].new_batch(len(samples))
        for source, numbers, rows in self._by_source(samples):
            source.fill_batch(tensors, numbers, rows)
        return self._datasets[0].as_sample(tensors)

    def will_need(self, samples: Sequence[int]) -> None:
        """Like `TokenDataset.will_need`, for the sources that have it."""
        for source, numbers, _ in self._by_source(samples):
            if hasattr(source, "will_need"):
                source.will_need(numbers)


def _by_value(values: Sequence[int]) -> dict[int, list[int]]:
    """Where each value is."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        found[value].append(place)
    return found


def _counts(weights: list[float], names: list[str]) -> list[int]:
    """Samples of each source in one period: exact if the weights are simple fractions."""
    for name, weight in zip(names, weights, strict=True):
        if not 0 < weight < float("inf"):
            raise KeepstepError(f"Blend: the weight of '{name}' is {weight}; weights are positive numbers")
    exact = [Fraction(str(weight)) if isinstance(weight, float) else Fraction(weight) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    period = lcm(*(share.denominator for share in shares)) if shares else 0
    if not 1 <= period <= _engine.Blend.MAX_PERIOD:
        try:
            return _engine.blend_counts([float(share) for share in shares], _engine.Blend.MAX_PERIOD)
        except RuntimeError as error:
            raise KeepstepError(f"Blend: {error}") from None
    return [int(share * period) for share in shares]

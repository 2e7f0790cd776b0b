"""What depends on the number of ranks: settings per world size, and learning rates when the batch changes.

Free of torch. `keepstep.scale_config` makes a `ScaleConfig`; `keepstep.torch` knows only its `PerWorld`.
"""

from __future__ import annotations

import bisect
import copy
import difflib
import itertools
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from keepstep._errors import KeepstepError

T = TypeVar("T")

Rule = Literal["constant", "linear", "sqrt"]
RULES: tuple[Rule, ...] = ("constant", "linear", "sqrt")

DEFAULT = "default"
MAX_RANKS = 1 << 20
MAX_ENTRIES = 1024
MAX_FILE_BYTES = 1 << 20
_SIZES = re.compile(r"\s*(\d{1,9})\s*(?:(-)\s*(\d{1,9})?\s*)?")
_MISSING = object()


def scaled_lr(base_lr: float, base_batch: int, batch: int, rule: Rule) -> float:
    """The learning rate for `batch` samples per step, if `base_lr` is right for `base_batch`.

    Args:
        base_lr: the learning rate tuned for `base_batch`.
        base_batch: samples per step over all ranks.
        batch: samples per step to scale to.
        rule: "constant"; "linear", k times the rate for k times the batch: for SGD (Goyal et al. 2017,
            arXiv:1706.02677, which also needs a warmup); or "sqrt", sqrt(k) times the rate: it keeps the variance of
            SGD's updates (Krizhevsky 2014, arXiv:1404.5997), and is the learning rate's part of the rule for Adam and
            RMSprop (Malladi et al. 2022, arXiv:2205.10782, which also changes the betas and epsilon).
    """
    return base_lr * lr_factor(base_batch, batch, rule)


def lr_factor(base_batch: int, batch: int, rule: Rule) -> float:
    """`scaled_lr` for a base of 1."""
    if rule not in RULES:
        raise KeepstepError(f"learning rate: {rule!r} is no rule; there are {', '.join(RULES)}")
    if base_batch < 1 or batch < 1:
        raise KeepstepError(f"learning rate: batches have 1 sample or more, not {base_batch} and {batch}")
    ratio = batch / base_batch
    return {"constant": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


@dataclass(frozen=True)
class Sizes:
    """World sizes from `least` to `most`, inclusive. `named`: as the user wrote them; None: from the defaults."""

    least: int
    most: int
    named: str | None

    def __str__(self) -> str:
        if self.most >= MAX_RANKS:
            return f"{self.least} ranks and more"
        if self.least == self.most:
            return f"{self.least} rank" + ("s" if self.least > 1 else "")
        return f"{self.least} to {self.most} ranks"


class PerWorld(Generic[T]):
    """One setting by world size. Call it with a number of ranks."""

    def __init__(self, name: str, pieces: list[tuple[Sizes, T]]) -> None:
        self.name = name
        self.pieces = pieces  # sorted by size, disjoint
        self._least = [sizes.least for sizes, _ in pieces]

    def __call__(self, world_size: int) -> T:
        return _piece(self.pieces, self._least, world_size)[1]

    @property
    def constant(self) -> bool:
        """Whether it is the same at every size."""
        return all(value == self.pieces[0][1] for _, value in self.pieces)


class ScaleConfig:
    """A user's configuration at every world size, made by `scale_config`."""

    def __init__(self, pieces: list[tuple[Sizes, dict[str, Any]]]) -> None:
        self._pieces = pieces
        self._least = [sizes.least for sizes, _ in pieces]

    def at(self, world_size: int) -> dict[str, Any]:
        """A copy of the configuration for `world_size` ranks: the defaults with the overrides for this size."""
        return copy.deepcopy(_piece(self._pieces, self._least, world_size)[1])

    def value(self, path: str) -> PerWorld[Any]:
        """One setting at all sizes, for `run.steps`. `path`: its key; ``"optimizer.lr"`` is a key of a nested dict."""
        pieces = []
        for sizes, config in self._pieces:
            value: Any = config
            for key in path.split("."):
                value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
            if value is _MISSING:
                raise KeepstepError(f"scale_config: there is no '{path}' for {sizes}; {_known(path, config)}")
            pieces.append((sizes, value))
        return PerWorld(path, pieces)


def scale_config(
    overrides: Mapping[Any, Any] | str | os.PathLike[str],
    defaults: Mapping[str, Any] | None = None,
    *,
    global_batch: int | None = None,
) -> ScaleConfig:
    """A configuration with overrides for some world sizes. All mistakes in it are reported at once, before training.

    Args:
        overrides: by world size (``1``, ``"2"``, ``"4-8"``, or ``"16-"`` for 16 and more), the settings that differ
            there: micro-batch size, learning rate, accumulation, anything in `defaults`. Nested dicts are merged key by
            key. Ranges may overlap if they do not contradict each other. ``"default"``: the same as `defaults`. Or the
            path of a JSON or (Python 3.11 or newer) TOML file with the same contents.
        defaults: the settings at all sizes without an override. Without defaults, the entries must leave no gap between
            sizes and must all have the same keys.
        global_batch: samples per step, to check ``micro_batch`` (and ``accumulation``) against if the configuration
            itself has no ``global_batch``.

    Raises:
        KeepstepError: names every mistake: keys that the defaults do not have, entries that contradict each other,
            values of the wrong type, a micro-batch that does not divide the global batch, or more ranks than it feeds.
    """
    source = "scale_config"
    if isinstance(overrides, (str, os.PathLike)):
        source = f"scale_config: {os.fspath(overrides)}"
        overrides = _read(Path(overrides))
    mistakes: list[str] = []
    base, entries = _sorted_out(overrides, defaults, mistakes)
    if base is not None:
        for sizes, entry in entries:
            _check_keys(f"for {sizes.named}", entry, base, "", mistakes)
    _check_contradictions(entries, mistakes)
    pieces = [] if mistakes else _pieces(entries, base, mistakes)
    for sizes, config in pieces:
        _check_batch(sizes, config, global_batch, mistakes)
    if mistakes:
        raise KeepstepError(f"{source}: " + "; ".join(dict.fromkeys(mistakes)))
    return ScaleConfig(pieces)


def micro_batch_mistakes(global_batch: PerWorld[int], micro_batch: PerWorld[int]) -> list[str]:
    """The conflicts between these two, at the sizes that the user named."""
    mistakes: list[str] = []
    for sizes, batch, micro in _both(global_batch, micro_batch):
        _check_batch(sizes, {"global_batch": batch, "micro_batch": micro}, None, mistakes, unnamed="")
    return list(dict.fromkeys(mistakes))


def max_ranks(global_batch: PerWorld[int], micro_batch: PerWorld[int]) -> int:
    """The largest number of ranks for which it and all smaller numbers have a micro-batch per rank. At least 1."""
    most = 0
    for sizes, batch, micro in _both(global_batch, micro_batch):
        if sizes.least > max(most, 1) + (most > 0):
            break  # the sizes between are not configured
        fed = batch // micro
        if fed < sizes.least:
            break
        most = min(fed, sizes.most)
        if most < sizes.most:
            break
    return max(most, 1)


def everywhere(name: str, value: T) -> PerWorld[T]:
    """`value` at every size."""
    return PerWorld(name, [(Sizes(1, MAX_RANKS, None), value)])


def _both(first: PerWorld[int], second: PerWorld[int]) -> list[tuple[Sizes, int, int]]:
    """The pieces within which each has one value, where both are given."""
    found = []
    for mine, a in first.pieces:
        for theirs, b in second.pieces:
            least, most = max(mine.least, theirs.least), min(mine.most, theirs.most)
            if least <= most:
                found.append((Sizes(least, most, mine.named or theirs.named), a, b))
    return sorted(found, key=lambda piece: piece[0].least)


def _piece(pieces: list[tuple[Sizes, T]], least: list[int], world_size: int) -> tuple[Sizes, T]:
    at = bisect.bisect_right(least, world_size) - 1
    if at < 0 or world_size > pieces[at][0].most:
        raise KeepstepError(
            f"scale_config: nothing is said for {world_size} ranks; give a default, or a range that ends with '-'"
        )
    return pieces[at]


# ---- reading ----


def _read(path: Path) -> Mapping[str, Any]:
    where = f"scale_config: {path}"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeepstepError(f"{where}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise KeepstepError(f"{where}: has more than {MAX_FILE_BYTES} bytes; is it a configuration?")
    try:
        found = _parsed(path, data.decode())
    except (ValueError, RecursionError) as error:
        raise KeepstepError(f"{where}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise KeepstepError(f"{where}: holds no table of world sizes at its top")
    return found


def _parsed(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        return json.loads(text, object_pairs_hook=_once_each)
    if path.suffix != ".toml":
        raise ValueError("its name ends neither in .json nor in .toml")
    try:
        import tomllib
    except ImportError:
        raise ValueError("TOML needs Python 3.11 or newer; write it as JSON") from None
    return tomllib.loads(text)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is a duplicate key")
        found[key] = value
    return found


def _sorted_out(
    overrides: Mapping[Any, Any], defaults: Mapping[str, Any] | None, mistakes: list[str]
) -> tuple[dict[str, Any] | None, list[tuple[Sizes, dict[str, Any]]]]:
    """The defaults, and the entries by size."""
    if not isinstance(overrides, Mapping):
        raise KeepstepError(f"scale_config: a {type(overrides).__qualname__} is no mapping from world sizes")
    if len(overrides) > MAX_ENTRIES:
        raise KeepstepError(f"scale_config: {len(overrides)} entries are more than {MAX_ENTRIES}; use ranges")
    base = None if defaults is None else dict(defaults)
    entries = []
    for key, entry in overrides.items():
        if not isinstance(entry, Mapping):
            mistakes.append(f"what is said for {key} is no table of settings but a {type(entry).__qualname__}")
        elif key == DEFAULT and base is not None:
            mistakes.append("defaults are given twice, as 'default' too")
        elif key == DEFAULT:
            base = dict(entry)
        elif (sizes := _sizes(key)) is None:
            mistakes.append(f"{key!r} is no world size: write 4, '4-8', or '4-' for 4 and more (1 to {MAX_RANKS})")
        else:
            entries.append((sizes, dict(entry)))
    if base is None and not entries and not mistakes:
        mistakes.append("it is empty: give world sizes or a default")
    return base, sorted(entries, key=lambda entry: (entry[0].least, entry[0].most))


def _sizes(key: Any) -> Sizes | None:
    text = str(key) if isinstance(key, (int, str)) and not isinstance(key, bool) else ""
    found = _SIZES.fullmatch(text)
    if found is None:
        return None
    least = int(found[1])
    most = int(found[3]) if found[3] else MAX_RANKS if found[2] else least
    return Sizes(least, most, text.strip()) if 1 <= least <= most <= MAX_RANKS else None


# ---- checking ----


def _known(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, [str(each) for each in known], 1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(str(each) for each in known) or 'nothing'}"


def _check_keys(where: str, entry: Mapping[str, Any], base: Mapping[str, Any], path: str, mistakes: list[str]) -> None:
    for key, value in entry.items():
        if key not in base:
            mistakes.append(f"{where}: '{path}{key}' is not in the defaults; {_known(str(key), base)}")
        elif isinstance(value, Mapping) and isinstance(base[key], Mapping):
            _check_keys(where, value, base[key], f"{path}{key}.", mistakes)
        elif base[key] is not None and value is not None and _kind(value) != _kind(base[key]):
            mistakes.append(
                f"{where}: '{path}{key}' is {value!r}, {_kind(value)}, and its default {base[key]!r} is "
                f"{_kind(base[key])}"
            )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a table" if isinstance(value, Mapping) else f"a {type(value).__qualname__}"


def _leaves(entry: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping) and value:
            found |= _leaves(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def _check_contradictions(entries: list[tuple[Sizes, dict[str, Any]]], mistakes: list[str]) -> None:
    said = [(sizes, _leaves(entry)) for sizes, entry in entries]
    for index, (sizes, mine) in enumerate(said):
        for others, theirs in said[index + 1 :]:
            least, most = max(sizes.least, others.least), min(sizes.most, others.most)
            if least > most:
                continue
            for key in mine:
                if key in theirs and mine[key] != theirs[key]:
                    mistakes.append(
                        f"'{key}' is {mine[key]!r} for {sizes.named} and {theirs[key]!r} for {others.named}, and both "
                        f"are for {Sizes(least, most, None)}"
                    )
                elif any(each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in theirs):
                    mistakes.append(f"'{key}' is a table for one of {sizes.named} and {others.named}, not for both")


def _merged(base: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in entry.items():
        mine = found.get(key)
        both = isinstance(value, Mapping) and isinstance(mine, Mapping)
        found[key] = _merged(mine, value) if both else value  # type: ignore[arg-type]
    return found


def _pieces(
    entries: list[tuple[Sizes, dict[str, Any]]], base: dict[str, Any] | None, mistakes: list[str]
) -> list[tuple[Sizes, dict[str, Any]]]:
    """Ranges of sizes that share one configuration, in order."""
    starts = {1} | {sizes.least for sizes, _ in entries} | {sizes.most + 1 for sizes, _ in entries}
    bounds = [*sorted(start for start in starts if start <= MAX_RANKS), MAX_RANKS + 1]
    pieces: list[tuple[Sizes, dict[str, Any]]] = []
    for least, after in itertools.pairwise(bounds):
        here = [(sizes, entry) for sizes, entry in entries if sizes.least <= least <= sizes.most]
        if not here and base is None:
            continue
        config = dict(base or {})
        for _, entry in here:
            config = _merged(config, entry)
        named = ", ".join(sizes.named or "" for sizes, _ in here) or None
        pieces.append((Sizes(least, after - 1, named), copy.deepcopy(config)))
    if base is None:
        _check_whole(pieces, mistakes)
    return pieces


def _check_whole(pieces: list[tuple[Sizes, dict[str, Any]]], mistakes: list[str]) -> None:
    """Without defaults: no gap between entries, and the same keys in all of them."""
    for (before, _), (after, _) in itertools.pairwise(pieces):
        if after.least > before.most + 1:
            gap = Sizes(before.most + 1, after.least - 1, None)
            mistakes.append(f"nothing is said for {gap}, and there is no default")
    keys = {key: sizes for sizes, config in reversed(pieces) for key in _leaves(config)}
    for sizes, config in pieces:
        mine = _leaves(config)
        for key, elsewhere in keys.items():
            if key not in mine:
                mistakes.append(
                    f"'{key}' is given for {elsewhere}, but not for {sizes}, and there is no default; "
                    f"{_known(key, mine)}"
                )


def _check_batch(
    sizes: Sizes,
    config: Mapping[str, Any],
    global_batch: int | None,
    mistakes: list[str],
    unnamed: str = "by default: ",
) -> None:
    batch, micro = config.get("global_batch", global_batch), config.get("micro_batch")
    where = f"for {sizes.named}: " if sizes.named else unnamed
    numbers = [("global_batch", batch), ("micro_batch", micro), ("accumulation", config.get("accumulation"))]
    wrong = [
        f"{where}{name}={value!r} must be an integer of at least 1"
        for name, value in numbers
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
    ]
    mistakes.extend(wrong)
    if wrong or batch is None or micro is None:
        return
    if batch % micro:
        mistakes.append(f"{where}global_batch={batch} is no multiple of micro_batch={micro}")
    elif sizes.named is not None and sizes.most < MAX_RANKS and batch // micro < sizes.most:
        mistakes.append(
            f"{where}{batch // micro} micro-batches (global_batch={batch} / micro_batch={micro}) cannot feed "
            f"{sizes.most} ranks, each of which needs one"
        )
    elif (accumulation := config.get("accumulation")) is not None and sizes.named is not None:
        for world in {sizes.least, sizes.most} if sizes.most < MAX_RANKS else {sizes.least}:
            needed = -(-batch // micro // world)
            if accumulation != needed:
                mistakes.append(
                    f"{where}accumulation={accumulation} contradicts the global batch: global_batch={batch} / "
                    f"micro_batch={micro} are {batch // micro} micro-batches, {needed} for a rank of {world}"
                )

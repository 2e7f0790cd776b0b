"""``keepstep ckpt verify`` and ``diff``."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from keepstep import _checkpoint
from keepstep.checkpoint import places, tensors
from keepstep.checkpoint.words import in_bytes, parser, shape
from keepstep.data.builder.progress import progress

_MOST_SHOWN = 50


def _verify_one(opened: places.Opened, quiet: bool) -> list[str]:
    """What is wrong with it."""
    if opened.manifest is None:
        return _verify_sizes(opened)
    problems = []
    manifest = opened.manifest
    sizes = dict(zip(opened.layout.files, [sums.bytes for sums in manifest.sums], strict=True))
    sizes[places.METADATA] = manifest.metadata.bytes
    for name, wanted in sizes.items():
        try:
            found = opened.store.head(opened.folder + name).bytes
        except _checkpoint.Error as error:
            if error.code != "NOT_FOUND":
                raise
            problems.append(f"'{opened.folder}{name}' is missing")
            continue
        if found != wanted:
            problems.append(f"'{opened.folder}{name}' has {found:,} bytes, {wanted:,} were written")
    verifier = _checkpoint.Verifier(opened.files(with_metadata=True))
    with progress("reading", manifest.size, quiet=quiet, command="ckpt") as shown:
        while verifier.running:
            time.sleep(0.05)  # the work is done by threads of the engine; this only draws
            shown.update(verifier.done_bytes)
    problems += verifier.problems()
    if verifier.bad_chunks > len(verifier.problems()):
        problems.append(f"and {verifier.bad_chunks - len(verifier.problems())} more chunks")
    return problems


def _verify_sizes(opened: places.Opened) -> list[str]:
    ends: dict[int, int] = {}
    everything = [part.place for tensor in opened.tensors.values() for part in tensor.parts]
    everything += [found.place for found in opened.objects.values()]
    for place in everything:
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.bytes)
    problems = []
    for number, end in ends.items():
        name = opened.folder + opened.layout.files[number]
        try:
            found = opened.store.head(name).bytes
        except _checkpoint.Error as error:
            if error.code != "NOT_FOUND":
                raise
            problems.append(f"'{name}' is missing")
            continue
        if found < end:
            problems.append(f"'{name}' has {found:,} bytes, its tensors reach to {end:,}")
    return problems


def verify(arguments: list[str]) -> int:
    options_parser = parser(
        "verify",
        "Reads all of a checkpoint and compares it with its checksums. Exit code 1 if anything is wrong. What DCP "
        "itself wrote has no checksums: then only sizes are compared.",
    )
    options_parser.add_argument("checkpoints", nargs="+", metavar="PLACE[@STEP]")
    options_parser.add_argument("--all", action="store_true", help="all complete checkpoints of each place")
    options_parser.add_argument("--json", action="store_true", help="one JSON object")
    options_parser.add_argument("--quiet", action="store_true", help="no progress")
    options = options_parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for text in options.checkpoints:
        place, step = places.split_step(text)
        steps = [step]
        if options.all and step is None:
            catalog = _checkpoint.Catalog(places.open_store(place))
            steps = [info.step for info in catalog.checkpoints() if info.complete] or [None]
        for one in steps:
            opened = places.open_checkpoint(place, one)
            problems = _verify_one(opened, options.quiet or options.json)
            results.append(
                {"where": opened.words, "step": opened.step, "checksums": opened.manifest is not None,
                 "bytes": opened.manifest.size if opened.manifest else None, "problems": problems}
            )  # fmt: skip
    if options.json:
        print(json.dumps({"checkpoints": results}))
    for result in results if not options.json else []:
        for problem in result["problems"]:
            print(f"keepstep ckpt verify: {result['where']}: {problem}", file=sys.stderr)
        if not result["problems"]:
            how = in_bytes(result["bytes"]) if result["checksums"] else "sizes only: DCP itself wrote it"
            print(f"{result['where']}: good ({how})")
    return 1 if any(result["problems"] for result in results) else 0


def _same_data(first: places.Opened, second: places.Opened, names: list[str]) -> list[str]:
    """Those of `names` whose elements differ; they have one dtype and shape."""
    different = []
    total = sum(tensors.bytes_of(first.tensors[name]) for name in names)
    done = 0
    with progress("comparing", total, command="ckpt") as shown:
        for batch in tensors.batches(first, names):
            sides = []
            for opened in (first, second):
                memory = {name: ctypes.create_string_buffer(tensors.bytes_of(opened.tensors[name]) or 1)
                          for name in batch}  # fmt: skip
                tensors.read_into(opened, {name: ctypes.addressof(found) for name, found in memory.items()})
                sides.append(memory)
            different += [name for name in batch if memoryview(sides[0][name]) != memoryview(sides[1][name])]
            done += sum(tensors.bytes_of(first.tensors[name]) for name in batch)
            shown.update(done)
    return different


def diff(arguments: list[str]) -> int:
    options_parser = parser(
        "diff",
        "What differs between two checkpoints: names, shapes, dtypes, and with --data every element, however the "
        "tensors are cut into parts. Exit code 1 if anything does.",
    )
    options_parser.add_argument("first", metavar="PLACE[@STEP]")
    options_parser.add_argument("second", metavar="PLACE[@STEP]")
    options_parser.add_argument("--data", action="store_true", help="also compare the elements, byte by byte")
    options_parser.add_argument("--json", action="store_true", help="one JSON object")
    options = options_parser.parse_args(arguments)
    first = places.open_checkpoint(*places.split_step(options.first))
    second = places.open_checkpoint(*places.split_step(options.second))
    a, b = first.tensors, second.tensors
    everything_a, everything_b = {*a, *first.objects}, {*b, *second.objects}
    changed = []
    alike = []
    for name in sorted(everything_a & everything_b):
        if (name in a) != (name in b):
            changed.append(f"'{name}' is {'a tensor' if name in a else 'no tensor'} in the first only")
        elif name in a:
            said = [f"{entry.dtype} {shape(entry.shape)}" for entry in (a[name], b[name])]
            if said[0] != said[1]:
                changed.append(f"'{name}' is {said[0]} in the first, {said[1]} in the second")
            else:
                alike.append(name)
    result: dict[str, Any] = {
        "first": first.words, "second": second.words, "only_in_first": sorted(everything_a - everything_b),
        "only_in_second": sorted(everything_b - everything_a), "changed": changed,
        "data": _same_data(first, second, alike) if options.data else None,
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))
    else:
        for what, key in (
            ("only in the first", "only_in_first"), ("only in the second", "only_in_second"), ("other", "changed"),
            ("other elements", "data"),
        ):  # fmt: skip
            found = result[key] or []
            for name in found[:_MOST_SHOWN]:
                print(f"{what}: {name}")
            if len(found) > _MOST_SHOWN:
                print(f"{what}: ... and {len(found) - _MOST_SHOWN} more")
    differs = any(result[key] for key in ("only_in_first", "only_in_second", "changed", "data"))
    if not differs and not options.json:
        looked = "their elements too" if options.data else "--data compares the elements"
        print(f"no difference: {len(alike):,} tensors ({looked})")
    return 1 if differs else 0

"""``keepstep ckpt verify`` and ``diff``."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, memory, tensors
from keepstep.checkpoint.words import in_bytes, key_options, key_words, parser, shape
from keepstep.data.builder.progress import progress

_MAX_SHOWN = 50


def _verify_one(opened: destinations.Opened, quiet: bool) -> list[str]:
    """The problems of one checkpoint."""
    if opened.manifest is None:
        return _verify_sizes(opened)
    problems = []
    manifest = opened.manifest
    sizes = dict(zip(opened.layout.files, [sums.bytes for sums in manifest.sums], strict=True))
    sizes[destinations.METADATA] = manifest.metadata.bytes
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
            time.sleep(0.05)  # threads of the engine do the work; this only draws
            shown.update(verifier.done_bytes)
    problems += verifier.problems()
    if verifier.bad_chunks > len(verifier.problems()):
        problems.append(f"and {verifier.bad_chunks - len(verifier.problems())} more chunks")
    return problems


def _verify_sizes(opened: destinations.Opened) -> list[str]:
    ends: dict[int, int] = {}
    everything = [part.extent for tensor in opened.tensors.values() for part in tensor.parts]
    everything += [found.extent for found in opened.objects.values()]
    for extent in everything:
        ends[extent.file] = max(ends.get(extent.file, 0), extent.offset + extent.bytes)
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


def _verify_memory(destination: str, step: int | None, key: Sequence[str], quiet: bool) -> dict[str, Any]:
    """All agents read what they hold. What is overwritten meanwhile is counted, but is not a problem."""
    with memory.Job(destination, key) as job:
        held = job.held()
        names = {node["node"]: node["name"] for node in held["nodes"]}
        problems = [f"node {node} does not say what it holds" for node in held["silent"]]
        lines = [line for line in held["held"] if step in (None, line["version"])]
        if not lines:
            there = destinations.steps_in_words(sorted({line["version"] for line in held["held"]}))
            why = memory.NOTHING if not held["held"] else f"no step {step} (any more) is in memory; there are {there}"
            raise KeepstepError(f"{destination}: {why}")
        good: list[dict[str, Any]] = []
        gone = corrupt = done = 0
        with progress("reading", sum(line["bytes"] for line in lines), quiet=quiet, command="ckpt") as shown:
            for node in sorted({line["node"] for line in lines}):
                for checked in job.check(node, step):
                    for line in checked:
                        what = (
                            f"the copy of the shard of rank {line['rank']}" if "rank" in line
                            else f"parity {line['row']} of the shards of ranks {', '.join(map(str, line['members']))}"
                        )  # fmt: skip
                        if line["result"] == "corrupt":
                            corrupt += 1
                            problems.append(
                                f"{what} on node {node} ({names[node]}) at step {line['version']} is corrupt"
                            )
                        gone += line["result"] == "gone"
                        good += [line] if line["result"] == "good" else []
                        done += line["bytes"]
                    shown.update(done)
        if not good and not corrupt:
            newest = ", ".join(str(each["version"]) for each in job.held()["versions"][:1])
            of = "all that was there" if step is None else f"step {step}"
            raise KeepstepError(
                f"{destination}: {of} was overwritten while it was read; the newest is {newest or 'none'}"
            )
    return {
        "where": destination, "step": step, "checksums": True, "bytes": sum(line["bytes"] for line in good),
        "problems": problems,
        "memory": {
            "good": len(good), "of_parity": sum("members" in line for line in good), "overwritten": gone,
            "steps": sorted({line["version"] for line in good}),
        },
    }  # fmt: skip


def _memory_words(result: dict[str, Any]) -> str:
    found = result["memory"]
    steps = destinations.steps_in_words(found["steps"])
    over = f"; {found['overwritten']} were overwritten meanwhile" if found["overwritten"] else ""
    parity = f", {found['of_parity']} of them blocks of parity," if found["of_parity"] else ""
    return f"{found['good']} copies{parity} of steps {steps}, {in_bytes(result['bytes'])}{over}"


def verify(arguments: list[str]) -> int:
    options_parser = parser(
        "verify",
        "Reads a whole checkpoint and compares it with its checksums. Exit code 1 if anything is wrong. What DCP "
        "itself wrote has no checksums: then only sizes are compared. In the memory of a job everything is read, all "
        "steps and all copies.",
    )
    options_parser.add_argument("checkpoints", nargs="+", metavar="DESTINATION[@STEP]")
    options_parser.add_argument(
        "--all", action="store_true", help="check every complete checkpoint in each destination"
    )
    options_parser.add_argument("--json", action="store_true", help="print one JSON object")
    options_parser.add_argument("--quiet", action="store_true", help="show no progress")
    key_options(options_parser)
    options = options_parser.parse_args(arguments)
    results: list[dict[str, Any]] = []
    for text in options.checkpoints:
        destination, step = destinations.split_step(text)
        if memory.is_memory(destination):
            results.append(_verify_memory(destination, step, key_words(options), options.quiet or options.json))
            continue
        steps = [step]
        if options.all and step is None:
            catalog = _checkpoint.Catalog(destinations.open_store(destination))
            steps = [info.step for info in catalog.checkpoints() if info.complete] or [None]
        for one in steps:
            opened = destinations.open_checkpoint(destination, one)
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
            how = _memory_words(result) if "memory" in result else how
            print(f"{result['where']}: good ({how})")
    return 1 if any(result["problems"] for result in results) else 0


def _same_data(first: destinations.Opened, second: destinations.Opened, names: list[str]) -> list[str]:
    """Those of `names` whose elements differ; dtypes and shapes are the same in both checkpoints."""
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
        "Shows how two checkpoints differ: in names, shapes and dtypes, and with --data in every element, however the "
        "tensors are split. Exit code 1 if they differ.",
    )
    options_parser.add_argument("first", metavar="DESTINATION[@STEP]")
    options_parser.add_argument("second", metavar="DESTINATION[@STEP]")
    options_parser.add_argument("--data", action="store_true", help="also compare the elements, byte by byte")
    options_parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = options_parser.parse_args(arguments)
    memory.refuse("diff", [options.first, options.second])
    first = destinations.open_checkpoint(*destinations.split_step(options.first))
    second = destinations.open_checkpoint(*destinations.split_step(options.second))
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
            for name in found[:_MAX_SHOWN]:
                print(f"{what}: {name}")
            if len(found) > _MAX_SHOWN:
                print(f"{what}: ... and {len(found) - _MAX_SHOWN} more")
    differs = any(result[key] for key in ("only_in_first", "only_in_second", "changed", "data"))
    if not differs and not options.json:
        looked = "their elements too" if options.data else "--data compares the elements"
        print(f"no difference: {len(alike):,} tensors ({looked})")
    return 1 if differs else 0

"""``keepstep ckpt ls`` and ``show``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, memory
from keepstep.checkpoint.words import age, in_bytes, key_options, key_words, parser, shape, table

_MAX_SHOWN = 40


def _rows(destination: str) -> tuple[list[dict[str, Any]], _checkpoint.OwnerRecord | None]:
    """The checkpoints of a destination, and its owner."""
    store = destinations.open_store(destination)
    now = time.time()
    rows = [
        {
            "step": info.step, "complete": info.complete, "dcp_only": info.foreign, "pinned": info.pinned,
            "bytes": info.bytes, "files": info.files, "where": destination, "modified": info.modified_ns / 1e9,
            "age_s": round(now - info.modified_ns / 1e9, 1),
        }
        for info in _checkpoint.Catalog(store).checkpoints()
    ]  # fmt: skip
    try:
        owner = _checkpoint.read_owner(store)
    except _checkpoint.Error as error:
        if error.code != "NOT_FOUND":
            raise
        owner = None
    if not rows:
        objects = [found for found in store.list("") if "/" not in found.key and not found.key.startswith("owner.")]
        names = {found.key for found in objects}
        if names & {destinations.METADATA, "manifest.json"}:  # a single checkpoint
            complete = "manifest.json" in names
            modified = max(found.modified_ns for found in objects) / 1e9
            rows.append({
                "step": _checkpoint.Catalog(store).manifest_in("").step if complete else None,
                "complete": complete, "dcp_only": not complete, "pinned": False,
                "bytes": sum(found.bytes for found in objects), "files": len(objects), "where": destination,
                "modified": modified, "age_s": round(now - modified, 1),
            })  # fmt: skip
    return rows, owner


@dataclass
class _Memory:
    """The contents of a job's memory."""

    destination: str
    rows: list[dict[str, Any]]
    lines: list[str]  # further lines, each printed after the destination's name
    silent: list[int]  # nodes that did not answer
    saves_to: list[str]


def _memory_rows(destination: str, key: Sequence[str] = ()) -> _Memory:
    with memory.Job(destination, key) as job:
        held = job.held()
    now = time.time()
    rows = [
        {
            "step": each["version"], "complete": not each["lost"], "dcp_only": False, "pinned": False,
            "bytes": each["bytes"], "files": None, "where": destination, "modified": now - each["age_ns"] / 1e9,
            "age_s": round(each["age_ns"] / 1e9, 1),
            "memory": {
                "world": each["world"], "nodes": each["nodes"], "held_bytes": each["held_bytes"],
                "fewest_copies": each["copies"], "fewest_parity": each["parity"], "lost_ranks": each["lost"],
            },
        }
        for each in held["versions"]
    ]  # fmt: skip
    lines = [] if rows else [memory.NOTHING]
    if rows and not any(row["complete"] for row in rows):  # one that is being copied or overwritten is normal
        ranks = _ranks(rows[0]["memory"]["lost_ranks"])
        lines.append(f"no step is complete; of step {rows[0]['step']} the shards of ranks {ranks} are missing")
    return _Memory(destination, rows, lines, held["silent"], held["saves_to"])


def _copies(row: dict[str, Any]) -> str:
    """The number of copies of the shard with the fewest."""
    copies, parity = row["memory"]["fewest_copies"], row["memory"]["fewest_parity"]
    text = f"{copies} {'copy' if copies == 1 else 'copies'}"
    return f"{text}, {parity} parity" if parity else text


def _where(row: dict[str, Any]) -> str:
    if "memory" not in row:
        return str(row["where"])
    nodes = row["memory"]["nodes"]
    return f"{row['where']} ({'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(str, nodes))})"


def _at_hand() -> list[str]:
    """The default destinations: this machine's memory server, the memory of its jobs, and where these save."""
    found = memory.served_here()
    for destination in memory.jobs_here():
        found.append(destination)
        try:
            found += _memory_rows(destination).saves_to
        except KeepstepError:
            continue  # reported when it is listed
    return [*dict.fromkeys(found)]


def ls(arguments: list[str]) -> int:
    options_parser = parser(
        "ls", "Lists the checkpoints in one or more destinations, newest first. Reads names and sizes only. "
        "Without a destination: those in this machine's memory server, and of its jobs in memory and where they save.",
    )  # fmt: skip
    options_parser.add_argument("destinations", nargs="*", metavar="DESTINATION")
    options_parser.add_argument("--json", action="store_true", help="print one JSON object")
    key_options(options_parser)
    options = options_parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    owners = []
    failed = []
    said: list[tuple[str, str]] = []
    asked = options.destinations or _at_hand()
    for destination in asked:
        try:
            if memory.is_memory(destination):
                told_by = _memory_rows(destination, key_words(options))
                rows += told_by.rows
                said += [(destination, line) for line in told_by.lines]
                failed += [(destination, f"node {node} does not say what it holds") for node in told_by.silent]
                continue
            found, owner = _rows(destination)
        except (KeepstepError, _checkpoint.Error, OSError) as error:
            failed.append((destination, str(error)))  # the others are still shown
            continue
        rows += found
        if owner is not None:
            owners.append((destination, owner))
    rows.sort(key=lambda row: -1 if row["step"] is None else row["step"], reverse=True)
    if options.json:
        told = [
            {"where": destination, "job": owner.job, "host": owner.host, "pid": owner.pid, "token": owner.token,
             "renewed": owner.renewed_s, "at_work": not owner.is_gone(int(time.time()))}
            for destination, owner in owners
        ]  # fmt: skip
        failures = [{"where": destination, "error": why} for destination, why in failed]
        print(json.dumps({"checkpoints": rows, "owners": told, "failed": failures}))
        return 1 if failed else 0
    for destination, why in failed:
        print(f"keepstep ckpt ls: {destination}: {why.removeprefix(f'{destination}: ')}", file=sys.stderr)
    if not asked:
        print(
            "no job of yours runs on this machine; give a destination: a folder, file:///folder or s3://bucket/prefix"
        )
    elif not rows:
        empty = [
            destination for destination in asked if destination not in dict(failed) and destination not in dict(said)
        ]
        if empty:
            print("no checkpoints in " + ", ".join(empty))
    else:
        table(
            ["step", "complete", "size", "files", "age", "where"],
            [
                [
                    "-" if row["step"] is None else str(row["step"]),
                    ("yes" if row["complete"] else "DCP's own" if row["dcp_only"] else "no")
                    + (", pinned" if row["pinned"] else ""),
                    in_bytes(row["bytes"]), _copies(row) if "memory" in row else str(row["files"]), age(row["age_s"]),
                    _where(row),
                ]
                for row in rows
            ],
            right=(0, 2, 3),
        )  # fmt: skip
    for destination, line in said:
        print(f"{destination}: {line}")
    for destination, owner in owners:
        gone = owner.is_gone(int(time.time()))
        doing = "let go" if owner.released else "is gone" if gone else "is at work"
        print(f"{destination}: written by {owner.in_words()}, which {doing}")
    return 1 if failed else 0


def show(arguments: list[str]) -> int:
    options_parser = parser(
        "show", "Shows what a checkpoint contains. Reads its manifest (or DCP's .metadata), not its data."
    )
    options_parser.add_argument("checkpoint", metavar="DESTINATION[@STEP]")
    options_parser.add_argument("--all", action="store_true", help=f"show all tensors, not only the first {_MAX_SHOWN}")
    options_parser.add_argument("--files", action="store_true", help="also show the files and their checksums")
    options_parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    key_options(options_parser)
    options = options_parser.parse_args(arguments)
    if memory.is_memory(options.checkpoint):
        return _show_memory(options)
    opened = destinations.open_checkpoint(*destinations.split_step(options.checkpoint))
    for reason in opened.skipped:
        print(f"keepstep ckpt show: {reason}", file=sys.stderr)
    layout, manifest = opened.layout, opened.manifest
    if options.json:
        print(json.dumps(_as_json(opened)))
        return 0
    elements = sum(math.prod(tensor.shape) for tensor in opened.tensors.values())
    print(opened.words)
    if manifest is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_s))
        job = f" by job '{manifest.job}'" if manifest.job else ""
        print(f"step     {manifest.step}, saved {when}{job} on {manifest.world} ranks")
        print(f"files    {len(layout.files)} of data, {in_bytes(manifest.size)} in all")
    else:
        print(f"files    {len(layout.files)} of data; DCP itself wrote it: no manifest, no checksums")
    print(
        f"tensors  {len(opened.tensors):,} with {elements:,} elements ({in_bytes(layout.tensor_bytes())}) in "
        f"{layout.parts():,} parts; {len(opened.objects):,} other objects"
    )
    names = list(opened.tensors)
    shown = names if options.all else names[:_MAX_SHOWN]
    print()
    table(
        ["tensor", "dtype", "shape", "parts"],
        [
            [name, opened.tensors[name].dtype, shape(opened.tensors[name].shape), str(len(opened.tensors[name].parts))]
            for name in shown
        ],
        right=(3,),
    )
    if len(shown) < len(names):
        print(f"... and {len(names) - len(shown)} more (--all)")
    if options.files and manifest is not None:
        print()
        table(
            ["file", "bytes", "XXH3-128"],
            [[name, f"{sums.bytes:,}", sums.whole] for name, sums in zip(layout.files, manifest.sums, strict=True)],
            right=(1,),
        )
    return 0


def _as_json(opened: destinations.Opened) -> dict[str, Any]:
    layout, manifest = opened.layout, opened.manifest
    sums = [] if manifest is None else manifest.sums
    return {
        "where": opened.words, "step": opened.step, "complete": manifest is not None,
        "world": manifest.world if manifest else None, "created": manifest.created_s if manifest else None,
        "job": manifest.job if manifest else None, "bytes": manifest.size if manifest else None,
        "files": [
            {"name": name, "bytes": sums[i].bytes if sums else None, "xxh3_128": sums[i].whole if sums else None}
            for i, name in enumerate(layout.files)
        ],
        "tensors": {
            name: {
                "dtype": tensor.dtype, "shape": list(tensor.shape),
                "parts": [
                    {"offsets": list(part.offsets), "lengths": list(part.lengths),
                     "file": layout.files[part.extent.file], "offset": part.extent.offset, "bytes": part.extent.bytes}
                    for part in tensor.parts
                ],
            }
            for name, tensor in opened.tensors.items()
        },
        "objects": sorted(opened.objects),
    }  # fmt: skip


def _ranks(ranks: Iterable[int]) -> str:
    """``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _show_memory(options: argparse.Namespace) -> int:
    destination, step = destinations.split_step(options.checkpoint)
    with memory.Job(destination, key_words(options)) as job:
        held, version, contents = memory.look(job, step)
    names = {node["node"]: node["name"] for node in held["nodes"]}
    copies = [
        line for line in held["held"]
        if (line["version"], line["sharding"]) == (version["version"], version["sharding"])
    ]  # fmt: skip
    only_parity = sorted(set(range(version["world"])) - {line["rank"] for line in copies if "rank" in line})
    if options.json:
        told = {
            "where": destination, "job": held["job"], "step": version["version"], "complete": not version["lost"],
            "world": version["world"], "bytes": version["bytes"], "held_bytes": version["held_bytes"],
            "age_s": round(version["age_ns"] / 1e9, 1), "lost_ranks": version["lost"],
            "not_shown_ranks": only_parity,
            "copies": [
                {"node": line["node"], "node_name": names.get(line["node"]), "bytes": line["bytes"],
                 **({"rank": line["rank"]} if "rank" in line else {"parity_of": line["members"], "row": line["row"]})}
                for line in copies
            ],
            "tensors": {
                name: {
                    "dtype": tensor.dtype, "shape": list(tensor.shape),
                    "parts": [
                        {"offsets": list(offsets), "lengths": list(lengths), "ranks": ranks}
                        for (offsets, lengths), ranks in tensor.parts.items()
                    ],
                }
                for name, tensor in contents.tensors.items()
            },
            "objects": sorted(contents.values), "capsules": contents.capsules,
        }  # fmt: skip
        print(json.dumps(told))
        return 0
    print(f"{destination}, step {version['version']}")
    complete = "complete" if not version["lost"] else f"not complete: no shard of ranks {_ranks(version['lost'])}"
    print(f"step     {version['version']}, {age(version['age_ns'] / 1e9)} old, of {version['world']} ranks, {complete}")
    print(f"size     {in_bytes(version['bytes'])}; {in_bytes(version['held_bytes'])} with all copies and parity")
    for node in version["nodes"]:
        ranks = _ranks({line["rank"] for line in copies if line["node"] == node and "rank" in line})
        blocks = [line for line in copies if line["node"] == node and "members" in line]
        of = "; ".join(f"parity {line['row']} of ranks {_ranks(line['members'])}" for line in blocks)
        has = "; ".join([*([f"shards of ranks {ranks}"] if ranks else []), *([of] if of else [])])
        print(f"node {node:<4}{names.get(node, '?')}: {has}")
    elements = sum(math.prod(tensor.shape) for tensor in contents.tensors.values())
    print(
        f"tensors  {len(contents.tensors):,} with {elements:,} elements; {len(contents.values):,} other objects; "
        f"what forward changed: {in_bytes(sum(contents.capsules.values()))} of {len(contents.capsules)} ranks"
    )
    if only_parity and not version["lost"]:
        print(f"         without those of ranks {_ranks(only_parity)}, which are in parity alone")
    print()
    shown = list(contents.tensors) if options.all else list(contents.tensors)[:_MAX_SHOWN]
    rows = []
    for name in shown:
        tensor = contents.tensors[name]
        holders = {rank for ranks in tensor.parts.values() for rank in ranks}
        parts = str(len(tensor.parts)) if tensor.parted else "whole"
        rows.append([name, tensor.dtype, shape(tensor.shape), parts, _ranks(holders)])
    table(["tensor", "dtype", "shape", "parts", "ranks"], rows, right=(3,))
    if len(shown) < len(contents.tensors):
        print(f"... and {len(contents.tensors) - len(shown)} more (--all)")
    return 0

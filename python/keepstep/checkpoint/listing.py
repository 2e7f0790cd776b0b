"""``keepstep ckpt ls`` and ``show``."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

from keepstep import _checkpoint
from keepstep._errors import KeepstepError
from keepstep.checkpoint import places
from keepstep.checkpoint.words import age, in_bytes, parser, shape, table

_MOST_SHOWN = 40


def _rows(place: str) -> tuple[list[dict[str, Any]], _checkpoint.OwnerRecord | None]:
    """The checkpoints of a place, and who writes there."""
    store = places.open_store(place)
    now = time.time()
    rows = [
        {
            "step": info.step, "complete": info.complete, "dcp_only": info.foreign, "pinned": info.pinned,
            "bytes": info.bytes, "files": info.files, "where": place, "modified": info.modified_ns / 1e9,
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
        if names & {places.METADATA, "manifest.json"}:  # one checkpoint by itself
            complete = "manifest.json" in names
            modified = max(found.modified_ns for found in objects) / 1e9
            rows.append({
                "step": _checkpoint.Catalog(store).manifest_in("").step if complete else None,
                "complete": complete, "dcp_only": not complete, "pinned": False,
                "bytes": sum(found.bytes for found in objects), "files": len(objects), "where": place,
                "modified": modified, "age_s": round(now - modified, 1),
            })  # fmt: skip
    return rows, owner


def ls(arguments: list[str]) -> int:
    options_parser = parser("ls", "The checkpoints of one or more places. Nothing is read but names and sizes.")
    options_parser.add_argument("places", nargs="+", metavar="PLACE")
    options_parser.add_argument("--json", action="store_true", help="one JSON object")
    options = options_parser.parse_args(arguments)
    rows = []
    owners = []
    failed = []
    for place in options.places:
        try:
            found, owner = _rows(place)
        except (KeepstepError, _checkpoint.Error, OSError) as error:
            failed.append((place, str(error)))  # the others are shown all the same
            continue
        rows += found
        if owner is not None:
            owners.append((place, owner))
    rows.sort(key=lambda row: (row["step"] is None, row["step"]))
    if options.json:
        told = [
            {"where": place, "job": owner.job, "host": owner.host, "pid": owner.pid, "token": owner.token,
             "renewed": owner.renewed_s, "at_work": not owner.is_gone(int(time.time()))}
            for place, owner in owners
        ]  # fmt: skip
        failures = [{"where": place, "error": why} for place, why in failed]
        print(json.dumps({"checkpoints": rows, "owners": told, "failed": failures}))
        return 1 if failed else 0
    for place, why in failed:
        print(f"keepstep ckpt ls: {place}: {why}", file=sys.stderr)
    if not rows:
        empty = [place for place in options.places if place not in dict(failed)]
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
                    in_bytes(row["bytes"]), str(row["files"]), age(row["age_s"]), row["where"],
                ]
                for row in rows
            ],
            right=(0, 2, 3),
        )  # fmt: skip
    for place, owner in owners:
        gone = owner.is_gone(int(time.time()))
        doing = "let go" if owner.released else "is gone" if gone else "is at work"
        print(f"{place}: written by {owner.in_words()}, which {doing}")
    return 1 if failed else 0


def show(arguments: list[str]) -> int:
    options_parser = parser("show", "What is in a checkpoint. Reads its manifest (or DCP's .metadata), not its data.")
    options_parser.add_argument("checkpoint", metavar="PLACE[@STEP]")
    options_parser.add_argument("--all", action="store_true", help=f"all tensors, not only the first {_MOST_SHOWN}")
    options_parser.add_argument("--files", action="store_true", help="also the files and their checksums")
    options_parser.add_argument("--json", action="store_true", help="one JSON object, with everything")
    options = options_parser.parse_args(arguments)
    opened = places.open_checkpoint(*places.split_step(options.checkpoint))
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
    shown = names if options.all else names[:_MOST_SHOWN]
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


def _as_json(opened: places.Opened) -> dict[str, Any]:
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
                     "file": layout.files[part.place.file], "offset": part.place.offset, "bytes": part.place.bytes}
                    for part in tensor.parts
                ],
            }
            for name, tensor in opened.tensors.items()
        },
        "objects": sorted(opened.objects),
    }  # fmt: skip

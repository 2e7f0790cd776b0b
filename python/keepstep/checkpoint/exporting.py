"""``keepstep ckpt export``: safetensors in Hugging Face's layout, straight from the parts of a checkpoint."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

from keepstep._errors import KeepstepError
from keepstep.checkpoint import destinations, memory, tensors
from keepstep.checkpoint.safetensors import DTYPES, lay_out
from keepstep.checkpoint.words import in_bytes, parser
from keepstep.data.builder.progress import Silent, progress

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMG]I?B)?", text.strip().upper())
    if found is None or int(found[1]) == 0:
        raise KeepstepError(f"--shard-size '{text}'; a number of bytes is needed, as 5GB or 512MiB")
    return int(found[1]) * _UNITS[found[2] or ""]


def _shards(opened: destinations.Opened, names: Sequence[str], most: int) -> list[list[str]]:
    """Divides the names, in order, into shards of at most `most` bytes or one tensor."""
    shards: list[list[str]] = []
    held = 0
    for name in names:
        size = tensors.bytes_of(opened.tensors[name])
        if not shards or held + size > most:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    return shards or [[]]


def _write(opened: destinations.Opened, path: Path, exported: dict[str, str], shown: Silent, done: int) -> int:
    """Writes one file. `exported`: maps names in the checkpoint to names in the file."""
    layout = lay_out(
        {exported[name]: (opened.tensors[name].dtype, opened.tensors[name].shape) for name in exported},
        {"format": "pt"},
    )
    names = {there: name for name, there in exported.items()}
    order = [names[there] for there in layout.tensors]
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w+b") as file:
            # Allocate everything now, so a full disk is an error here, not a signal halfway.
            os.posix_fallocate(file.fileno(), 0, layout.bytes)
            file.write(layout.header)
            file.flush()
            if layout.bytes > len(layout.header):
                with mmap.mmap(file.fileno(), layout.bytes) as memory:
                    first = ctypes.c_char.from_buffer(memory)
                    base = ctypes.addressof(first)
                    try:
                        for batch in tensors.batches(opened, order):
                            tensors.read_into(
                                opened, {name: base + layout.tensors[exported[name]].begin for name in batch}
                            )
                            done += sum(tensors.bytes_of(opened.tensors[name]) for name in batch)
                            shown.update(done)
                    finally:
                        del first
                    memory.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return done


def export(arguments: list[str]) -> int:
    options_parser = parser(
        "export",
        "Writes the tensors of a checkpoint as safetensors: model.safetensors, or several files and "
        "model.safetensors.index.json, as Hugging Face's from_pretrained reads them.",
    )
    options_parser.add_argument("checkpoint", metavar="DESTINATION[@STEP]")
    options_parser.add_argument("--out", required=True, metavar="FOLDER", help="output folder; created if missing")
    options_parser.add_argument(
        "--prefix", default="", metavar="TEXT",
        help="export only tensors whose names begin with TEXT, and drop it from their names: 'model.' leaves out the "
        "optimizer",
    )  # fmt: skip
    options_parser.add_argument(
        "--shard-size", default="5GB", metavar="SIZE", help="size of one file (default %(default)s)"
    )
    options_parser.add_argument("--force", action="store_true", help="overwrite existing files")
    options_parser.add_argument("--quiet", action="store_true", help="show no progress")
    options_parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    options = options_parser.parse_args(arguments)
    memory.refuse("export", [options.checkpoint])
    opened = destinations.open_checkpoint(*destinations.split_step(options.checkpoint))
    names = [name for name in opened.tensors if name.startswith(options.prefix) and name != options.prefix]
    if not names:
        some = ", ".join(list(opened.tensors)[:5])
        raise KeepstepError(f"{opened.words} has no tensor named '{options.prefix}...'; it has {some}, ...")
    strange = [name for name in names if opened.tensors[name].dtype not in DTYPES]
    if strange:
        dtype = opened.tensors[strange[0]].dtype
        raise KeepstepError(f"safetensors knows no {dtype}, which '{strange[0]}' is; --prefix leaves it out")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    there = sorted(found.name for found in out.glob("model*.safetensors*"))
    if there and not options.force:
        raise KeepstepError(f"'{out}' has {there[0]} already; --force replaces it")
    shards = _shards(opened, names, _size(options.shard_size))
    files = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    )
    total = sum(tensors.bytes_of(opened.tensors[name]) for name in names)
    done = 0
    with progress("exporting", total, quiet=options.quiet or options.json, command="ckpt") as shown:
        for file, shard in zip(files, shards, strict=True):
            exported = {name: name.removeprefix(options.prefix) for name in shard}
            done = _write(opened, out / file, exported, shown, done)
    index = out / "model.safetensors.index.json"
    if len(files) > 1:
        weights = {
            name.removeprefix(options.prefix): file for file, shard in zip(files, shards, strict=True) for name in shard
        }
        index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=2) + "\n")
    for name in there:
        if name not in files and (name != index.name or len(files) == 1):
            (out / name).unlink()
    if options.json:
        print(json.dumps({"from": opened.words, "step": opened.step, "out": str(out), "files": files,
                          "tensors": len(names), "bytes": total}))  # fmt: skip
    else:
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        print(f"{out}: {len(names):,} tensors ({in_bytes(total)}) in {count}, from {opened.words}")
    return 0

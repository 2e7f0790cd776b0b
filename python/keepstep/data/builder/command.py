"""``keepstep data build`` from start to end."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError
from keepstep.data.builder import inputs, plan, tokenizer
from keepstep.data.builder.options import BuildOptions, parse
from keepstep.data.builder.part import Counts, finished, prefix_of, write_json
from keepstep.data.builder.pool import Pool
from keepstep.data.builder.progress import in_bytes, in_time, progress

SYNC_BYTES = 256 << 20  # bytes joined between two deletions of parts


def _refuse_existing(options: BuildOptions) -> None:
    there = [f"{options.out}{suffix}" for suffix in (".idx", ".bin") if os.path.exists(options.out + suffix)]
    if there and not options.force:
        left = f" '{options.out}.building' is left over from a build; it can be removed." if os.path.isdir(
            f"{options.out}.building") else ""  # fmt: skip
        raise KeepstepError(f"'{there[0]}' is there already; give --force to replace it, or another --out.{left}")


def _build_parts(
    options: BuildOptions, building: plan.Building, encoding: tokenizer.Encoding, parts: list[list[inputs.Piece]]
) -> tuple[list[Counts], int]:
    """Builds the missing parts. Returns the counts of each part, and how many parts already existed."""
    counts: dict[int, Counts] = {}
    for number in range(len(parts)):
        if (found := finished(building.folder, number)) is not None:
            counts[number] = found
    there = len(counts)
    sizes = [sum(piece.bytes for piece in part) for part in parts]
    read = sum(sizes[number] for number in counts)
    setup = {"folder": building.folder, "encoding": asdict(encoding), "field": options.field, "skip": options.skip}

    def done(number: int, found: Counts) -> None:
        nonlocal read
        counts[number] = found
        read += sizes[number]

    with progress("reading", sum(sizes), read, options.quiet) as shown, Pool(options.workers, setup) as pool:
        todo = {number: part for number, part in enumerate(parts) if number not in counts}
        pool.run(todo, done, lambda under_way: shown.update(read + under_way))
    return [counts[number] for number in range(len(parts))], there


def _join(
    options: BuildOptions, building: plan.Building, encoding: tokenizer.Encoding, counts: list[Counts]
) -> _engine.TokenWriter:
    """Joins all parts in order into the corpus. Deletes each part once it is safely in the joined file."""
    writer = _engine.TokenWriter.join(options.out, os.path.join(building.folder, "joined.bin"), encoding.dtype)
    sizes = [each.tokens * _size(encoding.dtype) for each in counts]
    done = unsynced = 0
    added: list[str] = []
    with progress("joining", sum(sizes), 0, options.quiet) as shown:
        for number, (size, built) in enumerate(zip(sizes, counts, strict=True)):
            prefix = prefix_of(building.folder, number)
            if not _is_there(writer, prefix, size, built):
                _forget(building.folder, number, len(counts))
                raise KeepstepError(f"'{prefix}.bin' is not what was written (a power loss?); it will be built again")
            added.append(f"{prefix}.bin")
            done += size
            unsynced += size
            if unsynced >= SYNC_BYTES:
                writer.sync()
                for path in added:
                    _remove(path)
                added, unsynced = [], 0
            shown.update(done)
        _remove(f"{options.out}.build.json")  # describes the corpus that is replaced
        writer.finish()
    return writer


def _is_there(writer: _engine.TokenWriter, prefix: str, size: int, built: Counts) -> bool:
    """Adds a part, or finds it in the joined file if an interrupted build had already added it."""
    if os.path.exists(f"{prefix}.bin"):
        return writer.append(prefix) == built.checksum
    try:
        return writer.take_over(prefix, size) == built.checksum
    except RuntimeError:  # in neither place
        return False


def _forget(folder: str, number: int, parts: int) -> None:
    """Has part `number` built again, and the later parts that exist only in the joined file."""
    for each in range(number, parts):
        prefix = prefix_of(folder, each)
        if each == number or not os.path.exists(f"{prefix}.bin"):
            _remove(f"{prefix}.json")


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass


def _build(options: BuildOptions, building: plan.Building) -> dict[str, Any]:
    began = time.monotonic()
    _refuse_existing(options)
    encoding = tokenizer.choose(
        options.tokenizer, append_eod=options.append_eod, eod=options.eod, dtype=options.dtype,
        special_tokens=options.special_tokens,
    )  # fmt: skip
    found = inputs.find(options.inputs, options.format)
    parts = inputs.parts(found.files)
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    building.open(plan.of(options, encoding, found.files), options.force)
    counts, there = _build_parts(options, building, encoding, parts)
    total = Counts()
    for each in counts:
        total.add(each)
    if total.tokens == 0:
        reasons = f"{total.empty} empty documents, {total.unreadable} that could not be read"
        first = f"; the first: {total.complaints[0]}" if total.complaints else ""
        building.remove()
        raise KeepstepError(f"no token in {len(found.files)} files ({reasons}{first}); no corpus is written")
    writer = _join(options, building, encoding, counts)
    about = {
        "version": plan.VERSION,
        **asdict(encoding),
        "field": options.field,
        "files": len(found.files),
        "input_bytes": found.bytes,
        "binary_files_left_out": found.binary,
        **{name: value for name, value in asdict(total).items() if name != "checksum"},
        "bytes": writer.tokens * _size(encoding.dtype),
        "checksum": f"{writer.checksum:016x}",
    }
    write_json(f"{options.out}.build.json", about)
    building.remove()
    seconds = time.monotonic() - began
    return {"prefix": options.out, "seconds": round(seconds, 3), "parts": len(parts), "parts_kept": there, **about}


def _size(dtype: str) -> int:
    return int(dtype.lstrip("uint")) // 8


def _summary(built: dict[str, Any]) -> str:
    rate = built["input_bytes"] / max(1e-9, built["seconds"])
    lines = [
        f"{built['prefix']}: {built['documents']:,} documents, {built['tokens']:,} tokens of {built['dtype']} "
        f"({in_bytes(built['bytes'])})",
        f"from {built['files']:,} files ({in_bytes(built['input_bytes'])}) in {in_time(built['seconds'])} "
        f"({in_bytes(rate)}/s)"
        + (f", {built['parts_kept']} of {built['parts']} parts from an earlier build" if built["parts_kept"] else ""),
    ]
    left_out = [f"{built['empty']:,} empty documents"] if built["empty"] else []
    left_out += [f"{built['binary_files_left_out']:,} binary files"] if built["binary_files_left_out"] else []
    left_out += [f"{built['unreadable']:,} that could not be read"] if built["unreadable"] else []
    if left_out:
        lines.append("left out: " + ", ".join(left_out))
    lines += [f"  {text}" for text in built["complaints"]]
    if built["unreadable"] > len(built["complaints"]):
        lines.append("  ...")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    building = plan.Building(options.out)
    kept = f"finished parts are kept in {building.folder}: the same command goes on from there"
    try:
        built = _build(options, building)
    except (KeepstepError, RuntimeError, OSError) as error:
        print(f"keepstep data build: {error}", file=sys.stderr)
        if building.opened:
            print(f"Nothing new is at {options.out}; {kept}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keepstep data build: stopped{'; ' + kept if building.opened else ''}", file=sys.stderr)
        return 130
    finally:
        building.close()
    print(json.dumps(built) if options.json else _summary(built))
    return 0

"""Writes the corpus of `keepstep bench data`: the standard library's sources, a token per byte, repeated as needed."""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path

from keepstep import _engine

END_OF_DOCUMENT = 256


def main(chosen: argparse.Namespace) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts]
    texts = [text for path in paths if (text := path.read_bytes())]
    if not texts:
        raise SystemExit(f"{root} has no sources: install them, or use another Python")
    writer = _engine.TokenWriter.create(chosen.prefix, "uint16")
    while 2 * writer.tokens < chosen.bytes:
        for text in texts:
            writer.add_bytes(text, END_OF_DOCUMENT)
            writer.end_document()
    writer.finish()
    print(json.dumps({"tokens": writer.tokens, "documents": writer.documents}))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--prefix", required=True)
    options.add_argument("--bytes", type=int, required=True)
    main(options.parse_args())

"""JSON lines to tokens with Hugging Face datasets: load_dataset and a batched map; the result is an Arrow file.

usage: data_build_datasets.py INPUT FOLDER bytes|TOKENIZER WORKERS
"""

import json
import os
import shutil
import sys
import time
from typing import Any

import datasets
import numpy


def main(source: str, folder: str, tokenizer: str, workers: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # so nothing is found in a cache
    datasets.disable_progress_bars()
    began = time.monotonic()
    if tokenizer == "bytes":
        kind = "uint8"

        def encode(texts: list[str]) -> dict[str, list[Any]]:
            return {"ids": [numpy.frombuffer(text.encode(), numpy.uint8) for text in texts]}
    else:
        from tokenizers import Tokenizer

        kind = "uint16"
        loaded = Tokenizer.from_file(tokenizer)

        def encode(texts: list[str]) -> dict[str, list[Any]]:
            return {"ids": [each.ids for each in loaded.encode_batch(texts, add_special_tokens=False)]}

    found = datasets.load_dataset("json", data_files=source, split="train", cache_dir=folder)
    features = datasets.Features({"ids": datasets.Sequence(datasets.Value(kind))})
    made = found.map(
        encode, input_columns=["text"], batched=True, num_proc=workers if workers > 1 else None,
        remove_columns=found.column_names, features=features,
    )  # fmt: skip
    for file in made.cache_files:
        with open(file["filename"], "rb") as written:
            os.fsync(written.fileno())
    print(json.dumps({"seconds": time.monotonic() - began, "documents": len(made)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

"""JSON lines to a corpus like Megatron's tools/preprocess_data.py: a pool tokenizes lines, one process writes.

usage: data_build_megatron.py INPUT PREFIX bytes|TOKENIZER WORKERS
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable

import numpy
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder


class Encoder:
    tokenize: Callable[[str], list[int]]

    def __init__(self, tokenizer: str) -> None:
        self.tokenizer = tokenizer

    def initializer(self) -> None:
        if self.tokenizer == "bytes":
            Encoder.tokenize = lambda text: list(text.encode())
        else:
            from tokenizers import Tokenizer

            loaded = Tokenizer.from_file(self.tokenizer)
            Encoder.tokenize = lambda text: loaded.encode(text, add_special_tokens=False).ids

    def encode(self, line: str) -> tuple[list[int], list[int]]:
        ids = Encoder.tokenize(json.loads(line)["text"])
        return ids, [len(ids)]


def main(source: str, prefix: str, tokenizer: str, workers: int) -> None:
    began = time.monotonic()
    if tokenizer == "bytes":
        dtype = numpy.uint8
    else:
        from tokenizers import Tokenizer

        dtype = DType.optimal_dtype(Tokenizer.from_file(tokenizer).get_vocab_size())
    encoder = Encoder(tokenizer)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    with open(source, encoding="utf-8") as file, multiprocessing.Pool(workers, encoder.initializer) as pool:
        for ids, lengths in pool.imap(encoder.encode, file, 32):
            builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")
    for suffix in (".bin", ".idx"):
        with open(prefix + suffix, "rb") as file:
            os.fsync(file.fileno())
    print(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

"""Tokenizers: bytes, or a tokenizer.json loaded with the library `tokenizers`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep import _engine
from keepstep._errors import KeepstepError

BYTES = "bytes"
BYTE_EOD = 256  # no byte of any text
_EOD_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<|endofdoc|>", "<eod>", "<eos>", "</s>")
_GREATEST = {"uint8": 2**8 - 1, "int8": 2**7 - 1, "int16": 2**15 - 1, "uint16": 2**16 - 1, "int32": 2**31 - 1,
             "int64": 2**63 - 1}  # fmt: skip


@dataclass(frozen=True)
class Encoding:
    """How text is encoded. `eod` is negative if nothing is appended."""

    tokenizer: str  # BYTES, or the absolute path of the file
    digest: str  # sha256 of the file; empty for bytes
    vocabulary: int  # greatest id + 1, including the end-of-document token
    eod: int
    dtype: str
    special_tokens: bool


def digest_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def load(path: str) -> Any:
    """A tokenizers.Tokenizer that never truncates or pads, whatever its file says."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise KeepstepError(
            f"--tokenizer {path} needs the library tokenizers, which cannot be imported ({error}): "
            "pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing narrower
        raise KeepstepError(f"--tokenizer {path}: no tokenizer.json that can be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _eod_of(tokenizer: Any, wanted: str | None, path: str) -> int:
    if wanted is not None:
        found = tokenizer.token_to_id(wanted)
        if found is None and wanted.isdecimal() and tokenizer.id_to_token(int(wanted)) is not None:
            return int(wanted)
        if found is None:
            raise KeepstepError(f"--eod {wanted}: {path} has no such token")
        return int(found)
    known = {name: tokenizer.token_to_id(name) for name in _EOD_NAMES if tokenizer.token_to_id(name) is not None}
    if len(known) != 1:
        which = f"several ({', '.join(known)})" if known else f"none of {', '.join(_EOD_NAMES)}"
        raise KeepstepError(f"--append-eod: {path} has {which}; say with --eod which token ends a document")
    return int(next(iter(known.values())))


def choose(
    tokenizer: str, *, append_eod: bool = False, eod: str | None = None, dtype: str | None = None,
    special_tokens: bool = False,
) -> Encoding:  # fmt: skip
    """Loads the tokenizer and checks that its tokens fit. KeepstepError names what does not."""
    digest = ""
    if tokenizer == BYTES:
        if eod is not None and not (eod.isdecimal() and int(eod) <= 2**31 - 1):
            raise KeepstepError(f"--eod {eod}: with --tokenizer bytes it is a number")
        end = (int(eod) if eod is not None else BYTE_EOD) if append_eod else -1
        vocabulary = max(256, end + 1)
    else:
        if not os.path.isfile(tokenizer):
            raise KeepstepError(
                f"--tokenizer {tokenizer}: no such file (give 'bytes', or the path of a tokenizer.json)"
            )
        tokenizer = os.path.abspath(tokenizer)
        digest = digest_of(tokenizer)
        loaded = load(tokenizer)
        end = _eod_of(loaded, eod, tokenizer) if append_eod else -1
        vocabulary = max(loaded.get_vocab(with_added_tokens=True).values(), default=0) + 1
    kind = dtype or _engine.narrowest_type(vocabulary)
    if vocabulary - 1 > _GREATEST[kind]:
        raise KeepstepError(
            f"--dtype {kind} holds tokens to {_GREATEST[kind]}; this vocabulary has {vocabulary} "
            f"(it needs {_engine.narrowest_type(vocabulary)})"
        )
    return Encoding(tokenizer, digest, vocabulary, end, kind, special_tokens)


class Encoder:
    """Encodes texts in a worker."""

    def __init__(self, encoding: Encoding) -> None:
        self._path = encoding.tokenizer
        self._tokenizer = load(encoding.tokenizer)
        self._encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)  # without offsets
        self._special_tokens = encoding.special_tokens
        self._end = [encoding.eod] if encoding.eod >= 0 else []

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """A list of tokens for each nonempty text, with the end token appended."""
        try:
            found = self._encode(texts, add_special_tokens=self._special_tokens)
        except Exception as error:  # the library raises nothing narrower
            raise KeepstepError(f"--tokenizer {self._path} cannot tokenize a text: {error}") from error
        return [ids + self._end for each in found if (ids := each.ids)]

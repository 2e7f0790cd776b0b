"""A repetition penalty for `generate`: what a Lempel-Ziv compressor could say in few bits is said less."""

from __future__ import annotations

import math

import torch
from transformers import LogitsProcessor

from keepstep import KeepstepError


class LZPenalty(LogitsProcessor):
    """Lowers each token's score by `alpha` times the bits that a sliding-window compressor saves on it.

    Of the last `window` tokens, each with `buffer` tokens before it in the window is a candidate. Its match is as long
    as the tokens just before it equal the newest tokens of the sequence, at most `buffer`. Of the candidates that are
    the same token, the one with the longest match counts, and of these the nearest. With its `distance` from the next
    position, the token costs ``log2(distance)`` bits, but never more than a new token: ``log2(vocabulary)``. The
    difference is saved. Tokens that are no candidate keep their scores.

    Follows `compute_lz_penalty_batched` in the fork of SGLang (github.com/tginart/sglang, commit 4e9c0157) by the
    authors of "LZ Penalty" (Ginart et al., 2025, arXiv 2504.20131).

    Args:
        alpha: the strength, in units of score per bit; 0 changes nothing.
        window: how many tokens back a match is looked for.
        buffer: how many tokens a match can have. Up to so many tokens, a sequence is not penalized.
        prompt_ignore_length: so many tokens at the beginning of each row do not count: the prompt, with its padding.

    Raises:
        KeepstepError: an argument is out of range, or a shape is wrong.
    """

    supports_continuous_batching = False

    def __init__(self, alpha: float = 0.15, window: int = 512, buffer: int = 32, prompt_ignore_length: int = 0) -> None:
        if not (math.isfinite(alpha) and alpha >= 0):
            raise KeepstepError(f"LZPenalty: alpha is {alpha}; pass a finite number, 0 or more")
        if buffer < 1:
            raise KeepstepError(f"LZPenalty: buffer is {buffer}; pass 1 or more tokens")
        if window <= buffer:
            raise KeepstepError(
                f"LZPenalty: a window of {window} tokens has no room for a match beside a buffer of {buffer}; pass a "
                "window that is longer than the buffer"
            )
        if prompt_ignore_length < 0:
            raise KeepstepError(f"LZPenalty: prompt_ignore_length is {prompt_ignore_length}; pass 0 or more tokens")
        self.alpha = alpha
        self.window = window
        self.buffer = buffer
        self.prompt_ignore_length = prompt_ignore_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """The penalized scores, [batch, vocabulary], of the sequences `input_ids`, [batch, sequence]."""
        if input_ids.dim() != 2 or scores.dim() != 2 or len(input_ids) != len(scores):
            raise KeepstepError(
                f"LZPenalty: input_ids has the shape {list(input_ids.shape)} and scores {list(scores.shape)}; pass "
                "[batch, sequence] and [batch, vocabulary] with the same batch"
            )
        recent = input_ids[:, self.prompt_ignore_length :][:, -self.window :]
        candidates = recent[:, self.buffer :]
        count = candidates.shape[1]
        if count == 0:
            return scores
        before = recent[:, :-1].unfold(1, self.buffer, 1)  # [batch, count, buffer]
        equal = (before == recent[:, None, -self.buffer :]).flip(-1)
        length = equal.cumprod(-1, dtype=torch.int32).sum(-1, dtype=torch.int32)  # [batch, count]
        place = torch.arange(count, dtype=torch.int32, device=scores.device)
        # The longest match, then the nearest; no two candidates of a row have the same rank.
        rank = length * count + place
        best = rank.new_full(scores.shape, -1).scatter_reduce_(1, candidates, rank, "amax")
        saved = (math.log2(scores.shape[1]) - (count - place).log2()).clamp(min=0)
        # One candidate of each token adds; the others add 0, so the order of the additions changes no bit.
        saved = torch.where(best.gather(1, candidates) == rank, saved, 0)
        return scores.scatter_add(1, candidates, (-self.alpha * saved).to(scores.dtype))

"""A policy that writes sequences of tokens, and what a sequence is worth. Trainer and rollout workers share it."""

from __future__ import annotations

import torch
from torch import nn

TOKENS, LENGTH = 8, 6


class Policy(nn.Module):
    """Chooses each token after the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS + 1, 32)  # the last one begins each sequence
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (batch, length, TOKENS) of the tokens that follow each prefix of `tokens`."""
        begins = tokens.new_full((len(tokens), 1), TOKENS)
        hidden, _ = self.recurrent(self.embed(torch.cat([begins, tokens], dim=1)))
        return self.head(hidden).log_softmax(dim=-1)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """`count` sequences (count, LENGTH)."""
        tokens = torch.empty(count, 0, dtype=torch.long)
        for _ in range(LENGTH):
            following = self(tokens)[:, -1].exp()
            tokens = torch.cat([tokens, torch.multinomial(following, 1, generator=generator)], dim=1)
        return tokens


def reward(tokens: torch.Tensor) -> torch.Tensor:
    """The share of neighbours in ascending order, by sequence: what the policy has to find out."""
    return (tokens[:, 1:] > tokens[:, :-1]).float().mean(dim=1)

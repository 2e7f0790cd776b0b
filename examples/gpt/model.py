"""A byte-level GPT in plain PyTorch: nothing here knows how it is trained, or on how many ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # bytes


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model. ``width`` is a multiple of ``heads``; ``context`` is in bytes."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 64
    dropout: float = 0.0


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a LayerNorm and around a shortcut."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.width)
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.feed_norm = nn.LayerNorm(config.width)
        self.feed_in = nn.Linear(config.width, 4 * config.width)
        self.feed_out = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: float[batch, length, width], and so is what comes back."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        x = x + F.dropout(self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width)), rate)
        return x + F.dropout(self.feed_out(F.gelu(self.feed_in(self.feed_norm(x)))), rate)


class GPT(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.byte_embedding = nn.Embedding(VOCABULARY, config.width)
        self.place_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens``: int64[batch, length <= context]; returns float[batch, length, 256]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.byte_embedding(tokens) + self.place_embedding(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats; ``logits`` float[batch, length, 256], ``targets`` int64[batch, length]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

"""torchtitan on a machine without a GPU, and a small model of its own for it. It would ask CUDA for its memory."""

import types

import torch
from torchtitan.tools import utils

utils.device_type = "cpu"
utils.device_module = types.SimpleNamespace(
    **{name: getattr(torch.cpu, name) for name in ("current_device", "set_device", "synchronize", "device_count")},
    get_device_name=lambda device=None: "cpu",
    get_device_properties=lambda device=None: types.SimpleNamespace(total_memory=1 << 30),
    reset_peak_memory_stats=lambda: None,
    empty_cache=lambda: None,
    memory_stats=lambda device=None: {},
)
utils.get_local_device = lambda: torch.device("cpu")


def small_llama(vocabulary):
    """A Llama 3 of 100,000 parameters. Its attention is causal over whole sequences (as in torchtitan's own tests of
    its graph trainer), because FlexAttention has no backward on CPUs, and varlen attention runs on GPUs only."""
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention

    spec = llama3.model_registry("debugmodel")
    width, heads = 64, 4
    model = spec.model
    model.dim, model.vocab_size = width, vocabulary
    model.tok_embeddings.num_embeddings, model.tok_embeddings.embedding_dim = vocabulary, width
    model.norm.normalized_shape = width
    model.lm_head.in_features, model.lm_head.out_features = width, vocabulary
    rope = llama3.ComplexRoPE.Config(dim=width // heads, max_seq_len=128, theta=10000)
    model.layers = llama3._build_llama3_layers(
        n_layers=2, dim=width, n_heads=heads, n_kv_heads=2, hidden_dim=128, rope=rope, attn_backend="flex"
    )
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec

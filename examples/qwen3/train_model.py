"""The Qwen3 decoder in torch that the example checkpoint is trained with.

Written from the architecture's description; it shares nothing with the decoder that async_orch runs, so that
each can be checked against a third implementation. Attribute names are those of the checkpoint's tensors.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ModelConfig", "Qwen3"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of the decoder. `head_dim` is on purpose not `hidden_size / num_attention_heads`."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 320
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 48
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def to_json(self, end_of_text_id: int) -> dict[str, Any]:
        """The content of `config.json`."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **dataclasses.asdict(self),
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "torch_dtype": "float32",
            "bos_token_id": end_of_text_id,
            "eos_token_id": end_of_text_id,
        }


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim/2) of the last axis of `x` [batch, heads, length, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention with a norm over each head of q and k before the rotation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = (batch, length, -1, self.config.head_dim)
        q = self.q_norm(self.q_proj(x).view(split)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(split)).transpose(1, 2)
        v = self.v_proj(x).view(split).transpose(1, 2)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        k = _rotate(k, cosine, sine).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        mixed = functional.scaled_dot_product_attention(_rotate(q, cosine, sine), k, v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm and added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = SwiGlu(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embedding, layers and last norm; the attribute names are those of the checkpoint's tensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen3(nn.Module):
    """Token ids [batch, length] to logits [batch, length, vocab_size]; the head is the embedding (tied)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 1 / math.sqrt(2 * config.num_hidden_layers) if residual else 1.0
                nn.init.normal_(parameter, std=scale * (0.02 if "embed" in name else 0.06))

    def forward(self, ids: Tensor) -> Tensor:
        config = self.config
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angle = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), config.rope_theta**-exponent)
        cosine, sine = angle.cos(), angle.sin()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cosine, sine)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)

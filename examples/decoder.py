"""A small decoder-only transformer in flax.nnx around `MegaMoe`, read from a checkpoint on disk.

What a served model has: RMSNorm, rotary positions, grouped-query attention with a cache of keys and
values, and in each block a router, a `MegaMoe` and, in DeepSeek's, a shared expert. Experts,
routers and names of tensors are those of gpt-oss and DeepSeek-V4; attention is plain in both, for
shortness.

Attention is data-parallel and experts are expert-parallel over ONE mesh axis: each device holds
whole sequences of the batch, a copy of the attention weights, and its share of the experts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe as jm
from jax_megamoe import checkpoint, routing

Read = Callable[[str], Array]
Cache = list[tuple[Array, Array]]  # for each layer keys and values [B, S, heads, D]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the decoder beside those of its experts, from config.json."""

    family: str
    num_layers: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    scoring_func: str
    routed_scaling_factor: float
    num_hash_layers: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> DecoderConfig:
        return cls(
            family=config["model_type"],
            num_layers=config["num_hidden_layers"],
            vocab_size=config["vocab_size"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            rope_theta=config["rope_theta"],
            eps=config["rms_norm_eps"],
            scoring_func=config.get("scoring_func", "softmax"),
            routed_scaling_factor=config.get("routed_scaling_factor", 1.0),
            num_hash_layers=config.get("num_hash_layers", 0),
        )


# Where the two families keep the same thing.
NAMES = {
    "gpt_oss": dict(
        embedding="model.embed_tokens.weight",
        norm="model.norm.weight",
        head="lm_head.weight",
        layer="model.layers.{}.",
        attention_norm="input_layernorm.weight",
        q="self_attn.q_proj",
        k="self_attn.k_proj",
        v="self_attn.v_proj",
        o="self_attn.o_proj",
        moe_norm="post_attention_layernorm.weight",
    ),
    "deepseek_v4": dict(
        embedding="embed.weight",
        norm="norm.weight",
        head="head.weight",
        layer="layers.{}.",
        attention_norm="attn_norm.weight",
        q="attn.wq",
        k="attn.wk",
        v="attn.wv",
        o="attn.wo",
        moe_norm="ffn_norm.weight",
    ),
}


class RMSNorm(nnx.Module):
    def __init__(self, weight: Array, eps: float) -> None:
        self.weight, self.eps = nnx.Param(weight), eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * self.weight[...]


class Linear(nnx.Module):
    """x @ weight.T + bias, weight [out, in] as checkpoints have it."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)

    def __call__(self, x: Array) -> Array:
        y = x @ self.weight[...].T
        return y if self.bias is None else y + self.bias[...]


def rotate(x: Array, positions: Array, theta: float) -> Array:
    """Rotary position embedding of x [B, S, heads, D]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Causal grouped-query attention that writes its keys and values into a cache."""

    def __init__(self, config: DecoderConfig, read: Read, names: dict[str, str], stem: str) -> None:
        self.config = config
        biased = config.family == "gpt_oss"
        for key in "qkvo":
            name = stem + names[key]
            bias = read(f"{name}.bias") if biased else None
            setattr(self, key, Linear(read(f"{name}.weight"), bias))

    def __call__(
        self, x: Array, cache: tuple[Array, Array], start: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        c = self.config
        batch, length, _ = x.shape
        positions = start + jnp.arange(length)
        q = self.q(x).reshape(batch, length, c.num_heads, c.head_dim)
        k = self.k(x).reshape(batch, length, c.num_kv_heads, c.head_dim)
        v = self.v(x).reshape(batch, length, c.num_kv_heads, c.head_dim)
        q, k = (rotate(value, positions, c.rope_theta) for value in (q, k))
        keys, values = (
            jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0))
            for old, new in zip(cache, (k, v), strict=True)
        )
        q = q.reshape(batch, length, c.num_kv_heads, -1, c.head_dim)
        scores = jnp.einsum("bsngd,btnd->bngst", q, keys, preferred_element_type=jnp.float32)
        seen = jnp.arange(keys.shape[1]) <= positions[:, None]
        scores = jnp.where(seen, scores * c.head_dim**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        y = jnp.einsum("bngst,btnd->bsngd", weights, values)
        return self.o(y.reshape(batch, length, -1)), (keys, values)


class GptOssRouter(nnx.Module):
    def __init__(self, moe: jm.MegaMoeConfig, read: Read, stem: str) -> None:
        self.slots = moe.num_experts_per_tok
        self.weight = nnx.Param(read(stem + "mlp.router.weight"))
        self.bias = nnx.Param(read(stem + "mlp.router.bias"))

    def __call__(self, x: Array, token_ids: Array) -> tuple[Array, Array]:
        logits = routing.router_logits(x, self.weight[...], self.bias[...])
        return routing.gpt_oss(logits, self.slots)


class DeepSeekRouter(nnx.Module):
    """By scores; in the first layers by a table of token ids."""

    def __init__(
        self, moe: jm.MegaMoeConfig, config: DecoderConfig, read: Read, stem: str, by_hash: bool
    ) -> None:
        self.slots, self.config, self.by_hash = moe.num_experts_per_tok, config, by_hash
        self.weight = nnx.Param(read(stem + "ffn.gate.weight"))
        name = "ffn.gate.tid2eid" if by_hash else "ffn.gate.bias"
        self.table_or_bias = nnx.Variable(read(stem + name))

    def __call__(self, x: Array, token_ids: Array) -> tuple[Array, Array]:
        logits = routing.router_logits(x, self.weight[...])
        score = dict(
            scoring_func=self.config.scoring_func, scaling_factor=self.config.routed_scaling_factor
        )
        if self.by_hash:
            return routing.deepseek_v4_hash(logits, token_ids, self.table_or_bias[...], **score)
        bias = self.table_or_bias[...]
        return routing.deepseek_v4(logits, self.slots, correction_bias=bias, **score)


class SharedExpert(nnx.Module):
    """The expert of DeepSeek's that every token takes, in bfloat16."""

    def __init__(self, moe: jm.MegaMoeConfig, read: Read, stem: str) -> None:
        self.limit = moe.swiglu_limit
        for name in ("w1", "w2", "w3"):
            setattr(self, name, Linear(read(f"{stem}ffn.shared_experts.{name}.weight")))

    def __call__(self, x: Array) -> Array:
        gate, up = self.w1(x), self.w3(x)
        if self.limit is not None:
            gate, up = jnp.minimum(gate, self.limit), jnp.clip(up, -self.limit, self.limit)
        return self.w2(jax.nn.silu(gate) * up)


class Block(nnx.Module):
    def __init__(
        self,
        config: DecoderConfig,
        moe: jm.MegaMoeConfig,
        read: Read,
        layer: int,
        experts: jm.MegaMoe,
    ) -> None:
        names = NAMES[config.family]
        stem = names["layer"].format(layer)
        self.attention_norm = RMSNorm(read(stem + names["attention_norm"]), config.eps)
        self.attention = Attention(config, read, names, stem)
        self.moe_norm = RMSNorm(read(stem + names["moe_norm"]), config.eps)
        self.moe = experts
        if config.family == "gpt_oss":
            self.router = GptOssRouter(moe, read, stem)
            self.shared = None
        else:
            by_hash = layer < config.num_hash_layers
            self.router = DeepSeekRouter(moe, config, read, stem, by_hash)
            self.shared = SharedExpert(moe, read, stem)

    def __call__(
        self, x: Array, token_ids: Array, cache: tuple[Array, Array], start: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        y, cache = self.attention(self.attention_norm(x), cache, start)
        x = x + y
        h = self.moe_norm(x)
        topk_idx, topk_weights = self.router(h, token_ids)
        y = self.moe(h, topk_idx, topk_weights)
        if self.shared is not None:
            y = y + self.shared(h)
        return x + y, cache


class Decoder(nnx.Module):
    """The whole model; `Decoder.load` reads it from a checkpoint directory."""

    def __init__(
        self,
        config: DecoderConfig,
        moe: jm.MegaMoeConfig,
        read: Read,
        experts: dict[int, jm.PreparedWeights],
        mesh: Mesh,
    ) -> None:
        names = NAMES[config.family]
        self.config, self.mesh = config, nnx.static(mesh)
        self.embedding = nnx.Param(read(names["embedding"]))
        self.blocks = nnx.List(
            [
                Block(config, moe, read, layer, jm.MegaMoe(moe, mesh=mesh, weights=experts[layer]))
                for layer in range(config.num_layers)
            ]
        )
        self.norm = RMSNorm(read(names["norm"]), config.eps)
        self.head = Linear(read(names["head"]))

    @classmethod
    def load(cls, path: str | Path, mesh: Mesh, implementation: str | None = None) -> Decoder:
        """Experts through `load_all_experts`, split over the mesh; everything else copied to all
        devices.
        """
        moe = checkpoint.load_config(path)
        experts = checkpoint.load_all_experts(path, mesh=mesh, implementation=implementation)
        copied = NamedSharding(mesh, P())
        with checkpoint.Checkpoint(path) as files:
            return cls(
                DecoderConfig.of(files.config or {}),
                moe,
                lambda name: jax.device_put(files.read(name), copied),
                experts,
                mesh,
            )

    def setup(self, max_tokens_per_rank: int) -> None:
        """The memory through which GPUs reach each other, for all layers; nothing on CPUs."""
        for block in self.blocks:
            block.moe.setup(max_tokens_per_rank)

    def empty_cache(self, batch: int, length: int) -> Cache:
        c, sharding = self.config, NamedSharding(self.mesh, P("ep"))
        shape = (batch, length, c.num_kv_heads, c.head_dim)

        def zeros() -> Array:
            return jnp.zeros(shape, jnp.bfloat16, device=sharding)

        return [(zeros(), zeros()) for _ in range(c.num_layers)]

    def __call__(self, token_ids: Array, cache: Cache, start: Array) -> tuple[Array, Cache]:
        """Token ids [B, S] at positions start...: logits [B, vocabulary] of the last, and the new
        cache.
        """
        x = self.embedding[...][token_ids]
        new: Cache = []
        for block, old in zip(self.blocks, cache, strict=True):
            x, kept = block(x, token_ids, old, start)
            new.append(kept)
        return self.head(self.norm(x[:, -1])).astype(jnp.float32), new

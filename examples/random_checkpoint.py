"""Writes small random checkpoints in the formats that gpt-oss and DeepSeek-V4 have on disk.

Values are random, but of a size that keeps activations near 1. The gpt-oss one is written with the
safetensors library alone; the experts of the other with `save_experts`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import jax_megamoe as jm
from jax_megamoe.checkpoint import save_experts

INDEX = "model.safetensors.index.json"

ATTENTION = dict(
    hidden_size=256,
    num_hidden_layers=2,
    vocab_size=512,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    hidden_act="silu",
)
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt_oss": dict(
        model_type="gpt_oss",
        intermediate_size=256,
        num_local_experts=16,
        num_experts_per_tok=4,
        swiglu_limit=7.0,
        quantization_config={"quant_method": "mxfp4"},
        **ATTENTION,
    ),
    "deepseek_v4": dict(
        model_type="deepseek_v4",
        moe_intermediate_size=128,
        n_routed_experts=32,
        n_shared_experts=1,
        num_experts_per_tok=6,
        scoring_func="sqrtsoftplus",
        routed_scaling_factor=1.5,
        num_hash_layers=1,
        swiglu_limit=10.0,
        expert_dtype="fp4",
        quantization_config={"quant_method": "fp8", "scale_fmt": "ue8m0"},
        **ATTENTION,
    ),
}


def write(path: Path, family: str, seed: int = 0) -> None:
    """A checkpoint of a family ("gpt_oss" or "deepseek_v4") into a directory."""
    config = CONFIGS[family]
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True, exist_ok=True)
    if family == "gpt_oss":
        save_file(_gpt_oss(config, rng), path / "model.safetensors")
    else:
        _write_deepseek(path, config, rng)
    (path / "config.json").write_text(json.dumps(config, indent=2))


def _matrix(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> np.ndarray:
    values = rng.standard_normal(shape, np.float32) * (gain / math.sqrt(shape[-1]))
    return values.astype(ml_dtypes.bfloat16)


def _fp4(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Random codes of [..., K] weights, and scales that make them about 1 / sqrt(K)."""
    *rows, k = shape
    codes = rng.integers(0, 256, (*rows, k // 2), np.uint8)
    scale = round(math.log2(1 / (2.9 * math.sqrt(k))))  # random codes are 2.9 in root mean square
    return codes, np.full((*rows, k // 32), 127 + scale, np.uint8)


def _gpt_oss(c: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, inner, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    queries = c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    ones = np.ones(hidden, ml_dtypes.bfloat16)
    tensors = {
        "model.embed_tokens.weight": _matrix(rng, c["vocab_size"], hidden, gain=hidden**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": _matrix(rng, c["vocab_size"], hidden, gain=2.0),
    }
    for layer in range(c["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        tensors[stem + "input_layernorm.weight"] = ones
        tensors[stem + "post_attention_layernorm.weight"] = ones
        for name, rows, columns in (
            ("q_proj", queries, hidden),
            ("k_proj", keys, hidden),
            ("v_proj", keys, hidden),
            ("o_proj", hidden, queries),
        ):
            tensors[f"{stem}self_attn.{name}.weight"] = _matrix(rng, rows, columns)
            tensors[f"{stem}self_attn.{name}.bias"] = np.zeros(rows, ml_dtypes.bfloat16)
        tensors[stem + "mlp.router.weight"] = _matrix(rng, experts, hidden)
        tensors[stem + "mlp.router.bias"] = np.zeros(experts, ml_dtypes.bfloat16)
        for name, rows, k in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            codes, scales = _fp4(rng, experts, rows, k)
            tensors[f"{stem}mlp.experts.{name}_blocks"] = codes.reshape(experts, rows, k // 32, 16)
            tensors[f"{stem}mlp.experts.{name}_scales"] = scales
            tensors[f"{stem}mlp.experts.{name}_bias"] = _matrix(rng, experts, rows)
    return tensors


def _write_deepseek(path: Path, c: dict[str, Any], rng: np.random.Generator) -> None:
    moe = jm.MegaMoeConfig(
        num_experts=c["n_routed_experts"],
        hidden_size=c["hidden_size"],
        intermediate_size=c["moe_intermediate_size"],
        num_experts_per_tok=c["num_experts_per_tok"],
        swiglu_limit=c["swiglu_limit"],
    )
    experts, hidden, inner = moe.num_experts, moe.hidden_size, moe.intermediate_size
    layers = {}
    for layer in range(c["num_hidden_layers"]):
        gate_up, gate_up_scale = _fp4(rng, experts, 2 * inner, hidden)
        down, down_scale = _fp4(rng, experts, hidden, inner)
        layers[layer] = jm.ExpertWeights(
            gate_up.view(np.int8), gate_up_scale, down.view(np.int8), down_scale
        )
    save_experts(path, layers, moe)

    queries = c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    ones = np.ones(hidden, ml_dtypes.bfloat16)
    tensors = {
        "embed.weight": _matrix(rng, c["vocab_size"], hidden, gain=hidden**0.5),
        "norm.weight": ones,
        "head.weight": _matrix(rng, c["vocab_size"], hidden, gain=2.0),
    }
    for layer in range(c["num_hidden_layers"]):
        stem = f"layers.{layer}."
        tensors |= {stem + "attn_norm.weight": ones, stem + "ffn_norm.weight": ones}
        for name, rows, columns in (
            ("attn.wq", queries, hidden),
            ("attn.wk", keys, hidden),
            ("attn.wv", keys, hidden),
            ("attn.wo", hidden, queries),
            ("ffn.gate", experts, hidden),
            ("ffn.shared_experts.w1", inner, hidden),
            ("ffn.shared_experts.w3", inner, hidden),
            ("ffn.shared_experts.w2", hidden, inner),
        ):
            tensors[f"{stem}{name}.weight"] = _matrix(rng, rows, columns)
        if layer < c["num_hash_layers"]:
            rows = [
                rng.permutation(experts)[: moe.num_experts_per_tok] for _ in range(c["vocab_size"])
            ]
            tensors[stem + "ffn.gate.tid2eid"] = np.stack(rows).astype(np.int32)
        else:
            tensors[stem + "ffn.gate.bias"] = rng.normal(0, 0.1, experts).astype(np.float32)
    save_file(tensors, path / "model-rest.safetensors")
    index = json.loads((path / INDEX).read_text())
    index["weight_map"] |= dict.fromkeys(tensors, "model-rest.safetensors")
    (path / INDEX).write_text(json.dumps(index, indent=2))

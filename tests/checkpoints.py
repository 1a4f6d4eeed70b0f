"""Checkpoints for the tests of the loader, written byte by byte from what the formats publish.

Nothing here uses the project's writer or the safetensors library, so that a misunderstanding cannot
agree with itself.  `experts` draws the weights; the functions after it lay them out in each format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax_megamoe as jm

#: (dtype as safetensors spells it, shape, bytes)
Raw = tuple[str, tuple[int, ...], bytes]

NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}


def raw(array: np.ndarray, dtype: str | None = None) -> Raw:
    """An array as a tensor of a file; `dtype` overrides what the file says of it."""
    return dtype or NAMES[array.dtype.name], array.shape, np.ascontiguousarray(array).tobytes()


def header(tensors: Mapping[str, Raw]) -> dict[str, Any]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        span = [offset, offset + len(data)]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": span}
        offset += len(data)
    return entries


def write_file(path: Path, tensors: Mapping[str, Raw], entries: Any = None) -> None:
    """A safetensors file; `entries` replaces the header that would be right."""
    text = json.dumps(header(tensors) if entries is None else entries).encode()
    data = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_directory(
    path: Path, tensors: Mapping[str, Raw], config: Any = None, shards: int = 2
) -> Path:
    """Shards with an index, tensors dealt out to them in turn."""
    path.mkdir(parents=True, exist_ok=True)
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {name: names[i % shards] for i, name in enumerate(tensors)}
    for file in names:
        held = {name: tensors[name] for name in tensors if weight_map[name] == file}
        write_file(path / file, held)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def experts(
    num: int = 4, hidden: int = 64, intermediate: int = 96, bias: Any = None, seed: int = 0
) -> jm.ExpertWeights:
    """Random codes, scale bytes of every kind (0, 254 and 255 too) and biases of a dtype."""
    rng = np.random.default_rng(seed)

    def codes(*shape: int) -> np.ndarray:
        return rng.integers(-128, 128, shape, np.int8)

    def scales(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, shape, np.uint8)

    def biases(*shape: int) -> np.ndarray | None:
        return None if bias is None else rng.standard_normal(shape).astype(bias)

    return jm.ExpertWeights(
        codes(num, 2 * intermediate, hidden // 2),
        scales(num, 2 * intermediate, hidden // 32),
        codes(num, hidden, intermediate // 2),
        scales(num, hidden, intermediate // 32),
        biases(num, 2 * intermediate),
        biases(num, hidden),
    )


def finite_scales(weights: jm.ExpertWeights) -> jm.ExpertWeights:
    """The same with byte 255 (NaN) replaced, for the scale forms that do not have it."""
    fields = vars(weights).copy()
    for name in ("gate_up_proj_scale_inv", "down_proj_scale_inv"):
        fields[name] = np.minimum(fields[name], 254)
    return jm.ExpertWeights(**fields)


def dense(num: int = 4, hidden: int = 64, intermediate: int = 96, seed: int = 0) -> Any:
    """Floating-point gate, up [E, I, H] and down [E, H, I]."""
    rng = np.random.default_rng(seed)
    shapes = (num, intermediate, hidden), (num, intermediate, hidden), (num, hidden, intermediate)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def scale_tensor(byte: np.ndarray, form: str) -> Raw:
    """Scale bytes as a tensor in one of the forms that checkpoints have."""
    if form in ("F8_E8M0", "U8"):
        return form, byte.shape, byte.tobytes()
    if form == "F32":
        return raw(np.ldexp(np.float32(1), byte.astype(np.int32) - 127))
    raise AssertionError(form)


def deepseek(
    weights: jm.ExpertWeights,
    layer: int = 0,
    scale: str = "F8_E8M0",
    end: str = "scale",
    codes: str = "I8",
    prefix: str = "",
    block: str = "ffn",
    matrices: tuple[str, str, str] = ("w1", "w3", "w2"),
) -> dict[str, Raw]:
    """DeepSeek-V4's own files: three matrices for each expert."""
    tensors: dict[str, Raw] = {}
    num, rows, _ = weights.gate_up_proj.shape
    half = slice(0, rows // 2), slice(rows // 2, rows), slice(None)
    fields = ("gate_up_proj", "gate_up_proj", "down_proj")
    for expert in range(num):
        for matrix, field, part in zip(matrices, fields, half, strict=True):
            stem = f"{prefix}layers.{layer}.{block}.experts.{expert}.{matrix}"
            packed = getattr(weights, field)[expert, part]
            shape = packed.shape if codes != "F4" else (packed.shape[0], 2 * packed.shape[1])
            tensors[f"{stem}.weight"] = codes, shape, packed.tobytes()
            byte = getattr(weights, f"{field}_scale_inv")[expert, part]
            tensors[f"{stem}.{end}"] = scale_tensor(byte, scale)
            bias = getattr(weights, f"{field}_bias")
            if bias is not None:
                tensors[f"{stem}.bias"] = raw(bias[expert, part])
    return tensors


def hugging_face(
    weights: jm.ExpertWeights, layer: int = 0, scale: str = "F8_E8M0"
) -> dict[str, Raw]:
    """What transformers' module holds: the names of `ExpertWeights`."""
    stem = f"model.layers.{layer}.mlp.experts."
    return {
        f"{stem}gate_up_proj": raw(weights.gate_up_proj),
        f"{stem}gate_up_proj_scale_inv": scale_tensor(weights.gate_up_proj_scale_inv, scale),
        f"{stem}down_proj": raw(weights.down_proj),
        f"{stem}down_proj_scale_inv": scale_tensor(weights.down_proj_scale_inv, scale),
    }


def interleave(rows: np.ndarray) -> np.ndarray:
    """Gate rows, then up rows [E, 2I, ...] as gpt-oss has them: gate and up in turn."""
    num, count, *rest = rows.shape
    halves = rows.reshape(num, 2, count // 2, *rest)
    return np.ascontiguousarray(np.moveaxis(halves, 1, 2)).reshape(rows.shape)


def gpt_oss(weights: jm.ExpertWeights, layer: int = 0) -> dict[str, Raw]:
    """gpt-oss: blocks of 16 bytes, scales as uint8, biases; rows of gate and up alternate."""
    stem = f"model.layers.{layer}.mlp.experts."
    tensors: dict[str, Raw] = {}
    for field, order in (("gate_up_proj", interleave), ("down_proj", np.asarray)):
        packed = order(getattr(weights, field)).view(np.uint8)
        blocks = packed.reshape(*packed.shape[:-1], packed.shape[-1] // 16, 16)
        tensors[f"{stem}{field}_blocks"] = raw(blocks)
        tensors[f"{stem}{field}_scales"] = raw(order(getattr(weights, f"{field}_scale_inv")))
        bias = getattr(weights, f"{field}_bias")
        if bias is not None:
            tensors[f"{stem}{field}_bias"] = raw(order(bias))
    return tensors


def deepseek_config(weights: jm.ExpertWeights, **changes: Any) -> dict[str, Any]:
    num, rows, half = weights.gate_up_proj.shape
    config = {
        "model_type": "deepseek_v4",
        "hidden_size": 2 * half,
        "moe_intermediate_size": rows // 2,
        "n_routed_experts": num,
        "num_experts_per_tok": 2,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }
    return {**config, **changes}


def gpt_oss_config(weights: jm.ExpertWeights, **changes: Any) -> dict[str, Any]:
    num, rows, half = weights.gate_up_proj.shape
    config = {
        "model_type": "gpt_oss",
        "hidden_size": 2 * half,
        "intermediate_size": rows // 2,
        "num_local_experts": num,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []},
    }
    return {**config, **changes}


def same_bits(one: Any, other: Any) -> bool:
    """Whether two ExpertWeights are equal bit for bit, scales compared as bytes."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in vars(one)]
    return all((a is None) == (b is None) and (a is None or _bits(a) == _bits(b)) for a, b in pairs)


def _bits(array: Any) -> tuple[Any, ...]:
    array = np.asarray(array)
    kind = array.dtype.name if array.dtype.itemsize > 1 else "byte"
    return kind, array.shape, array.tobytes()


def loaded(*args: Any, **kwargs: Any) -> jm.ExpertWeights:
    """`load_experts`, back in the checkpoint layout."""
    return jm.unprepare_weights(jm.checkpoint.load_experts(*args, **kwargs))


def quantised(gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> jm.ExpertWeights:
    """MXFP4 of floating-point experts by a plain NumPy loop over groups (no ties, no overflow)."""
    parts = []
    for matrix in (np.concatenate([gate, up], axis=1), down):
        groups = matrix.astype(np.float64).reshape(*matrix.shape[:-1], -1, 32)
        amax = np.maximum(np.abs(groups).max(-1), 1e-4)
        exponent = np.ceil(np.log2(amax / 6)).astype(np.int32)
        values = (groups / np.exp2(exponent)[..., None]).reshape(matrix.shape)
        nibbles = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        nibbles = np.where(nibbles == 8, 0, nibbles)  # no negative zero
        packed = (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).view(np.int8)
        parts += [packed, (exponent + 127).astype(np.uint8)]
    return jm.ExpertWeights(*parts)


def peak_bytes(weights: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))


BFLOAT16 = jnp.bfloat16

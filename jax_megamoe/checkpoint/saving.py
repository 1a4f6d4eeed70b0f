"""`save_experts`: a checkpoint with the names and types that DeepSeek-V4's own files have.

What is written is the checkpoint layout, so that loading gives the same bits for any
implementation. One expert at a time leaves the devices, and one shard at a time stands in host
memory, since the safetensors library writes a file in one go.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from safetensors import TensorSpec, serialize_file

from jax_megamoe import validation
from jax_megamoe import weights as weights_module
from jax_megamoe.checkpoint.directory import INDEX
from jax_megamoe.checkpoint.loading import no_mesh
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.weights import FIELDS, ExpertWeights, PreparedWeights

Weights = ExpertWeights | PreparedWeights


def save_experts(
    path: str | Path,
    weights: Weights | Mapping[int, Weights],
    config: MegaMoeConfig,
    *,
    layer: int = 0,
    shard_bytes: int = 1 << 30,
) -> None:
    """Writes the experts of a layer, or of several, as a DeepSeek-V4 checkpoint that `load_experts`
    reads.

    Tensors are layers.N.ffn.experts.E.{w1,w3,w2}.weight (int8) and .scale (float8_e8m0fnu), in bits
    what was loaded or prepared, and .bias where there are biases; config.json has what
    `load_config` reads.

    Args:
      path: a directory, made if it is not there; it must not hold a checkpoint yet.
      weights: ExpertWeights or PreparedWeights of one layer, or a mapping from layers to them.
      config: of the layers.
      layer: the number of the layer where `weights` is of one.
      shard_bytes: the size of a file, about; a shard stands in host memory while it is written.

    Raises:
      ValueError: path holds a checkpoint, weights and config differ, or another process has some of
        the experts.
      TypeError: something else than weights.
    """
    path = Path(path)
    layers = dict(weights) if isinstance(weights, Mapping) else {layer: weights}
    for one in layers.values():
        _check(one, config)
    found = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.safetensors.index.json"))
    if found:
        raise ValueError(
            f"path is {path}, which holds a checkpoint already ({found[0].name}); pass an empty "
            "directory."
        )
    path.mkdir(parents=True, exist_ok=True)

    experts_bytes = _expert_bytes(next(iter(layers.values())), config) if layers else 1
    per_shard = max(1, shard_bytes // experts_bytes)
    shards = max(1, math.ceil(len(layers) * config.num_experts / per_shard))
    tensors = _tensors(layers, config)
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        with no_mesh():
            held = dict(_take(tensors, per_shard))
        _write(path / name, held)
        weight_map |= dict.fromkeys(held, name)
        total += sum(array.nbytes for array in held.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "config.json").write_text(json.dumps(_hf_config(config, layers), indent=2) + "\n")
    (path / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _check(weights: Any, config: MegaMoeConfig) -> None:
    if not isinstance(weights, (ExpertWeights, PreparedWeights)):
        raise TypeError(
            f"weights holds {validation.a_type(weights)}; ExpertWeights and PreparedWeights are "
            "accepted, or a mapping from layers to them."
        )
    for leaf in jax.tree.leaves(weights):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise ValueError(
                "weights are spread over several processes, and each would write only its part. "
                "Gather them first, with jax.experimental.multihost_utils.process_allgather, and "
                "write in one process."
            )
    if isinstance(weights, PreparedWeights):
        weights_module.check_layout(weights, None)
        weights_module.check_prepared_arrays(weights)
        hidden, intermediate = weights.hidden_size, weights.intermediate_size
    else:
        hidden, intermediate = weights_module.check_weights(weights)
    validation.check_fits_config(
        "(E, H, I) of the weights",
        (weights.gate_up_proj.shape[0], hidden, intermediate),
        (config.num_experts, config.hidden_size, config.intermediate_size),
    )
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        validation.check_bias_given(name, getattr(weights, name) is not None, config.use_bias)


def _tensors(
    layers: Mapping[int, Weights], config: MegaMoeConfig
) -> Iterator[list[tuple[str, np.ndarray]]]:
    """The tensors of each expert."""
    for layer in sorted(layers):
        for expert in range(config.num_experts):
            one = _expert(layers[layer], expert)
            stem = f"layers.{layer}.ffn.experts.{expert}."
            named: list[tuple[str, np.ndarray]] = []
            for matrix, weight in (("gate_up_proj", ("w1", "w3")), ("down_proj", ("w2",))):
                for field, end in (
                    (matrix, "weight"),
                    (matrix + "_scale_inv", "scale"),
                    (matrix + "_bias", "bias"),
                ):
                    array = getattr(one, field)
                    if array is not None:
                        parts = np.split(np.asarray(array), len(weight))
                        named += [
                            (f"{stem}{name}.{end}", part)
                            for name, part in zip(weight, parts, strict=True)
                        ]
            yield named


def _expert(weights: Weights, expert: int) -> ExpertWeights:
    """One expert in the checkpoint layout on the host, without the axis of experts."""
    one = jax.tree.map(lambda leaf: _slice(leaf, expert), weights)
    if isinstance(one, PreparedWeights):
        one = weights_module.unprepare_weights(one)
    host = jax.tree.map(lambda leaf: np.asarray(leaf)[0], one)
    scales = {
        f"{name}_scale_inv": weights_module._bytes_of(
            getattr(host, name), getattr(host, f"{name}_scale_inv")
        ).view(ml_dtypes.float8_e8m0fnu)
        for name in ("gate_up_proj", "down_proj")
    }
    expert_weights: ExpertWeights = dataclasses.replace(host, **scales)
    return expert_weights


def _slice(leaf: Any, expert: int) -> Any:
    """leaf[expert : expert + 1], from the one device that holds it."""
    if isinstance(leaf, jax.Array):
        for shard in leaf.addressable_shards:
            start, stop, _ = shard.index[0].indices(leaf.shape[0])
            if start <= expert < stop:
                return np.asarray(shard.data[expert - start : expert - start + 1])
    return leaf[expert : expert + 1]


def _expert_bytes(weights: Weights, config: MegaMoeConfig) -> int:
    arrays = [getattr(weights, name) for name in FIELDS]
    total: int = sum(array.nbytes for array in arrays if array is not None)
    return max(1, total // config.num_experts)


def _take(
    experts: Iterator[list[tuple[str, np.ndarray]]], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    for _, named in zip(range(count), experts, strict=False):
        yield from named


def _write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=array.dtype.name,
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in contiguous.items()
    }
    serialize_file(specs, str(path), metadata={"format": "pt"})


def _hf_config(config: MegaMoeConfig, layers: Mapping[int, Weights]) -> dict[str, Any]:
    limit = config.swiglu_limit
    return {
        "model_type": "deepseek_v4",
        "hidden_size": config.hidden_size,
        "moe_intermediate_size": config.intermediate_size,
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "num_hidden_layers": max(layers, default=-1) + 1,
        "hidden_act": "silu",
        "swiglu_limit": None if limit is None or math.isinf(limit) else limit,
        "swiglu_alpha": config.swiglu_alpha,
        "swiglu_beta": config.swiglu_beta,
        "expert_dtype": "fp4",
        "quantization_config": {"expert_dtype": "fp4", "scale_fmt": "ue8m0"},
    }

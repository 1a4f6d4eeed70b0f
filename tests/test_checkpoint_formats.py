"""Each format of published checkpoints loads to the same weights, and says what config it has."""

from __future__ import annotations

import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import jax_megamoe as jm
from checkpoints import (
    deepseek,
    deepseek_config,
    dense,
    experts,
    finite_scales,
    gpt_oss,
    gpt_oss_config,
    hugging_face,
    interleave,
    loaded,
    quantised,
    raw,
    same_bits,
    write_directory,
    write_file,
)
from jax_megamoe.checkpoint import load_all_experts, load_config, load_experts

PLAIN = experts()
BIASED = experts(bias=jnp.bfloat16)

FORMATS = {
    "DeepSeek-V4": (PLAIN, deepseek(PLAIN)),
    "DeepSeek-V4, scales named as Hugging Face does": (
        PLAIN,
        deepseek(PLAIN, end="weight_scale_inv", prefix="model.", block="mlp"),
    ),
    "DeepSeek-V4, float32 scales": (
        finite_scales(PLAIN),
        deepseek(finite_scales(PLAIN), scale="F32"),
    ),
    "DeepSeek-V4, scales as bytes": (PLAIN, deepseek(PLAIN, scale="U8")),
    "DeepSeek-V4, codes as F4": (PLAIN, deepseek(PLAIN, codes="F4")),
    "DeepSeek-V4, codes as U8": (PLAIN, deepseek(PLAIN, codes="U8")),
    "DeepSeek-V4, with biases": (BIASED, deepseek(BIASED)),
    "gate_proj, up_proj, down_proj": (
        PLAIN,
        deepseek(PLAIN, matrices=("gate_proj", "up_proj", "down_proj"), prefix="model."),
    ),
    "Hugging Face": (PLAIN, hugging_face(PLAIN)),
    "Hugging Face, float32 scales": (
        finite_scales(PLAIN),
        hugging_face(finite_scales(PLAIN), scale="F32"),
    ),
    "gpt-oss": (BIASED, gpt_oss(BIASED)),
    "gpt-oss, float32 biases": (experts(bias=np.float32), gpt_oss(experts(bias=np.float32))),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("implementation", ["cpu", "xla"])
def test_each_format_loads_the_weights_bit_for_bit(tmp_path, name, implementation):
    weights, tensors = FORMATS[name]
    config = gpt_oss_config(weights) if "gpt-oss" in name else deepseek_config(weights)
    write_directory(tmp_path, tensors, config, shards=3)
    got = load_experts(tmp_path, 0, implementation=implementation)
    assert got.implementation == implementation
    assert same_bits(jm.unprepare_weights(got), weights)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_loads_from_a_single_file_without_a_config(tmp_path, name):
    weights, tensors = FORMATS[name]
    write_file(tmp_path / "any.safetensors", tensors)
    assert same_bits(loaded(tmp_path / "any.safetensors", 0), weights)
    assert same_bits(loaded(tmp_path, 0), weights)


def test_loading_twice_gives_the_same_bits(tmp_path):
    write_directory(tmp_path, deepseek(PLAIN), deepseek_config(PLAIN))
    assert same_bits(loaded(tmp_path, 0), loaded(tmp_path, 0))


def test_a_checkpoint_of_the_library_loads(tmp_path):
    """gpt-oss needs only types that the safetensors library writes from NumPy."""
    arrays = {
        name: np.frombuffer(data, {"U8": np.uint8, "BF16": jnp.bfloat16}[dtype]).reshape(shape)
        for name, (dtype, shape, data) in gpt_oss(BIASED).items()
    }
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(gpt_oss_config(BIASED)))
    assert same_bits(loaded(tmp_path, 0), BIASED)


def test_gate_and_up_rows_of_gpt_oss_are_separated():
    """Plants the fault: loading rows as they stand would give other weights."""
    assert not same_bits(BIASED, experts(bias=jnp.bfloat16, seed=1))
    rows = np.arange(8)[None, :, None]
    assert interleave(rows)[0, :, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_layers_are_told_apart(tmp_path):
    layers = {3: experts(seed=3), 12: experts(seed=12), 1: experts(seed=1)}
    tensors = {}
    for layer, weights in layers.items():
        tensors |= deepseek(weights, layer)
    # What else is in such a checkpoint, and is not read.
    tensors["mtp.0.ffn.experts.0.w1.weight"] = raw(np.ones((2, 2), np.float64))
    tensors["layers.3.ffn.shared_experts.w1.weight"] = raw(np.ones((2, 2), np.float64))
    tensors["layers.3.ffn.gate.weight"] = raw(np.ones((2, 2), np.float64))
    write_directory(tmp_path, tensors, deepseek_config(PLAIN), shards=4)
    got = load_all_experts(tmp_path)
    assert list(got) == [1, 3, 12]
    for layer, weights in layers.items():
        assert same_bits(jm.unprepare_weights(got[layer]), weights)
    some = load_all_experts(tmp_path, layers=[12, 1])
    assert list(some) == [1, 12]


# ---- floating-point experts


def dense_tensors(form: str, matrices, dtype=np.float32):
    gate, up, down = (matrix.astype(dtype) for matrix in matrices)
    stem = "model.layers.0.mlp.experts."
    both = np.concatenate([gate, up], axis=1)
    if form == "each expert":
        return {
            f"{stem}{e}.{name}.weight": raw(matrix[e])
            for e in range(len(gate))
            for name, matrix in (("gate_proj", gate), ("up_proj", up), ("down_proj", down))
        }
    if form == "all experts":
        return {f"{stem}gate_up_proj": raw(both), f"{stem}down_proj": raw(down)}
    assert form == "gpt-oss"
    return {
        f"{stem}gate_up_proj": raw(interleave(both).swapaxes(1, 2)),
        f"{stem}down_proj": raw(down.swapaxes(1, 2)),
    }


@pytest.mark.parametrize("form", ["each expert", "all experts", "gpt-oss"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_floating_point_experts_are_quantised_if_asked(tmp_path, form, dtype):
    matrices = [matrix.astype(dtype).astype(np.float32) for matrix in dense()]
    family = "gpt_oss" if form == "gpt-oss" else "qwen3_moe"
    config = deepseek_config(PLAIN, model_type=family, quantization_config=None, expert_dtype=None)
    write_directory(tmp_path, dense_tensors(form, matrices, dtype), config)
    assert same_bits(loaded(tmp_path, 0, quantize=True), quantised(*matrices))
    with pytest.raises(NotImplementedError, match="quantize=True") as error:
        load_experts(tmp_path, 0)
    assert "model.layers.0.mlp.experts." in str(error.value)
    assert ".safetensors" in str(error.value)


def test_floating_point_biases_of_gpt_oss_are_separated(tmp_path):
    matrices = dense()
    weights = experts(bias=np.float32)
    stem = "model.layers.0.mlp.experts."
    tensors = dense_tensors("gpt-oss", matrices)
    tensors[f"{stem}gate_up_proj_bias"] = raw(interleave(weights.gate_up_proj_bias))
    tensors[f"{stem}down_proj_bias"] = raw(weights.down_proj_bias)
    write_directory(tmp_path, tensors, gpt_oss_config(weights))
    got = loaded(tmp_path, 0, quantize=True)
    np.testing.assert_array_equal(got.gate_up_proj_bias, weights.gate_up_proj_bias)
    np.testing.assert_array_equal(got.down_proj_bias, weights.down_proj_bias)


def test_quantising_in_parts_gives_what_quantising_at_once_does(tmp_path, monkeypatch):
    write_directory(tmp_path, dense_tensors("all experts", dense()))
    whole = loaded(tmp_path, 0, quantize=True)
    monkeypatch.setattr("jax_megamoe.checkpoint.experts._QUANTIZED_AT_ONCE", 7 * 64)
    assert same_bits(loaded(tmp_path, 0, quantize=True), whole)


# ---- configs


def test_configs_of_published_models(tmp_path):
    write_directory(tmp_path / "v4", deepseek(PLAIN), deepseek_config(PLAIN))
    assert load_config(tmp_path / "v4") == jm.MegaMoeConfig(4, 64, 96, 2, swiglu_limit=10.0)
    write_directory(tmp_path / "oss", gpt_oss(BIASED), gpt_oss_config(BIASED))
    assert load_config(tmp_path / "oss") == jm.MegaMoeConfig(4, 64, 96, 2, 7.0, 1.702, 1.0, True)
    plain = deepseek_config(PLAIN, model_type="deepseek_v3")
    del plain["swiglu_limit"]
    write_directory(tmp_path / "v3", deepseek(PLAIN), plain)
    assert load_config(tmp_path / "v3") == jm.MegaMoeConfig(4, 64, 96, 2)
    nested = {"model_type": "some_vlm", "text_config": deepseek_config(PLAIN)}
    write_directory(tmp_path / "vlm", deepseek(PLAIN), nested)
    assert load_config(tmp_path / "vlm") == load_config(tmp_path / "v4")


def test_values_in_the_config_count(tmp_path):
    config = gpt_oss_config(BIASED, swiglu_alpha=1.5, swiglu_limit=None)
    write_directory(tmp_path, gpt_oss(BIASED), config)
    got = load_config(tmp_path)
    assert (got.swiglu_limit, got.swiglu_alpha, got.swiglu_beta) == (None, 1.5, 1.0)


def test_a_loaded_layer_runs_in_the_module(tmp_path):
    """Three lines from a directory to a result, equal to the layer on the same weights."""
    weights = jm.ExpertWeights(
        *jm.quantize_fp4(dense()[0].repeat(2, axis=1)), *jm.quantize_fp4(dense()[2])
    )
    weights = jax.tree.map(np.asarray, weights)
    as_bytes = jm.ExpertWeights(
        *[x if x.dtype == np.int8 else x.view(np.uint8) for x in jax.tree.leaves(weights)]
    )
    write_directory(tmp_path, deepseek(as_bytes), deepseek_config(as_bytes))
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])

    config = load_config(tmp_path)
    moe = jm.MegaMoe(config, mesh=mesh, weights=load_experts(tmp_path, 0, mesh=mesh))
    x = jax.random.normal(jax.random.key(0), (5, 64), jnp.bfloat16)
    idx = jnp.asarray([[0, 1], [2, 3], [1, 1], [3, -1], [0, 2]], jnp.int32)
    scores = jnp.full((5, 2), 0.5)
    wanted = jm.expert_parallel(
        x, idx, scores, weights, axis_name="ep", mesh=mesh, swiglu_limit=10.0
    )
    np.testing.assert_array_equal(np.asarray(moe(x, idx, scores)), np.asarray(wanted))


def test_what_was_recognised_is_logged(tmp_path, caplog):
    write_directory(tmp_path, gpt_oss(BIASED), gpt_oss_config(BIASED))
    with caplog.at_level(logging.INFO, logger="jax_megamoe"):
        load_experts(tmp_path, 0)
    assert "gpt-oss blocks, experts 4, H 64, I 96" in caplog.text

"""What the loader refuses: each case names the tensor and the file, and says what to do."""

from __future__ import annotations

import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_megamoe as jm
from checkpoints import (
    deepseek,
    deepseek_config,
    dense,
    experts,
    gpt_oss,
    gpt_oss_config,
    hugging_face,
    raw,
    write_directory,
    write_file,
)
from jax_megamoe.checkpoint import load_all_experts, load_config, load_experts, save_experts

PLAIN = experts()
BIASED = experts(bias=jnp.bfloat16)
V4 = "layers.0.ffn.experts."
HF = "model.layers.0.mlp.experts."


def v4(**changes):
    return {**deepseek(PLAIN), **{V4 + name: value for name, value in changes.items()}}


def hf(**changes):
    return {**hugging_face(PLAIN), **{HF + name: value for name, value in changes.items()}}


def oss(**changes):
    return {**gpt_oss(BIASED), **{HF + name: value for name, value in changes.items()}}


def zeros(shape, dtype):
    return raw(np.zeros(shape, dtype))


def two_thirds(tensors, name):
    """A float32 scale that is no power of two, in the middle of the tensor."""
    scale = np.ones(tensors[name][1], np.float32)
    scale[7, 1] = 1.5
    return {**tensors, name: raw(scale)}


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu

#: tensors, config changes, exception, words, and the tensor that must be named
CASES = {
    "FP8 experts": (
        v4(**{"2.w1.weight": zeros((96, 64), E4M3)}),
        NotImplementedError,
        "FP8 experts are not supported",
        V4 + "2.w1.weight",
    ),
    "FP8 experts, fused": (
        hf(gate_up_proj=zeros((4, 192, 64), E4M3)),
        NotImplementedError,
        "FP8 experts are not supported",
        HF + "gate_up_proj",
    ),
    "NVFP4 scales by type": (
        v4(**{"0.w3.scale": zeros((96, 4), E4M3)}),
        NotImplementedError,
        "that is NVFP4",
        V4 + "0.w3.scale",
    ),
    "NVFP4 scales by number": (
        hf(down_proj_scale_inv=zeros((4, 64, 6), np.uint8)),
        NotImplementedError,
        "that is NVFP4",
        HF + "down_proj_scale_inv",
    ),
    "NVFP4 by a global scale": (
        v4(**{"0.w1.weight_scale_2": zeros((), np.float32)}),
        NotImplementedError,
        "belongs to NVFP4",
        V4 + "0.w1.weight_scale_2",
    ),
    "names of another format": (
        v4(**{"0.w1.qweight": zeros((4, 4), np.int32)}),
        NotImplementedError,
        "no format of experts",
        V4 + "0.w1.qweight",
    ),
    "a fused tensor of another name": (
        oss(gate_up_proj_zeros=zeros((4,), np.uint8)),
        NotImplementedError,
        "no format of experts",
        HF + "gate_up_proj_zeros",
    ),
    "two conventions for one expert": (
        v4(**{"0.gate_proj.weight": zeros((96, 32), np.int8)}),
        NotImplementedError,
        "no format of experts",
        V4 + "0.gate_proj.weight",
    ),
    "a type that no experts have": (
        v4(**{"0.w1.weight": zeros((96, 32), np.float64)}),
        NotImplementedError,
        "FP4-packed expert weights",
        V4 + "0.w1.weight",
    ),
    "scales of another type": (
        v4(**{"1.w2.scale": zeros((64, 3), jnp.bfloat16)}),
        TypeError,
        "accepted are float8_e8m0fnu",
        V4 + "1.w2.scale",
    ),
    "float32 scales that are no powers of two": (
        two_thirds(deepseek(PLAIN), V4 + "1.w1.scale"),
        ValueError,
        "[7, 1] is 1.5",
        V4 + "1.w1.scale",
    ),
    "biases of another type": (
        {**deepseek(BIASED), V4 + "0.w1.bias": zeros((96,), np.float16)},
        TypeError,
        "accepted are float32 and bfloat16",
        V4 + "0.w1.bias",
    ),
    "biases of two types": (
        {**deepseek(BIASED), V4 + "3.w2.bias": zeros((64,), np.float32)},
        TypeError,
        "one dtype for all",
        V4 + "3.w2.bias",
    ),
    "one expert of another type": (
        v4(**{"1.w2.weight": zeros((64, 96), jnp.bfloat16)}),
        TypeError,
        "mixes formats",
        V4 + "1.w2.weight",
    ),
    "a matrix of another shape": (
        v4(**{"3.w2.weight": zeros((64, 32), np.int8)}),
        ValueError,
        "[64, 48] is needed",
        V4 + "3.w2.weight",
    ),
    "int8 that is not packed": (
        v4(**{"0.w1.weight": zeros((96, 64), np.int8)}),
        ValueError,
        "hidden_size 128",
        V4 + "0.w1.weight",
    ),
    "scales of another shape": (
        hf(gate_up_proj_scale_inv=zeros((4, 192, 1), np.uint8)),
        ValueError,
        "one scale for 32 weights",
        HF + "gate_up_proj_scale_inv",
    ),
    "biases of another shape": (
        oss(down_proj_bias=zeros((4, 32), np.float32)),
        ValueError,
        "one value a row",
        HF + "down_proj_bias",
    ),
    "blocks of another size": (
        oss(gate_up_proj_blocks=zeros((4, 192, 4, 8), np.uint8)),
        ValueError,
        "[4, 192, 2, 16] is needed",
        HF + "gate_up_proj_blocks",
    ),
    "an axis too few": (
        hf(gate_up_proj=zeros((4, 64), np.int8)),
        ValueError,
        "3 axes are accepted",
        HF + "gate_up_proj",
    ),
    "another number of experts": (
        hf(gate_up_proj=zeros((6, 192, 32), np.int8)),
        ValueError,
        "6 experts",
        HF + "gate_up_proj",
    ),
    "a missing expert": (
        {name: value for name, value in deepseek(PLAIN).items() if ".3.w" not in name},
        ValueError,
        "there are 4 experts",
        V4 + "3.w1.weight",
    ),
    "a missing matrix": (
        without(deepseek(PLAIN), V4 + "2.w3.weight"),
        ValueError,
        "has no tensor",
        V4 + "2.w3.weight",
    ),
    "a missing scale": (
        without(deepseek(PLAIN), V4 + "2.w3.scale"),
        ValueError,
        "has no tensor",
        V4 + "2.w3.scale",
    ),
    "no scales at all": (
        {name: value for name, value in deepseek(PLAIN).items() if "scale" not in name},
        ValueError,
        "no scales for it",
        V4 + "0.w1.weight",
    ),
    "no scales at all, fused": (
        {name: value for name, value in hugging_face(PLAIN).items() if "scale" not in name},
        ValueError,
        "no scales for it",
        HF + "gate_up_proj",
    ),
    "a missing second matrix": (
        without(gpt_oss(BIASED), HF + "down_proj_blocks"),
        ValueError,
        "has no tensor",
        HF + "down_proj_blocks",
    ),
    "one bias of two": (
        without(gpt_oss(BIASED), HF + "down_proj_bias"),
        ValueError,
        "has no tensor",
        HF + "down_proj_bias",
    ),
    "an expert beyond their number": (
        {**deepseek(PLAIN), V4 + "4.w1.weight": zeros((96, 32), np.int8)},
        ValueError,
        "gives 4 experts",
        V4 + "4.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_tensor_and_file(tmp_path, case):
    tensors, error, words, name = CASES[case]
    weights = BIASED if "bias" in case or "blocks" in case else PLAIN
    write_directory(tmp_path, tensors, deepseek_config(weights), shards=1)
    with pytest.raises(error, match=re.escape(words)) as caught:
        load_experts(tmp_path, 0)
    assert type(caught.value) is error
    assert name in str(caught.value)
    assert str(tmp_path) in str(caught.value) and ".safetensors" in str(caught.value)


def test_a_broken_expert_is_refused_without_a_config_too(tmp_path):
    for case in ("a missing matrix", "a matrix of another shape", "NVFP4 scales by type"):
        tensors, error, words, name = CASES[case]
        write_file(tmp_path / "model.safetensors", tensors)
        with pytest.raises(error, match=re.escape(words)) as caught:
            load_experts(tmp_path / "model.safetensors", 0)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        (dict(hidden_act="situ"), NotImplementedError, "hidden_act = 'situ'"),
        (dict(hidden_act="gelu"), NotImplementedError, "hidden_act = 'gelu'"),
        (dict(moe_hidden_act="SiTU"), NotImplementedError, "moe_hidden_act = 'SiTU'"),
        (dict(expert_dtype="fp8"), NotImplementedError, "expert_dtype = 'fp8'"),
        (
            dict(quantization_config={"expert_dtype": "fp4", "scale_fmt": "e4m3"}),
            NotImplementedError,
            "scale_fmt = 'e4m3'",
        ),
        (dict(hidden_size=128), ValueError, "hidden_size 64"),
        (dict(moe_intermediate_size=64), ValueError, "intermediate_size 96"),
        (dict(n_routed_experts=5), ValueError, "there are 5 experts"),
        (dict(n_routed_experts=2), ValueError, "gives 2 experts"),
        (dict(num_local_experts=5), ValueError, "num_local_experts = 5"),
        (dict(n_routed_experts="4"), ValueError, "a positive integer"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(tmp_path, changes, error, words):
    write_directory(tmp_path, deepseek(PLAIN), deepseek_config(PLAIN, **changes))
    with pytest.raises(error, match=re.escape(words)) as caught:
        load_experts(tmp_path, 0)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes, error, words",
    [
        (dict(hidden_act="situ"), NotImplementedError, "hidden_act = 'situ'"),
        (dict(model_type="kimi_k3"), NotImplementedError, "model_type 'kimi_k3'"),
        (dict(model_type=None), NotImplementedError, "model_type None"),
        # A limit in a family that is known to have none is something else than we know.
        (dict(model_type="qwen3_moe"), NotImplementedError, "without swiglu_* values"),
        (dict(swiglu_limit="7"), ValueError, "swiglu_limit = '7'"),
        (dict(swiglu_limit=-1), ValueError, "swiglu_limit is -1"),
        (dict(num_experts_per_tok=None), ValueError, "num_experts_per_tok"),
        (dict(num_experts_per_tok=33), ValueError, "from 1 to 32"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(tmp_path, changes, error, words):
    write_directory(tmp_path, deepseek(PLAIN), deepseek_config(PLAIN, **changes))
    with pytest.raises(error, match=re.escape(words)) as caught:
        load_config(tmp_path)
    assert "config.json" in str(caught.value)


def test_a_limit_that_is_not_said_is_not_invented(tmp_path):
    config = deepseek_config(PLAIN)
    del config["swiglu_limit"]
    write_directory(tmp_path, deepseek(PLAIN), config)
    with pytest.raises(ValueError, match="has no swiglu_limit"):
        load_config(tmp_path)
    load_experts(tmp_path, 0)  # the weights do not depend on it


def test_no_config_at_all(tmp_path):
    write_directory(tmp_path, deepseek(PLAIN))
    with pytest.raises(ValueError, match=r"config.json does not exist"):
        load_config(tmp_path)


def test_order_of_rows_is_never_guessed(tmp_path):
    """[E, H, 2I] says nothing about whether gate and up alternate; only the family does."""
    gate, up, down = dense()
    both = np.concatenate([gate, up], axis=1)
    transposed = {
        HF + "gate_up_proj": raw(both.swapaxes(1, 2)),
        HF + "down_proj": raw(down.swapaxes(1, 2)),
    }
    write_directory(tmp_path / "a", transposed)
    with pytest.raises(NotImplementedError, match="whether gate and up columns alternate"):
        load_experts(tmp_path / "a", 0, quantize=True)
    write_directory(tmp_path / "b", transposed, deepseek_config(PLAIN, model_type="llama4"))
    with pytest.raises(NotImplementedError, match="'llama4'"):
        load_experts(tmp_path / "b", 0, quantize=True)
    write_directory(tmp_path / "c", hugging_face(PLAIN), gpt_oss_config(PLAIN))
    with pytest.raises(ValueError, match="no gpt-oss checkpoint has"):
        load_experts(tmp_path / "c", 0)
    strange = {HF + "gate_up_proj": raw(both), HF + "down_proj": raw(gate)}
    write_directory(tmp_path / "d", strange)
    with pytest.raises(ValueError, match="are accepted, or gpt-oss's"):
        load_experts(tmp_path / "d", 0, quantize=True)


def test_floating_point_experts_with_scales_are_refused(tmp_path):
    tensors = {
        **deepseek(PLAIN),
        **{
            f"{V4}{e}.{name}.weight": zeros(shape, jnp.bfloat16)
            for e in range(4)
            for name, shape in (("w1", (96, 64)), ("w3", (96, 64)), ("w2", (64, 96)))
        },
    }
    write_directory(tmp_path, tensors, deepseek_config(PLAIN))
    with pytest.raises(TypeError, match="but also scales") as caught:
        load_experts(tmp_path, 0, quantize=True)
    assert V4 + "0.w1.scale" in str(caught.value)


def test_a_layer_that_is_not_there(tmp_path):
    tensors = deepseek(PLAIN, layer=5)
    write_directory(tmp_path, tensors, deepseek_config(PLAIN))
    with pytest.raises(ValueError, match="layers with experts: 5"):
        load_experts(tmp_path, 0)
    for layer in ("5", 5.0, None):
        with pytest.raises(TypeError, match="an integer is accepted"):
            load_experts(tmp_path, layer)
    assert load_all_experts(tmp_path, layers=[]) == {}
    write_directory(tmp_path / "dense", {"model.norm.weight": zeros((4,), np.float32)})
    with pytest.raises(ValueError, match="no layer of it has routed experts"):
        load_all_experts(tmp_path / "dense")


def test_one_layer_under_two_prefixes(tmp_path):
    tensors = {**deepseek(PLAIN), **deepseek(PLAIN, prefix="draft.")}
    write_directory(tmp_path, tensors, deepseek_config(PLAIN))
    with pytest.raises(ValueError, match="two prefixes"):
        load_experts(tmp_path, 0)


def test_a_config_passed_must_fit(tmp_path):
    write_directory(tmp_path, deepseek(PLAIN))
    load_experts(tmp_path, 0, config=jm.MegaMoeConfig(4, 64, 96, 2))
    for wrong, words in (
        ((8, 64, 96, 2), "has 4 experts"),
        ((4, 32, 96, 2), "the config passed says 32"),
        ((4, 64, 32, 2), "the config passed says 32"),
    ):
        with pytest.raises(ValueError, match=words):
            load_experts(tmp_path, 0, config=jm.MegaMoeConfig(*wrong))


def test_sizes_that_no_layer_has(tmp_path):
    tensors = {
        name: zeros((n, k), dtype)
        for e in range(2)
        for stem in [f"layers.0.ffn.experts.{e}."]
        for name, n, k, dtype in (
            (stem + "w1.weight", 40, 16, np.int8),
            (stem + "w1.scale", 40, 1, np.uint8),
            (stem + "w3.weight", 40, 16, np.int8),
            (stem + "w3.scale", 40, 1, np.uint8),
            (stem + "w2.weight", 32, 20, np.int8),
            (stem + "w2.scale", 32, 1, np.uint8),
        )
    }
    write_directory(tmp_path, tensors)
    with pytest.raises(ValueError, match="multiple of 32") as caught:
        load_experts(tmp_path, 0)
    assert "experts.0.w1.weight" in str(caught.value)


def test_saving_refuses_what_would_be_lost(tmp_path):
    config = jm.MegaMoeConfig(4, 64, 96, 2)
    save_experts(tmp_path / "a", PLAIN, config)
    with pytest.raises(ValueError, match="holds a checkpoint already"):
        save_experts(tmp_path / "a", PLAIN, config)
    with pytest.raises(ValueError, match=r"\(E, H, I\) of the weights"):
        save_experts(tmp_path / "b", PLAIN, jm.MegaMoeConfig(4, 64, 64, 2))
    with pytest.raises(ValueError, match="use_bias"):
        save_experts(tmp_path / "b", BIASED, config)
    with pytest.raises(TypeError, match="weights holds a dict"):
        save_experts(tmp_path / "b", {0: {}}, config)
    assert not (tmp_path / "b").exists()

"""Checkpoints that transformers wrote are loaded here, and ours there."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import modules
import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import (
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Mxfp4Config,
)
from transformers.integrations.finegrained_fp8 import FP8Experts

import jax_megamoe as jm
from checkpoints import gpt_oss, same_bits, write_file
from jax_megamoe.checkpoint import load_all_experts, load_config, load_experts, save_experts

pytestmark = pytest.mark.filterwarnings("default")  # of transformers, not ours

EXPERTS, HIDDEN, INTERMEDIATE, SLOTS = 4, 64, 96, 2


@pytest.fixture(scope="module")
def gpt_oss_model(tmp_path_factory):
    torch.manual_seed(0)
    config = GptOssConfig(
        num_hidden_layers=2,
        num_local_experts=EXPERTS,
        vocab_size=64,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts_per_tok=SLOTS,
    )
    return _saved(GptOssForCausalLM(config), tmp_path_factory.mktemp("gpt_oss"))


@pytest.fixture(scope="module")
def deepseek_model(tmp_path_factory):
    torch.manual_seed(0)
    config = DeepseekV4Config(
        num_hidden_layers=2,
        n_routed_experts=EXPERTS,
        vocab_size=64,
        hidden_size=HIDDEN,
        moe_intermediate_size=INTERMEDIATE,
        head_dim=32,
        num_attention_heads=4,
        q_lora_rank=16,
        num_experts_per_tok=SLOTS,
        o_groups=2,
        o_lora_rank=8,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=8,
    )
    return _saved(DeepseekV4ForCausalLM(config), tmp_path_factory.mktemp("deepseek_v4"))


def _saved(model, path):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." in name:
                parameter.normal_(std=0.1)
    model.save_pretrained(path)
    return model, path


def values(weights):
    """(gate_up [E, 2I, H], down [E, H, I]) in float32."""
    return (
        np.asarray(jm.dequantize_fp4(weights.gate_up_proj, weights.gate_up_proj_scale_inv)),
        np.asarray(jm.dequantize_fp4(weights.down_proj, weights.down_proj_scale_inv)),
    )


def apart(turned):
    """[E, K, 2N] with gate and up columns in turn: [E, 2N, K], gate rows first."""
    return torch.cat([turned[..., 0::2], turned[..., 1::2]], dim=-1).mT.detach().numpy()


def tokens():
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (32, HIDDEN), jnp.bfloat16)
    weights, idx = jax.lax.top_k(jax.random.uniform(keys[1], (32, EXPERTS)), SLOTS)
    return x, idx.astype(jnp.int32), weights


def layer(path, number, **load):
    """The three lines of the README."""
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])
    config = load_config(path)
    weights = load_experts(path, number, mesh=mesh, **load)
    return jm.MegaMoe(config, mesh=mesh, weights=weights)


# A matrix of FP4 values is off by about 0.1 of its norm; with rows in a wrong order by 1.4.
QUANTISED = 0.2


@pytest.mark.parametrize("number", [0, 1])
def test_gpt_oss_of_transformers(near, gpt_oss_model, number):
    model, path = gpt_oss_model
    module = model.model.layers[number].mlp.experts
    moe = layer(path, number, quantize=True)
    weights = moe.expert_weights()
    gate_up, down = values(weights)
    near(gate_up, apart(module.gate_up_proj), QUANTISED)
    near(down, module.down_proj.mT.detach().numpy(), QUANTISED)
    wanted = apart(module.gate_up_proj_bias[:, None, :])[..., 0]
    np.testing.assert_array_equal(weights.gate_up_proj_bias, wanted)
    np.testing.assert_array_equal(weights.down_proj_bias, module.down_proj_bias.detach().numpy())
    assert (moe.config.swiglu_alpha, moe.config.swiglu_beta) == (1.702, 1.0)
    operands = tokens()
    near(moe(*operands), modules.run(modules.gpt_oss(weights), *operands), 2**-4)


@pytest.mark.parametrize("original", [True, False], ids=["published_names", "module_names"])
def test_deepseek_v4_of_transformers(near, deepseek_model, tmp_path, original):
    model, _ = deepseek_model
    model.save_pretrained(tmp_path, save_original_format=original)
    module = model.model.layers[1].mlp.experts
    moe = layer(tmp_path, 1, quantize=True)
    weights = moe.expert_weights()
    gate_up, down = values(weights)
    near(gate_up, module.gate_up_proj.detach().numpy(), QUANTISED)
    near(down, module.down_proj.detach().numpy(), QUANTISED)
    operands = tokens()
    near(moe(*operands), modules.run(modules.deepseek_v4(weights), *operands), 2**-4)
    with pytest.raises(NotImplementedError, match="quantize=True"):
        load_experts(tmp_path, 1)


def test_both_names_of_transformers_give_the_same_bits(deepseek_model, tmp_path):
    model, path = deepseek_model
    model.save_pretrained(tmp_path, save_original_format=False)
    one, other = (load_experts(p, 0, quantize=True) for p in (path, tmp_path))
    assert same_bits(jm.unprepare_weights(one), jm.unprepare_weights(other))


def test_the_quantised_module_of_transformers(tmp_path):
    """The state of its FP4 experts, under the names that it has in a model."""
    config = DeepseekV4Config(
        n_routed_experts=EXPERTS, hidden_size=HIDDEN, moe_intermediate_size=INTERMEDIATE
    )
    module = FP8Experts(config, block_size=(128, 128), scale_fmt="ue8m0", expert_dtype="fp4")
    state = {}
    for name, value in module.state_dict().items():
        random = torch.randint(0, 255, value.shape, dtype=torch.uint8)
        state[f"model.layers.7.mlp.experts.{name}"] = random.view(value.dtype)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = jm.unprepare_weights(load_experts(tmp_path, 7))
    for name, value in state.items():
        ours = np.asarray(getattr(weights, name.split(".")[-1]))
        assert ours.tobytes() == value.view(torch.uint8).numpy().tobytes()


def random_experts(bias, seed):
    rng = np.random.default_rng(seed)
    weights = jm.ExpertWeights(
        rng.integers(-128, 128, (EXPERTS, 2 * INTERMEDIATE, HIDDEN // 2), np.int8),
        rng.integers(120, 124, (EXPERTS, 2 * INTERMEDIATE, HIDDEN // 32), np.uint8),
        rng.integers(-128, 128, (EXPERTS, HIDDEN, INTERMEDIATE // 2), np.int8),
        rng.integers(120, 124, (EXPERTS, HIDDEN, INTERMEDIATE // 32), np.uint8),
    )
    if not bias:
        return weights
    biases = [
        rng.standard_normal(shape).astype(jnp.bfloat16)
        for shape in ((EXPERTS, 2 * INTERMEDIATE), (EXPERTS, HIDDEN))
    ]
    return jm.ExpertWeights(*jax.tree.leaves(weights), *biases)


def with_experts(path, saved, changes):
    """Adds the rest of a saved model to a directory that has the experts, with its config."""
    rest = safetensors.torch.load_file(saved / "model.safetensors")
    rest = {name: value for name, value in rest.items() if ".experts." not in name}
    safetensors.torch.save_file(rest, path / "rest.safetensors", metadata={"format": "pt"})
    index = path / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text())
    else:
        held = jm.checkpoint.Checkpoint(path / "experts.safetensors").names()
        content = {"metadata": {}, "weight_map": dict.fromkeys(held, "experts.safetensors")}
    content["weight_map"] |= dict.fromkeys(rest, "rest.safetensors")
    index.write_text(json.dumps(content))
    config = json.loads((saved / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def test_one_gpt_oss_checkpoint_in_both(near, gpt_oss_model, tmp_path):
    """Published blocks: transformers dequantises them to the values that we load, and computes the
    same.
    """
    layers = {number: random_experts(True, number) for number in range(2)}
    tensors = {}
    for number, weights in layers.items():
        tensors |= gpt_oss(weights, number)
    write_file(tmp_path / "experts.safetensors", tensors)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    with_experts(tmp_path, gpt_oss_model[1], {"quantization_config": quantization})
    model = GptOssForCausalLM.from_pretrained(
        tmp_path, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    for number in layers:
        module = model.model.layers[number].mlp.experts
        moe = layer(tmp_path, number)
        gate_up, down = values(moe.expert_weights())
        np.testing.assert_array_equal(gate_up, apart(module.gate_up_proj))
        np.testing.assert_array_equal(down, module.down_proj.mT.detach().numpy())
        operands = tokens()
        near(moe(*operands), modules.run(module, *operands), 2**-4)


def test_one_deepseek_v4_checkpoint_in_both(near, deepseek_model, tmp_path):
    """`save_experts`: transformers reads the values that we do, and computes the same."""
    layers = {number: random_experts(False, number) for number in range(2)}
    config = jm.MegaMoeConfig(EXPERTS, HIDDEN, INTERMEDIATE, SLOTS, swiglu_limit=10.0)
    save_experts(tmp_path, layers, config)
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
        "expert_dtype": "fp4",
        "modules_to_not_convert": ["self_attn", "shared_experts", "lm_head", "gate", "hc"],
    }
    with_experts(tmp_path, deepseek_model[1], {"quantization_config": quantization})
    # On a CPU transformers dequantises.
    model = DeepseekV4ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert list(load_all_experts(tmp_path)) == [0, 1]
    for number in layers:
        module = model.model.layers[number].mlp.experts
        moe = layer(tmp_path, number)
        gate_up, down = values(moe.expert_weights())
        np.testing.assert_array_equal(gate_up, module.gate_up_proj.detach().numpy())
        np.testing.assert_array_equal(down, module.down_proj.detach().numpy())
        operands = tokens()
        near(moe(*operands), modules.run(module, *operands), 2**-4)

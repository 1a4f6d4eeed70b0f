"""The routers against those of transformers, on the same weights."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV4Config, GptOssConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4HashRouter,
    DeepseekV4TopKRouter,
)
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

from jax_megamoe import routing

TOKENS, HIDDEN, EXPERTS, SLOTS, VOCABULARY = 200, 64, 32, 6, 100
RNG = np.random.default_rng(0)
X = RNG.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
WEIGHT = (RNG.standard_normal((EXPERTS, HIDDEN)) / 8).astype(np.float32)
BIAS = (0.2 * RNG.standard_normal(EXPERTS)).astype(np.float32)
LOGITS = routing.router_logits(X, WEIGHT)


def of_torch(module, *inputs):
    """(ids, weights) of a router of transformers with our parameters, slots sorted by id."""
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(WEIGHT))
        _, weights, idx = module(torch.from_numpy(X), *map(torch.from_numpy, inputs))
    return in_order(idx.numpy(), weights.numpy())


def in_order(idx, weights):
    """transformers leaves the order of the selected open."""
    order = np.argsort(idx, axis=-1)
    return np.take_along_axis(idx, order, -1), np.take_along_axis(np.asarray(weights), order, -1)


def same(ours, theirs):
    idx, weights = in_order(*map(np.asarray, ours))
    np.testing.assert_array_equal(idx, theirs[0])
    # Logits differ by the order of 64 products, about 64 * 2^-24, which exp and softplus pass on.
    np.testing.assert_allclose(weights, theirs[1], rtol=2e-5)


def test_gpt_oss():
    config = GptOssConfig(num_local_experts=EXPERTS, hidden_size=HIDDEN, num_experts_per_tok=SLOTS)
    module = GptOssTopKRouter(config)
    with torch.no_grad():
        module.bias.copy_(torch.from_numpy(BIAS))
    same(routing.gpt_oss(routing.router_logits(X, WEIGHT, BIAS), SLOTS), of_torch(module))


def config_v4(scoring):
    return DeepseekV4Config(
        n_routed_experts=EXPERTS,
        hidden_size=HIDDEN,
        num_experts_per_tok=SLOTS,
        scoring_func=scoring,
        routed_scaling_factor=1.5,
        vocab_size=VOCABULARY,
    )


def router_v4(kind, scoring):
    """transformers' table of functions has no softmax; the module is the same around it."""
    module = kind(config_v4("sigmoid" if scoring == "softmax" else scoring))
    if scoring == "softmax":
        module.score_fn = torch.nn.Softmax(dim=-1)
    return module


@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
def test_deepseek_v4(scoring):
    module = router_v4(DeepseekV4TopKRouter, scoring)
    with torch.no_grad():
        module.e_score_correction_bias.copy_(torch.from_numpy(BIAS))
    ours = routing.deepseek_v4(
        LOGITS, SLOTS, correction_bias=BIAS, scoring_func=scoring, scaling_factor=1.5
    )
    same(ours, of_torch(module))


@pytest.mark.parametrize("scoring", ["sqrtsoftplus", "sigmoid", "softmax"])
def test_deepseek_v4_hash(scoring):
    table = np.stack([RNG.permutation(EXPERTS)[:SLOTS] for _ in range(VOCABULARY)])
    tokens = RNG.integers(0, VOCABULARY, TOKENS)
    module = router_v4(DeepseekV4HashRouter, scoring)
    module.tid2eid.copy_(torch.from_numpy(table))
    ours = routing.deepseek_v4_hash(LOGITS, tokens, table, scoring_func=scoring, scaling_factor=1.5)
    same(ours, of_torch(module, tokens))


@pytest.mark.parametrize(
    "groups, per_token, normalize", [(8, 3, True), (4, 2, False), (1, 1, True)]
)
def test_deepseek_v3(groups, per_token, normalize):
    config = DeepseekV3Config(
        n_routed_experts=EXPERTS,
        hidden_size=HIDDEN,
        num_experts_per_tok=SLOTS,
        n_group=groups,
        topk_group=per_token,
        norm_topk_prob=normalize,
        routed_scaling_factor=2.5,
    )
    module = DeepseekV3TopkRouter(config)
    module.e_score_correction_bias.copy_(torch.from_numpy(BIAS))
    ours = routing.deepseek_v3(
        LOGITS,
        SLOTS,
        correction_bias=BIAS,
        num_groups=groups,
        num_groups_per_tok=per_token,
        scaling_factor=2.5,
        normalize=normalize,
    )
    same(ours, of_torch(module))


def test_sqrtsoftplus_equals_torch_over_its_range():
    x = np.linspace(-80, 80, 10001).astype(np.float32)
    theirs = torch.nn.functional.softplus(torch.from_numpy(x)).sqrt().numpy()
    np.testing.assert_allclose(jax.jit(routing._sqrtsoftplus)(x), theirs, rtol=1e-5)

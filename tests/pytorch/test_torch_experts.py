"""The layer against transformers' experts with the same weights."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import modules
import pytest

import jax_megamoe as jm

EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, SLOTS = 8, 256, 192, 64, 3

FAMILIES = {
    "gpt_oss": (modules.gpt_oss, dict(swiglu_limit=7.0, swiglu_alpha=1.702, swiglu_beta=1.0)),
    "deepseek_v4": (modules.deepseek_v4, dict(swiglu_limit=10.0)),
}


def experts(bias, gain=1.0, seed=0):
    """Random experts of the size that trained ones have: results of the size of the tokens."""
    keys = jax.random.split(jax.random.key(seed), 4)
    gate_up = jax.random.normal(keys[0], (EXPERTS, 2 * INTERMEDIATE, HIDDEN)) * gain / HIDDEN**0.5
    down = jax.random.normal(keys[1], (EXPERTS, HIDDEN, INTERMEDIATE)) / INTERMEDIATE**0.5
    biases = (None, None)
    if bias:
        biases = (
            0.5 * jax.random.normal(keys[2], (EXPERTS, 2 * INTERMEDIATE)),
            0.5 * jax.random.normal(keys[3], (EXPERTS, HIDDEN)),
        )
    return jm.ExpertWeights(*jm.quantize_fp4(gate_up), *jm.quantize_fp4(down), *biases)


def tokens(powers_of_two, seed=1):
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (TOKENS, HIDDEN), jnp.bfloat16)
    weights, idx = jax.lax.top_k(jax.random.uniform(keys[1], (TOKENS, EXPERTS)), SLOTS)
    if powers_of_two:
        weights = 2.0 ** jax.random.randint(keys[2], weights.shape, -3, 1)
    return x, idx.astype(jnp.int32), weights.astype(jnp.float32)


def layer(weights, operands, swiglu, implementation):
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])
    call = dict(axis_name="ep", mesh=mesh, implementation=implementation, **swiglu)
    return jm.expert_parallel(*operands, weights, **call)


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("gain", [1.0, 8.0], ids=["", "limits_reached"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_the_contracts_roundings(near, family, gain, implementation):
    """Routing weights are powers of two here: they commute with every rounding, so that it does not
    matter that PyTorch's modules multiply by them after the second product. What is left is the
    order of sums and the rounding of a row to bfloat16; the bound is that of the contract between
    implementations.
    """
    make, swiglu = FAMILIES[family]
    weights, operands = experts(family == "gpt_oss", gain), tokens(powers_of_two=True)
    wanted = modules.run(make(weights, rounded=True), *operands)
    near(layer(weights, operands, swiglu, implementation), wanted, 2**-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_second_rounding(near, family):
    """transformers' module as it is, any routing weights: what is left is the rounding of the
    intermediate to E4M3, whose relative error is at most 2^-4 an element, and about 2^-5 in root
    mean square.
    """
    make, swiglu = FAMILIES[family]
    weights, operands = experts(family == "gpt_oss"), tokens(powers_of_two=False)
    wanted = modules.run(make(weights), *operands)
    near(layer(weights, operands, swiglu, None), wanted, 2**-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", ["gate and up", "nibbles", "alpha", "limit", "expert"])
def test_a_fault_is_seen(family, fault):
    make, swiglu = FAMILIES[family]
    gain = 8.0 if fault == "limit" else 1.0  # limits are reached
    weights, (x, idx, scores) = experts(family == "gpt_oss", gain), tokens(powers_of_two=True)
    wanted = modules.run(make(weights, rounded=True), x, idx, scores)
    if fault == "gate and up":
        names = ("gate_up_proj", "gate_up_proj_scale_inv")
        swapped = {n: jnp.roll(getattr(weights, n), INTERMEDIATE, axis=1) for n in names}
        weights = dataclasses.replace(weights, **swapped)
    if fault == "nibbles":
        raw = weights.down_proj.view(jnp.uint8)
        weights = dataclasses.replace(weights, down_proj=(raw << 4 | raw >> 4).view(jnp.int8))
    if fault == "alpha":
        swiglu = {**swiglu, "swiglu_alpha": 1.4}
    if fault == "limit":
        swiglu = {**swiglu, "swiglu_limit": None}
    if fault == "expert":
        idx = (idx + 1) % EXPERTS
    assert modules.distance(layer(weights, (x, idx, scores), swiglu, "cpu"), wanted) > 2**-5

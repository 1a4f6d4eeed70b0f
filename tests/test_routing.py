"""The routers against the models' definitions in NumPy float64; `tests/pytorch` has PyTorch's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_megamoe import routing

TOKENS, EXPERTS, SLOTS = 37, 24, 4
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((TOKENS, EXPERTS))).astype(np.float32)
BIAS = RNG.standard_normal(EXPERTS).astype(np.float32)
TABLE = np.stack([RNG.permutation(EXPERTS)[:SLOTS] for _ in range(100)])

SCORING = {
    "sqrtsoftplus": lambda x: np.sqrt(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True))
        / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
}

# float32 transcendentals, a sum of 4 and a division: each within a few units of 2^-24.
CLOSE = dict(rtol=2e-6, atol=0)


def best(values, k):
    return np.argsort(-values, axis=-1, kind="stable")[..., :k]


def normalised(scores, factor=1.0):
    return factor * scores / (scores.sum(-1, keepdims=True) + 1e-20)


def test_gpt_oss():
    idx, weights = jax.jit(routing.gpt_oss, static_argnums=1)(LOGITS, SLOTS)
    wanted = best(LOGITS, SLOTS)
    np.testing.assert_array_equal(idx, wanted)
    selected = np.take_along_axis(LOGITS.astype(np.float64), wanted, -1)
    np.testing.assert_allclose(weights, SCORING["softmax"](selected), **CLOSE)
    assert idx.dtype == jnp.int32 and weights.dtype == jnp.float32


@pytest.mark.parametrize("scoring", SCORING)
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("normalize", [True, False])
def test_deepseek_v4(scoring, bias, normalize):
    idx, weights = routing.deepseek_v4(
        LOGITS,
        SLOTS,
        correction_bias=bias,
        scoring_func=scoring,
        scaling_factor=1.5,
        normalize=normalize,
    )
    scores = SCORING[scoring](LOGITS.astype(np.float64))
    wanted = best(scores + (0 if bias is None else bias), SLOTS)
    np.testing.assert_array_equal(idx, wanted)
    selected = np.take_along_axis(scores, wanted, -1)
    wanted = normalised(selected, 1.5) if normalize else 1.5 * selected
    np.testing.assert_allclose(weights, wanted, **CLOSE)


def test_the_correction_bias_counts_for_the_selection_only():
    """Plants the fault: with the bias in the weights the result would be another."""
    idx, weights = routing.deepseek_v4(LOGITS, SLOTS, correction_bias=BIAS)
    scores = SCORING["sqrtsoftplus"](LOGITS.astype(np.float64))
    faulty = normalised(np.take_along_axis(scores + BIAS, np.asarray(idx), -1))
    assert np.abs(faulty - weights).max() > 0.1
    assert not np.array_equal(idx, routing.deepseek_v4(LOGITS, SLOTS)[0])


@pytest.mark.parametrize("scoring", SCORING)
def test_deepseek_v4_hash(scoring):
    tokens = RNG.integers(0, 100, TOKENS)
    idx, weights = routing.deepseek_v4_hash(
        LOGITS, tokens, TABLE, scoring_func=scoring, scaling_factor=1.5
    )
    np.testing.assert_array_equal(idx, TABLE[tokens])
    scores = SCORING[scoring](LOGITS.astype(np.float64))
    selected = np.take_along_axis(scores, TABLE[tokens], -1)
    np.testing.assert_allclose(weights, normalised(selected, 1.5), **CLOSE)


@pytest.mark.parametrize("token", [-1, 100, 2**31 - 1, -(2**31)])
def test_a_token_outside_the_table_is_skipped(token):
    tokens = np.array([3, token], np.int32)
    idx, weights = routing.deepseek_v4_hash(LOGITS[:2], tokens, TABLE)
    np.testing.assert_array_equal(idx, [TABLE[3], [-1] * SLOTS])
    np.testing.assert_array_equal(weights[1], np.zeros(SLOTS))


@pytest.mark.parametrize("entry", [-1, EXPERTS, 2**31 - 1])
def test_an_entry_of_the_table_that_is_no_expert_skips_its_slot(entry):
    table = np.array([[5, entry, 7]])
    idx, weights = routing.deepseek_v4_hash(LOGITS[:1], np.array([0]), table)
    np.testing.assert_array_equal(idx, [[5, -1, 7]])
    scores = SCORING["sqrtsoftplus"](LOGITS[0, [5, 7]].astype(np.float64))
    np.testing.assert_allclose(weights[0, [0, 2]], normalised(scores), **CLOSE)
    assert weights[0, 1] == 0


@pytest.mark.parametrize("groups, per_token", [(1, 1), (4, 2), (8, 3), (12, 12)])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_deepseek_v3(groups, per_token, bias):
    idx, weights = routing.deepseek_v3(
        LOGITS,
        SLOTS,
        correction_bias=bias,
        num_groups=groups,
        num_groups_per_tok=per_token,
        scaling_factor=2.5,
    )
    scores = SCORING["sigmoid"](LOGITS.astype(np.float64))
    corrected = scores + (0 if bias is None else bias)
    wanted = np.empty((TOKENS, SLOTS), int)
    for token in range(TOKENS):
        members = corrected[token].reshape(groups, -1)
        chosen = best(np.sort(members, -1)[:, -2:].sum(-1), per_token)
        allowed = np.isin(np.arange(EXPERTS) // (EXPERTS // groups), chosen)
        wanted[token] = best(np.where(allowed, corrected[token], -np.inf), SLOTS)
    np.testing.assert_array_equal(idx, wanted)
    selected = np.take_along_axis(scores, wanted, -1)
    np.testing.assert_allclose(weights, normalised(selected, 2.5), **CLOSE)


ROUTERS = {
    "gpt_oss": lambda logits: routing.gpt_oss(logits, SLOTS),
    "deepseek_v4": lambda logits: routing.deepseek_v4(logits, SLOTS, correction_bias=BIAS),
    "deepseek_v4_softmax": lambda logits: routing.deepseek_v4(
        logits, SLOTS, scoring_func="softmax"
    ),
    "deepseek_v4_hash": lambda logits: routing.deepseek_v4_hash(
        logits, jnp.zeros(logits.shape[:-1], jnp.int32), TABLE
    ),
    "deepseek_v3": lambda logits: routing.deepseek_v3(
        logits, SLOTS, num_groups=4, num_groups_per_tok=2
    ),
}
ROUTERS = {name: jax.jit(router) for name, router in ROUTERS.items()}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_give_ids_of_experts(router, bad):
    logits = LOGITS.copy()
    logits[0] = bad
    logits[1, 5] = bad
    logits[2, ::2] = bad
    call = ROUTERS[router]
    idx, weights = map(np.asarray, call(logits))
    assert ((idx >= 0) & (idx < EXPERTS)).all()
    assert all(len(set(row)) == SLOTS for row in idx)
    clean_idx, clean_weights = call(LOGITS)
    np.testing.assert_array_equal(idx[3:], clean_idx[3:])
    np.testing.assert_array_equal(weights[3:], clean_weights[3:])
    if np.isnan(bad):
        assert np.isnan(weights[0]).all()


@pytest.mark.parametrize("router", ROUTERS)
def test_small_types_are_widened_before_anything_else(router):
    small = jnp.asarray(LOGITS, jnp.bfloat16)
    idx, weights = ROUTERS[router](small)
    wide_idx, wide_weights = ROUTERS[router](small.astype(jnp.float32))
    np.testing.assert_array_equal(idx, wide_idx)
    np.testing.assert_allclose(weights, wide_weights, **CLOSE)
    assert weights.dtype == jnp.float32 and idx.dtype == jnp.int32


@pytest.mark.parametrize("router", ROUTERS)
def test_leading_axes_are_kept(router):
    idx, weights = ROUTERS[router](jnp.asarray(LOGITS[:36]).reshape(4, 9, EXPERTS))
    flat_idx, flat_weights = ROUTERS[router](LOGITS[:36])
    np.testing.assert_array_equal(idx.reshape(-1, SLOTS), flat_idx)
    np.testing.assert_allclose(weights.reshape(-1, SLOTS), flat_weights, **CLOSE)


def test_sqrtsoftplus_over_its_whole_range():
    x = np.concatenate([np.linspace(-170, 100, 5000), [-20.001, -20, -19.999, 0]])
    got = routing._sqrtsoftplus(jnp.asarray(x, jnp.float32))
    wanted = SCORING["sqrtsoftplus"](x.astype(np.float32).astype(np.float64))
    # exp of a float32 argument near -170 is off by the argument's own rounding.
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_router_logits_are_exact_products():
    x = jnp.asarray(RNG.standard_normal((5, 512)), jnp.bfloat16)
    weight = jnp.asarray(RNG.standard_normal((EXPERTS, 512)), jnp.bfloat16)
    got = routing.router_logits(x, weight, jnp.asarray(BIAS, jnp.bfloat16))
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    exact += np.asarray(jnp.asarray(BIAS, jnp.bfloat16), np.float64)
    # 512 products that are exact in float32; their sum is off by at most 512 * 2^-24 of the sum of
    # magnitudes.
    magnitudes = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(weight, np.float64)).T
    bound = 512 * 2**-24 * magnitudes
    assert (np.abs(got - exact) <= bound + 1e-6).all()
    assert got.dtype == jnp.float32


@pytest.mark.parametrize(
    "call, error, words",
    [
        (
            lambda: routing.gpt_oss(LOGITS, 25),
            ValueError,
            "from 1 to the 24 experts.*Take the checkpoint",
        ),
        (lambda: routing.gpt_oss(LOGITS, 0), ValueError, "num_experts_per_tok is 0"),
        (
            lambda: routing.gpt_oss(LOGITS.astype(int), 2),
            TypeError,
            r"floating-point.*logits\.astype",
        ),
        (
            lambda: routing.deepseek_v4(LOGITS, 2, scoring_func="relu"),
            NotImplementedError,
            "scoring_func is 'relu'.*'softmax'.*yourself",
        ),
        (
            lambda: routing.deepseek_v3(LOGITS, 2, num_groups=5),
            ValueError,
            "num_groups is 5.*n_group",
        ),
        (lambda: routing.deepseek_v3(LOGITS, 2, num_groups=24), ValueError, "at least 2"),
        (
            lambda: routing.deepseek_v3(LOGITS, 2, num_groups=4, num_groups_per_tok=5),
            ValueError,
            "num_groups_per_tok is 5.*topk_group",
        ),
        (
            lambda: routing.deepseek_v3(LOGITS, 8, num_groups=4, num_groups_per_tok=1),
            ValueError,
            "from 1 to the 6 experts",
        ),
        (
            lambda: routing.deepseek_v4_hash(LOGITS, np.zeros(3, int), TABLE),
            ValueError,
            "token_ids has shape.*Reshape",
        ),
        (
            lambda: routing.deepseek_v4_hash(LOGITS, np.zeros(TOKENS), TABLE),
            TypeError,
            r"token_ids has dtype.*token_ids\.astype",
        ),
        (
            lambda: routing.deepseek_v4_hash(LOGITS, np.zeros(TOKENS, int), TABLE[0]),
            ValueError,
            r"expert_table has shape.*expert_table\[None\]",
        ),
    ],
)
def test_what_routers_refuse(call, error, words):
    with pytest.raises(error, match=words):
        call()

"""Inputs for the shared tests: data on which every sum is exact, realistic data, and their shapes.

`exact_case` is the sharp instrument. Its tokens are integers (times one power of two), its weights
E2M1 codes times powers of two, and each row of a weight matrix is thinned out until, for every
token that can meet it, every partial sum in any order is a multiple of one unit and at most 2^24
units: so float32 in any order, float64 and a tensor core that truncates all give the same number.
Gates are multiples of a power of two so large that sigmoid is exactly 1, or times the gate exactly
0. What remains are the contract's own roundings, clamps and orders, and they must agree bit for
bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from oracle import (
    E2M1,
    E4M3,
    E8M0,
    GROUP,
    Array,
    Oracle,
    dequantise,
    pack,
    quantise_fp4,
    quantise_fp8,
    widen,
)

# exp(-y) rounds 1 + exp(-y) to 1 from y = 17.4 on, and overflows float32 from y = -88.8 on.
SIGMOID_ONE, SIGMOID_ZERO = 32.0, -104.0
# The largest |x| of float32's consecutive integers: sums of units up to here are exact.
UNITS = 2.0**24


@dataclasses.dataclass(frozen=True)
class Case:
    x: Array
    topk_idx: Array
    topk_weights: Array
    weights: dict[str, Array]
    activation: dict[str, Any]

    def oracle(self) -> Array:
        return Oracle(self.weights, **self.activation)(self.x, self.topk_idx, self.topk_weights)


# --- exactness ----------------------------------------------------------------------------------


def unit(value: Array) -> Array:
    """The largest power of two that divides each value; infinity for zero."""
    mantissa, exponent = np.frexp(value)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    return np.where(
        value == 0, np.inf, np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    )


def exact_in_any_order(values: Array, columns: Array, entries: Array, bias: Array) -> Array:
    """Per weight row: is every product-sum with every row of `values` exact however it is ordered?

    values [S, K]; row n of the matrix has `entries` [N, C] at `columns` [N, C]; bias [S, N] joins
    in.
    """
    if values.shape[0] == 0:
        return np.ones(len(columns), bool)
    least = np.minimum((unit(values)[:, columns] * unit(entries)).min(-1), unit(bias))
    total = np.abs(values[:, columns] * entries).sum(-1) + np.abs(bias)
    return ((total == 0) | (total <= UNITS * least)).all(0)


def exact_matrix(
    rng: np.random.Generator,
    values: Array,
    rows: int,
    *,
    least: int,
    spread: int,
    dense: int,
    positive: bool = False,
    bias: Array | float = 0.0,
) -> tuple[Array, Array, Array, Array]:
    """Random (codes [N, K], scale bytes [N, K/32], columns, entries), exact against all `values`.

    Scales are 2^least to 2^(least + spread). A row starts with up to `dense` non-zero codes; rows
    that are not exact lose columns until they are: a single product always is. `bias` [S, N] counts
    in the sums until a single product is left.
    """
    depth = values.shape[1]
    usable = np.arange(0, depth, 2) if positive else np.arange(depth)
    dense = min(dense, len(usable))
    columns = usable[np.argsort(rng.random((rows, len(usable))))[:, :dense]]
    picked = rng.integers(1, 8, (rows, dense)) | (
        0 if positive else rng.integers(0, 2, (rows, dense)) << 3
    )
    count = rng.integers(1, dense + 1, rows)
    scale = (127 + least + rng.integers(0, spread + 1, (rows, depth // GROUP))).astype(np.uint8)
    of_column = np.take_along_axis(scale, columns // GROUP, 1)
    while True:
        kept = np.arange(dense) < count[:, None]
        entries = np.where(kept, E2M1[picked] * E8M0[of_column], 0.0)
        added = np.where(count > 1, bias, np.zeros((len(values), rows)))
        exact = exact_in_any_order(values, columns, entries, added)
        if exact.all():
            break
        count = np.where(exact, count, count // 2)
        assert (count > 0).all(), "a row of one product is exact"
    codes = np.where(rng.random((rows, depth)) < 0.3, 8, 0)  # +0 and -0 elsewhere
    np.put_along_axis(codes, columns, np.where(kept, picked, 0), 1)
    empty = (E2M1[codes].reshape(rows, -1, GROUP) == 0).all(-1)
    scale = np.where(
        empty & (rng.random(empty.shape) < 0.5), rng.integers(0, 255, empty.shape), scale
    )
    return codes.astype(np.uint8), scale.astype(np.uint8), columns, entries


# --- exact data ---------------------------------------------------------------------------------


def _bfloat16_integers(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> Array:
    """Signed integers of at most 8 significant bits, spread over `bits` octaves."""
    magnitude = rng.integers(1, 256, shape) << rng.integers(0, max(bits - 7, 1), shape)
    return np.where(rng.random(shape) < 0.2, 0, magnitude * rng.choice([-1, 1], shape)).astype(
        np.float64
    )


def exact_tokens(rng: np.random.Generator, tokens: int, hidden: int, kind: str) -> Array:
    """Integers times one power of two.

    narrow: up to 255, so that most round on the way to E4M3, ties included; zero groups; lone
            values.
    wide:   amax at 448 * 2^e, one bfloat16 above and below, e up to 11, over odd integers that land
            in E4M3's subnormals: here a scale of the wrong power of two changes results.
    tiny:   narrow, below the floor of amax, where the scale no longer follows the values.
    """
    groups = hidden // GROUP
    shape = (tokens, groups, GROUP)
    if kind == "wide":
        x = _bfloat16_integers(rng, shape, 18)
        small = rng.integers(1, 32, shape) * rng.choice([-1, 1], shape)
        x = np.where(rng.random(shape) < 0.6, small, x)
        exponent = rng.integers(9, 12, (tokens, groups, 1))
        top = (
            rng.choice([448.0, 448.0, 448.0, 446.0, 450.0, 300.0], (tokens, groups, 1))
            * 2.0**exponent
        )
        x = np.where(np.abs(x) > top, small, x)
        at = rng.integers(0, GROUP, (tokens, groups, 1))
        x = np.where(np.arange(GROUP) == at, np.copysign(top, x), x)
    else:
        x = _bfloat16_integers(rng, shape, 8)
        # Integers of five significant bits are E4M3's ties, those of four need no rounding.
        x = np.where(rng.random(shape) < 0.4, np.trunc(x / 8), x)
    lone = np.arange(GROUP) == rng.integers(0, GROUP, (tokens, groups, 1))
    pick = rng.random((tokens, groups, 1))
    x = np.where(pick < 0.06, 0.0, np.where(pick > 0.94, np.where(lone, x, 0.0), x))
    return x.reshape(tokens, hidden) * (2.0**-32 if kind == "tiny" else 1.0)


def topk_ids(rng: np.random.Generator, tokens: int, slots: int, experts: int) -> Array:
    """Global ids with duplicates, skipped slots of every kind, and tokens without any slot."""
    ids = rng.integers(0, experts, (tokens, slots))
    twin = rng.integers(0, slots, (tokens, slots))
    ids = np.where(rng.random(ids.shape) < 0.15, np.take_along_axis(ids, twin, 1), ids)
    outside = np.array(
        [-1, -1, -experts, experts, 65536, np.iinfo(np.int32).min, np.iinfo(np.int32).max]
    )
    ids = np.where(rng.random(ids.shape) < 0.12, rng.choice(outside, ids.shape), ids)
    ids[3:4] = rng.choice(outside, (1, slots))
    return ids.astype(np.int32)


def exact_routing(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Array:
    """float32 routing weights.

    dyadic: multiples of 1/64, either sign, sometimes zero.
    thirds: reciprocals that are not dyadic: a product with a multiple of the denominator lies a
            quarter of an ulp from a tie of E4M3, so that each float32 rounding of step 4 shows.
    tiny:   2^-40 and 2^-60, where a floor of amax in step 5 would erase the values.
    least:  2^-126 to 2^-124, where step 5's exponent meets its lower bound.
    order:  2^20 in slot 0 and its opposite in slot 2 over weights near one: the order of step 7
    shows.
    """
    if kind == "thirds":
        weight = rng.choice([1 / 3, 2 / 3, 1 / 5, 1 / 7, 0.1, 1 / 11], shape)
    elif kind == "tiny":
        weight = rng.integers(1, 65, shape) * rng.choice([2.0**-40, 2.0**-60], shape)
    elif kind == "least":
        weight = rng.integers(1, 5, shape) * 2.0**-126
    elif kind == "order":
        weight = rng.choice([1.0, 0.75, -1.0, 1.25], shape)
        weight[:, 0] *= 2.0**20
    else:
        weight = rng.integers(1, 65, shape) / 64
        weight = np.where(rng.random(shape) < 0.1, 0.0, weight)
        weight = weight * np.where(rng.random(shape) < 0.2, -1, 1)
    return weight.astype(np.float32)


def exact_case(
    seed: int,
    *,
    tokens: int = 24,
    hidden: int = 128,
    intermediate: int = 64,
    experts: int = 4,
    slots: int = 3,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: bool = False,
    kind: str = "narrow",
    routing: str = "dyadic",
    signed_gates: bool = True,
) -> Case:
    rng = np.random.default_rng(seed)
    x = exact_tokens(rng, tokens, hidden, kind)
    if not signed_gates:
        x[:, 0::2] = np.abs(x[:, 0::2])
    activation = {"swiglu_limit": limit, "swiglu_alpha": alpha, "swiglu_beta": beta}
    topk_idx = topk_ids(rng, tokens, slots, experts)
    topk_weights = exact_routing(rng, (tokens, slots), routing)
    if routing == "order":  # two opposite rows of one expert
        topk_idx[:, 2], topk_weights[:, 2] = topk_idx[:, 0], -topk_weights[:, 0]

    lift = 32 if kind == "tiny" else 0  # what the weights must give back
    gate_unit = 2.0 ** np.ceil(np.log2(-SIGMOID_ZERO / alpha))
    codes, scales = quantise_fp8(x)
    values = dequantise(E4M3[codes], scales)
    halves = []
    for _ in range(experts):
        gate = exact_matrix(
            rng,
            values,
            intermediate,
            least=int(np.log2(gate_unit)) + 1 + lift,
            spread=3,
            dense=6,
            positive=not signed_gates,
        )
        up = exact_matrix(rng, values, intermediate, least=lift, spread=4, dense=10)
        biases = []
        for _, _, columns, entries in (gate, up):
            step = gate_unit if len(biases) == 0 else 1.0
            value = step * rng.integers(-40 if signed_gates or len(biases) else 0, 41, intermediate)
            exact = exact_in_any_order(
                values, columns, entries, np.broadcast_to(value, (tokens, intermediate))
            )
            biases.append(np.where(exact, value, 0.0))
        halves.append(
            [np.concatenate(pair) for pair in (*zip(gate[:2], up[:2], strict=True), biases)]
        )
    codes, scales, biases = (np.stack(part) for part in zip(*halves, strict=True))
    weights = {
        "gate_up_proj": pack(codes),
        "gate_up_proj_scale_inv": scales,
        "down_proj": np.zeros((experts, hidden, intermediate // 2), np.int8),
        "down_proj_scale_inv": np.full((experts, hidden, intermediate // GROUP), 127, np.uint8),
    }
    if bias:
        weights["gate_up_proj_bias"] = biases.astype(np.float32)
        weights["down_proj_bias"] = np.zeros((experts, hidden), np.float32)

    # The second matrix needs to know what it meets.
    so_far = Oracle(weights, **activation)
    met = so_far.activations(x, topk_idx, topk_weights)
    for expert, token, slot, a in met:
        # Powers of two: the product with the routing weight needs no rounding of its own, so that
        # fusing it with the addition changes nothing.
        size = np.round(np.log2(np.median(np.abs(a)) or 1.0)) + rng.integers(0, 8, hidden)
        value = np.exp2(size) * rng.choice([-1.0, 1.0], hidden) * bias
        weighted = topk_weights[token, slot].astype(np.float64)[:, None] * value
        quantised = so_far.requantise(a)
        codes, scales, columns, entries = exact_matrix(
            rng,
            quantised,
            hidden,
            least=8 if routing == "least" else 0,
            spread=4,
            dense=24,
            bias=weighted,
        )
        weights["down_proj"][expert] = pack(codes)
        weights["down_proj_scale_inv"][expert] = scales
        if bias:
            exact = exact_in_any_order(quantised, columns, entries, weighted)
            weights["down_proj_bias"][expert] = np.where(exact, value, 0.0)
    case = Case(x.astype(ml_dtypes.bfloat16), topk_idx, topk_weights, weights, activation)
    assert_exact(case)
    return case


def assert_exact(case: Case) -> None:
    """The claims of `exact_case`, checked on the finished arrays by nothing of the generator's."""
    oracle = Oracle(case.weights, **case.activation)
    assert np.array_equal(widen(case.x), widen(case.x.astype(np.float32)))
    tokens = oracle.quantise_tokens(widen(case.x))
    expert_of = np.where(oracle.valid(case.topk_idx), case.topk_idx, -1)
    for expert, token, slot, a in oracle.activations(case.x, case.topk_idx, case.topk_weights):
        assert (expert_of[token, slot] == expert).all()
        first = oracle.matrix("gate_up_proj", expert)
        bias = oracle.bias("gate_up_proj_bias", expert)
        _assert_sums_exact(tokens[token], first, bias + np.zeros((len(token), len(first))))
        gate, _ = oracle.limited(*oracle.gate_up(tokens[token], expert))
        argument = oracle.alpha * gate
        saturated = (argument >= SIGMOID_ONE) | (argument <= SIGMOID_ZERO) | (argument == 0)
        assert saturated.all(), f"gate {gate[~saturated]} does not saturate the sigmoid"
        assert np.isfinite(a).all() and (np.abs(a[a != 0]) >= 2.0**-126).all()
        second = oracle.matrix("down_proj", expert)
        routing = widen(case.topk_weights[token, slot])[:, None]
        bias = routing * oracle.bias("down_proj_bias", expert)
        assert np.array_equal(bias, bias.astype(np.float32)), "weight times bias needs rounding"
        quantised = oracle.requantise(a)
        assert (np.abs(quantised[quantised != 0]) >= 2.0**-126).all()
        _assert_sums_exact(quantised, second, bias + np.zeros((len(token), len(second))))
    rows = oracle.rows(case.x, case.topk_idx, case.topk_weights)
    assert np.isfinite(rows).all() and (np.abs(rows[rows != 0]) >= 2.0**-126).all()


def _assert_sums_exact(values: Array, matrix: Array, bias: Array) -> None:
    live = matrix != 0
    columns = np.argsort(~live, axis=1, kind="stable")[:, : max(live.sum(1).max(), 1)]
    terms = values[:, columns] * np.take_along_axis(matrix, columns, 1)
    least = np.minimum(unit(terms).min(-1), unit(bias))
    total = np.abs(terms).sum(-1) + np.abs(bias)
    assert ((total == 0) | (total <= UNITS * least)).all(), "a sum depends on its order"
    assert (total < 2.0**127).all() and (least >= 2.0**-126).all(), "a sum leaves float32's range"


# --- realistic data -----------------------------------------------------------------------------


def random_weights(
    rng: np.random.Generator, experts: int, hidden: int, intermediate: int, bias: bool = False
) -> dict[str, Array]:
    """Gaussian matrices of the usual variance, quantised to MXFP4 by the oracle."""
    gate_up = rng.standard_normal((experts, 2 * intermediate, hidden)) * 1.5 / np.sqrt(hidden)
    down = rng.standard_normal((experts, hidden, intermediate)) / np.sqrt(intermediate)
    weights = {}
    for name, matrix in (("gate_up_proj", gate_up), ("down_proj", down)):
        weights[name], weights[name + "_scale_inv"] = quantise_fp4(matrix.astype(np.float32))
    if bias:
        for name, matrix in (("gate_up_proj_bias", gate_up), ("down_proj_bias", down)):
            weights[name] = (rng.standard_normal(matrix.shape[:2]) * 0.3).astype(np.float32)
    return weights


def random_tokens(rng: np.random.Generator, tokens: int, hidden: int) -> Array:
    """Normalised hidden states with a few outlier channels, some tokens louder than others."""
    x = rng.standard_normal((tokens, hidden)) * np.exp(0.5 * rng.standard_normal((tokens, 1)))
    x *= np.where(rng.random(hidden) < 0.03, 8.0, 1.0)
    return x.astype(ml_dtypes.bfloat16)


def random_routing(rng: np.random.Generator, tokens: int, slots: int) -> Array:
    """Positive weights of a normalised top-k router."""
    weight = np.exp(rng.standard_normal((tokens, slots)))
    return (weight / weight.sum(-1, keepdims=True)).astype(np.float32)


def random_case(
    seed: int,
    *,
    tokens: int = 24,
    hidden: int = 128,
    intermediate: int = 64,
    experts: int = 4,
    slots: int = 3,
    limit: float | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: bool = False,
    skips: bool = True,
) -> Case:
    rng = np.random.default_rng(seed)
    ids = topk_ids(rng, tokens, slots, experts)
    if not skips:
        ids = rng.integers(0, experts, ids.shape).astype(np.int32)
    return Case(
        random_tokens(rng, tokens, hidden),
        ids,
        random_routing(rng, tokens, slots),
        random_weights(rng, experts, hidden, intermediate, bias),
        {"swiglu_limit": limit, "swiglu_alpha": alpha, "swiglu_beta": beta},
    )


def fragile_case(seed: int, *, tokens: int, experts: int = 3, slots: int = 2) -> Case:
    """Data on which every order of summation gives other bits, in both products.

    Realistic sums hide their order: products of 4 and 2 significant bits mostly add up exactly in
    float32. Here each row is a first third of large terms, a second of usual ones, and a last that
    takes back the first: what is left of the usual ones is the rounding of the way there.
    """
    rng = np.random.default_rng(seed)
    third = 5 * GROUP
    x = rng.standard_normal((tokens, 3, third))
    x[:, 0] *= 2.0 ** rng.integers(8, 20, (tokens, third // GROUP)).repeat(GROUP, 1)
    x[:, 2] = x[:, 0]
    weights = random_weights(rng, experts, 3 * third, 3 * third, bias=True)
    sign = np.int8(-120)  # 0x88: both codes of a byte
    gate_up = weights["gate_up_proj"].reshape(experts, 2, 3, third, 3, third // 2)
    gate_up[..., 2, :] = gate_up[..., 0, :] ^ sign
    gate_up[:, :, 2] = gate_up[:, :, 0]  # so that the last third of a repeats the first
    scale = weights["gate_up_proj_scale_inv"].reshape(experts, 2, 3, third, 3, third // GROUP)
    scale[..., 2, :] = scale[..., 0, :]
    scale[:, :, 2] = scale[:, :, 0]
    bias = weights["gate_up_proj_bias"].reshape(experts, 2, 3, third)
    bias[:, :, 2] = bias[:, :, 0]
    down = weights["down_proj"].reshape(experts, 3 * third, 3, third // 2)
    down[:, :, 2] = down[:, :, 0] ^ sign
    scale = weights["down_proj_scale_inv"].reshape(experts, 3 * third, 3, third // GROUP)
    scale[:, :, 0] += rng.integers(8, 20, scale[:, :, 0].shape).astype(np.uint8)
    scale[:, :, 2] = scale[:, :, 0]
    ids = rng.integers(0, experts, (tokens, slots)).astype(np.int32)
    x = x.reshape(tokens, 3 * third).astype(ml_dtypes.bfloat16)
    activation = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "swiglu_beta": 1.0}
    return Case(x, ids, random_routing(rng, tokens, slots), weights, activation)


# --- shapes by hypothesis -----------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Keywords that `random_case` and `exact_case` share, and a seed."""
    return {
        "seed": draw(st.integers(0, 2**32 - 1)),
        "tokens": draw(st.integers(0, 40)),
        "hidden": 32 * draw(st.integers(1, 8)),
        "intermediate": 32 * draw(st.integers(1, 8)),
        "experts": draw(st.integers(1, 9)),
        "slots": draw(st.one_of(st.integers(1, 8), st.just(32))),
        "bias": draw(st.booleans()),
        "beta": draw(st.sampled_from([0.0, 1.0, -0.3])),
        # The limits of `exact_case` must leave alpha * gate saturated.
        **draw(
            st.sampled_from(
                [
                    {"alpha": 1.0, "limit": None},
                    {"alpha": 1.0, "limit": np.inf},
                    {"alpha": 1.0, "limit": 0.0},
                    {"alpha": 1.0, "limit": 1000.3},
                    {"alpha": 1.702, "limit": 64.3},
                    {"alpha": 1.702, "limit": None},
                    {"alpha": 8.0, "limit": 7.0},
                    {"alpha": 8.0, "limit": 10.0},
                ]
            )
        ),
    }

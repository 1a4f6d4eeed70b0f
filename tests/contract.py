"""The test base that every implementation passes: one test a promise of the contract.

A subclass provides `run`; `test_contract_cpu.py` and `test_contract_xla.py` bind it to the package
and `test_oracle.py` to the oracle, and to mutants to show that each test catches the faults it is
about. Expectations come from the oracle or from another call of `run`, never from the
implementation's source. Where the promise is about bits, uint16 views are compared, so that signs
of zero and NaN payloads count.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from data import Case, exact_case, fragile_case, random_case, shapes
from oracle import E2M1, E8M0, Array, bf16, pack, widen

BF16 = ml_dtypes.bfloat16
CANONICAL_NAN = 0x7FC0

# ||a - b|| / ||b|| per row between two implementations that sum in different orders.
# * A float32 sum over k <= 4096 is off by about 2^-24 * sqrt(k) of the norm of its terms: 2^-18. It
#   moves gate or up across a boundary of bfloat16 for one element in 2^10, and then by 2^-8.
# * Such an element, or one whose exp differs in its last bit, crosses a boundary of E4M3 with a
#   probability of 2^-8 / 2^-4, and then moves by 2^-3 at most. The root mean square over I elements
#   is below 2^-3 * sqrt(2^-14) = 2^-10 of the row.
# * Rows and their sum are rounded to bfloat16, which moves the few elements that differ by 2^-8.
# Together below 2^-8 (`test_oracle.py` finds less: such sums are mostly exact in float32, so that
# only exp and the division are left to differ). The contract grants 2^-6 for heavy-tailed rows
# where one of the few moved elements is among the largest. A wrong scale, nibble or expert is off
# by 2^-1 and more.
ROW_BOUND = 2.0**-6

EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "gates never negative": {"signed_gates": False},
    "limit 10": {"limit": 10.0, "alpha": 8.0},
    "limit 7, alpha, beta, biases": {"limit": 7.0, "alpha": 8.0, "beta": 1.0, "bias": True},
    "limit 0": {"limit": 0.0, "beta": 1.0, "bias": True},
    "limit that bfloat16 does not hold": {"limit": 1000.3, "beta": -0.3},
    "alpha of gpt-oss": {"limit": 64.3, "alpha": 1.702, "beta": 1.0},
    "biases": {"limit": 4096.0, "beta": 1.0, "bias": True},
    "scales at exact powers over subnormals": {"kind": "wide"},
    "tokens below the floor of amax": {"kind": "tiny", "beta": 0.3},
    "weights that are not dyadic": {"routing": "thirds"},
    "step 5 has no floor": {"routing": "tiny"},
    "step 5 at its least exponent": {"routing": "least", "limit": 7.0, "alpha": 8.0},
    "order of the slots": {"routing": "order", "slots": 5},
    "32 slots": {"slots": 32, "tokens": 6, "limit": 4096.0, "bias": True},
    "one expert": {"experts": 1, "slots": 2},
    "many experts": {"experts": 37, "slots": 6},
    "one slot": {"slots": 1},
    "least sizes": {"hidden": 32, "intermediate": 32},
    "wider than any tile": {"hidden": 288, "intermediate": 352, "tokens": 70},
}

RANDOM: dict[str, dict[str, Any]] = {
    "DeepSeek-V4": {"limit": 10.0},
    "gpt-oss": {"limit": 7.0, "alpha": 1.702, "beta": 1.0, "bias": True},
    "no limit": {},
    "a limit that bites": {"limit": 0.5, "beta": 0.25},
    "limit 0 with beta": {"limit": 0.0, "beta": 1.0},
    "negative alpha": {"alpha": -0.5, "beta": -1.0, "bias": True},
    "deep matrices": {"hidden": 1024, "intermediate": 512, "slots": 4},
}


# --- comparing ----------------------------------------------------------------------------------


def bits(y: Array) -> Array:
    assert y.dtype == BF16, f"the result is {y.dtype}, not bfloat16"
    return np.ascontiguousarray(y).view(np.uint16)


def assert_same_bits(got: Array, want: Array, what: str = "result") -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    differ = np.argwhere(bits(got) != bits(want))
    if differ.size:
        shown = ", ".join(
            f"{tuple(map(int, at))}: {got[tuple(at)]} for {want[tuple(at)]}" for at in differ[:4]
        )
        raise AssertionError(f"{what}: {len(differ)} of {want.size} elements differ: {shown}")


def assert_rows_close(got: Array, want: Array, bound: float) -> None:
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
    bits(got)
    a, b = widen(got), widen(want)
    assert np.isfinite(b).all(), "the oracle's rows are meant to be finite here"
    error, norm = np.linalg.norm(a - b, axis=-1), np.linalg.norm(b, axis=-1)
    bad = ~(error <= bound * norm)
    ratio = error / np.maximum(norm, np.finfo(np.float64).tiny)
    assert not bad.any(), f"rows {np.flatnonzero(bad)[:8]}: ratios {ratio[bad][:8]} > {bound}"


def assert_nan_row(row: Array, what: str) -> None:
    assert (bits(row) == CANONICAL_NAN).all(), f"{what}: not all canonical NaN: {row[:8]}"


def changed(case: Case, **arrays: Any) -> Case:
    return dataclasses.replace(case, **arrays)


def take(case: Case, tokens: Any) -> Case:
    return changed(
        case,
        x=case.x[tokens],
        topk_idx=case.topk_idx[tokens],
        topk_weights=case.topk_weights[tokens],
    )


# --- special data -------------------------------------------------------------------------------


def every_scale_byte(least: float) -> Case:
    """Expert b has byte b over its up rows and 254 - b over its down rows; tokens and routing
    weights bring each product back into float32's range, though no operand dequantised alone need
    be in it.

    Every row of a matrix has one non-zero code, so nothing is summed; groups without one have any
    scale. No weight is smaller than `least`. Gates are 64. Token scales span 2^-22 to 2^119, where
    448 * 2^119 is nearly bfloat16's largest.
    """
    experts, hidden, intermediate = 255, 64, 32
    rng = np.random.default_rng(0)
    byte = np.arange(experts)
    up_exponent = np.clip(127 - byte, -22, 119)  # of the token's second group
    x = np.zeros((experts, hidden))
    x[:, 0] = 64
    values = E2M1[rng.integers(1, 8, (experts, 32))] * 2.0 ** rng.integers(2, 6, (experts, 32))
    values[:, 0] = 448
    x[:, 32:] = np.ldexp(values, up_exponent[:, None])

    def live_codes(byte: Array, shape: tuple[int, int]) -> Array:
        lowest = np.searchsorted(E2M1[:8], least / E8M0[byte]).clip(1)
        return rng.integers(lowest[:, None], 8, shape) | rng.choice([0, 8], shape)

    codes = np.zeros((experts, 2 * intermediate, hidden), np.uint8)
    scale = rng.integers(0, 255, (experts, 2 * intermediate, hidden // 32))
    codes[:, :intermediate, 0] = 2
    scale[:, :intermediate, 0] = 127
    up = np.arange(intermediate)
    codes[:, intermediate + up, 32 + rng.permutation(32)] = live_codes(byte, (experts, 32))
    scale[:, intermediate:, 1] = byte[:, None]

    # |a| <= 64 * up * weight, at most 2^(b - 127) times a little, with room inside float32's range.
    up_size = np.log2(64.0 * 448) + up_exponent + byte - 127
    weight = np.exp2(np.round(np.clip(byte - 127, -112, 108) - up_size).clip(-126, 127))

    down = np.zeros((experts, hidden, intermediate), np.uint8)
    down[:, np.arange(hidden), rng.integers(0, intermediate, hidden)] = live_codes(
        254 - byte, (experts, hidden)
    )
    weights = {
        "gate_up_proj": pack(codes),
        "gate_up_proj_scale_inv": scale.astype(np.uint8),
        "down_proj": pack(down),
        "down_proj_scale_inv": np.broadcast_to((254 - byte)[:, None, None], (experts, hidden, 1))
        .astype(np.uint8)
        .copy(),
    }
    idx = byte.astype(np.int32)[:, None]
    return Case(x.astype(BF16), idx, weight.astype(np.float32)[:, None], weights, {})


def small_case(**changes: Any) -> Case:
    """Random data without skipped slots: 24 tokens, 4 experts, 3 slots, in the default shapes, so
    that the tests share compiled programs."""
    return random_case(7, **{"skips": False, **changes})


NAN_BITS = {"quiet NaN": 0x7FC0, "negative NaN": 0xFFFF, "signalling NaN": 0x7F81}
SPECIALS = {**NAN_BITS, "Inf": 0x7F80, "-Inf": 0xFF80}


class Contract:
    """Subclass it as `Test...` and define `run`."""

    row_bound = ROW_BOUND
    # Numbers of tokens in a call; each is a compilation.
    batches: tuple[int, ...] = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)
    # Random shapes drawn by `make test`, and by `pytest -m wide`.
    examples = 12
    wide_examples = 2000

    def run(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array,
        weights: dict[str, Array],
        **activation: Any,
    ) -> Array:
        raise NotImplementedError

    def result(self, case: Case) -> Array:
        return self.run(case.x, case.topk_idx, case.topk_weights, case.weights, **case.activation)

    # -- values

    @pytest.mark.parametrize("name", EXACT)
    def test_exact_data_gives_the_oracles_bits(self, name: str) -> None:
        for seed in (1, 2):
            case = exact_case(seed, **EXACT[name])
            assert_same_bits(self.result(case), case.oracle(), name)

    @pytest.mark.parametrize("name", RANDOM)
    def test_random_data_stays_within_the_row_bound(self, name: str) -> None:
        case = random_case(3, **RANDOM[name])
        assert_rows_close(self.result(case), case.oracle(), self.row_bound)

    def test_every_shape_gives_exact_bits_and_close_rows(self) -> None:
        self._check_shapes(self.examples)

    @pytest.mark.wide
    def test_many_more_shapes_give_exact_bits_and_close_rows(self) -> None:
        self._check_shapes(self.wide_examples)

    def _check_shapes(self, examples: int) -> None:
        # The profile in force (conftest.py) decides whether the examples are the same on every run.
        # Shrinking is left out: it would compile a program for every attempt.
        @settings(
            max_examples=examples,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(shapes())
        def check(keywords: dict[str, Any]) -> None:
            case = exact_case(**keywords)
            assert_same_bits(self.result(case), case.oracle())
            case = random_case(**keywords)
            assert_rows_close(self.result(case), case.oracle(), self.row_bound)

        check()

    def test_every_scale_byte_multiplies_exactly(self) -> None:
        self._check_scale_bytes(least=2.0**-126)

    def test_weights_below_float32s_normal_range_keep_products_within_it(self) -> None:
        # The products are far above 2^-126; only an operand dequantised by itself would be flushed.
        self._check_scale_bytes(least=2.0**-128)

    def _check_scale_bytes(self, least: float) -> None:
        case = every_scale_byte(least)
        want = case.oracle()
        assert (np.isfinite(widen(want)) & (np.abs(widen(want)) >= 2.0**-126)).all()
        assert_same_bits(self.result(case), want)

    @pytest.mark.parametrize("other", [np.inf, 3.4e38])
    def test_no_limit_is_an_infinite_limit(self, other: float) -> None:
        case = random_case(11, bias=True)
        free = changed(case, activation={**case.activation, "swiglu_limit": other})
        assert_same_bits(self.result(free), self.result(case))

    def test_limit_zero_is_a_limit(self) -> None:
        case = random_case(12, limit=0.0)
        y = self.result(case)
        # up = clamp(up, -0, 0) = 0, so that a = 0 and nothing comes out.
        assert (bits(y) == 0).all()
        assert np.abs(widen(self.result(random_case(12)))).max() > 0

    def test_gate_is_not_bounded_below(self) -> None:
        # gate * sigmoid(gate) is -0.27 at -1 and 0 far below: a lower bound at -L shows.
        case = random_case(13, limit=1.0, skips=False)
        lower = {**case.weights}
        lower["gate_up_proj_bias"] = np.zeros(case.weights["gate_up_proj"].shape[:2], np.float32)
        lower["gate_up_proj_bias"][:, : case.weights["down_proj"].shape[-1] * 2] = -1000.0
        y = self.result(changed(case, weights=lower))
        assert np.abs(widen(y)).max() < 1e-6 * np.abs(widen(self.result(case))).max()

    @pytest.mark.parametrize("dtype", [BF16, np.float16])
    def test_routing_weights_of_sixteen_bits_are_widened(self, dtype: Any) -> None:
        case = small_case()
        narrow = case.topk_weights.astype(dtype)
        wide = changed(case, topk_weights=narrow.astype(np.float32))
        assert_same_bits(self.result(changed(case, topk_weights=narrow)), self.result(wide))

    def test_bfloat16_biases_are_widened(self) -> None:
        case = small_case(bias=True)
        names = ("gate_up_proj_bias", "down_proj_bias")
        narrow = {**case.weights, **{name: case.weights[name].astype(BF16) for name in names}}
        wide = {**case.weights, **{name: narrow[name].astype(np.float32) for name in names}}
        got = self.result(changed(case, weights=narrow))
        assert_same_bits(got, self.result(changed(case, weights=wide)))

    # -- routing

    @pytest.mark.parametrize("slots", [1, 2, 31, 32])
    def test_any_number_of_slots(self, slots: int) -> None:
        case = exact_case(slots, tokens=5, slots=slots, hidden=32, intermediate=32)
        assert_same_bits(self.result(case), case.oracle())

    @pytest.mark.parametrize("tokens", [0, 1])
    def test_no_token_and_one_token(self, tokens: int) -> None:
        case = take(exact_case(5), slice(0, tokens))
        y = self.result(case)
        assert y.shape == (tokens, case.x.shape[1])
        assert_same_bits(y, case.oracle())

    @pytest.mark.parametrize("outside", [-1, -4, 4, 5, 65536, -(2**31), 2**31 - 1])
    @pytest.mark.parametrize("weight", [0.5, np.nan, np.inf])
    def test_id_outside_the_experts_adds_nothing_whatever_its_weight(
        self, outside: int, weight: float
    ) -> None:
        case = small_case()
        expert, routing = case.topk_idx.copy(), case.topk_weights.copy()
        expert[:, 1], routing[:, 1] = outside, weight
        y = self.result(changed(case, topk_idx=expert, topk_weights=routing))
        kept = changed(
            case, topk_idx=case.topk_idx[:, [0, 2]], topk_weights=case.topk_weights[:, [0, 2]]
        )
        assert_same_bits(y, self.result(kept))

    def test_every_expert_is_reached_by_its_own_id(self) -> None:
        case = exact_case(21, experts=9, slots=1, tokens=27)
        ids = (np.arange(27) % 9).astype(np.int32)[:, None]
        # Any row of first products is exact for any token; down rows are exact only for the tokens
        # that were routed there, so this one is compared within the bound.
        case = changed(random_case(21, experts=9, slots=1, tokens=27), topk_idx=ids)
        assert_rows_close(self.result(case), case.oracle(), self.row_bound)

    def test_same_expert_in_several_slots_counts_each_time(self) -> None:
        case = small_case()
        twice = changed(
            case,
            topk_idx=case.topk_idx[:, [0, 0]],
            topk_weights=case.topk_weights[:, [0, 0]],
        )
        once = take(case, slice(None))
        once = changed(once, topk_idx=case.topk_idx[:, :1], topk_weights=case.topk_weights[:, :1])
        # r + r is exact in bfloat16.
        want = bf16(2 * widen(self.result(once))).astype(BF16)
        assert_same_bits(self.result(twice), want)

    def test_slots_are_summed_in_their_order(self) -> None:
        case = exact_case(22, routing="order", slots=5)
        y = self.result(case)
        assert_same_bits(y, case.oracle())
        reverse = changed(
            case, topk_idx=case.topk_idx[:, ::-1], topk_weights=case.topk_weights[:, ::-1]
        )
        assert (bits(self.result(reverse)) != bits(y)).any(), "the data does not show the order"

    # -- zeros and NaN

    @pytest.mark.parametrize("value", [0x3F80, 0x8000, *SPECIALS.values()])
    def test_token_without_a_valid_slot_gives_positive_zero(self, value: int) -> None:
        case = small_case()
        x, ids, routing = case.x.copy(), case.topk_idx.copy(), case.topk_weights.copy()
        x.view(np.uint16)[[0, 5]] = value
        ids[[0, 5]], routing[5] = [-1, 4, -9], np.nan
        y = self.result(changed(case, x=x, topk_idx=ids, topk_weights=routing))
        assert (bits(y[[0, 5]]) == 0).all()
        others = np.setdiff1d(np.arange(24), [0, 5])
        assert_same_bits(y[others], self.result(case)[others], "another token")

    def test_lone_negative_zero_comes_out_positive(self) -> None:
        case = small_case(bias=True)
        weights = {**case.weights, "down_proj_bias": np.zeros_like(case.weights["down_proj_bias"])}
        weights["gate_up_proj_bias"] = np.zeros_like(case.weights["gate_up_proj_bias"])
        zero = changed(
            case,
            x=np.full_like(case.x, -0.0),
            topk_idx=case.topk_idx[:, :1],
            topk_weights=-case.topk_weights[:, :1],
            weights=weights,
        )
        assert (bits(self.result(zero)) == 0).all()

    @pytest.mark.parametrize("limit", [None, 10.0])
    @pytest.mark.parametrize("value", SPECIALS)
    @pytest.mark.parametrize("at", [0, 37, 127])
    def test_special_value_in_a_token_makes_its_row_nan_and_no_other(
        self, value: str, at: int, limit: float | None
    ) -> None:
        case = small_case(limit=limit)
        x = case.x.copy()
        x.view(np.uint16)[4, at] = SPECIALS[value]
        y = self.result(changed(case, x=x))
        assert_nan_row(y[4], value)
        others = np.arange(24) != 4
        assert_same_bits(y[others], self.result(case)[others], "another token")

    def test_token_of_nan_with_zero_weight_is_nan(self) -> None:
        case = small_case(limit=10.0)
        x, routing = case.x.copy(), case.topk_weights.copy()
        x[4, 3], routing[4] = np.nan, 0.0
        assert_nan_row(self.result(changed(case, x=x, topk_weights=routing))[4], "zero weight")

    def test_token_of_nan_with_one_valid_slot_is_nan(self) -> None:
        case = small_case(limit=7.0)
        x, ids = case.x.copy(), case.topk_idx.copy()
        x[4, 3], ids[4, :2] = np.inf, -1
        assert_nan_row(self.result(changed(case, x=x, topk_idx=ids))[4], "one valid slot")

    @pytest.mark.parametrize("weight", [np.nan, -np.nan, np.inf, -np.inf])
    def test_routing_weight_that_is_not_finite_makes_the_row_nan(self, weight: float) -> None:
        case = small_case(bias=True)
        routing = case.topk_weights.copy()
        routing[4, 1] = weight
        y = self.result(changed(case, topk_weights=routing))
        assert_nan_row(y[4], f"weight {weight}")
        others = np.arange(24) != 4
        assert_same_bits(y[others], self.result(case)[others], "another token")

    def test_overflow_in_step_4_makes_the_row_nan(self) -> None:
        case = small_case()
        routing = case.topk_weights.copy()
        routing[4, 1] = np.finfo(np.float32).max
        want = changed(case, topk_weights=routing).oracle()
        assert np.isnan(widen(want[4])).all(), "the data does not overflow"
        y = self.result(changed(case, topk_weights=routing))
        assert_nan_row(y[4], "overflow")
        others = np.arange(24) != 4
        assert_same_bits(y[others], self.result(case)[others], "another token")

    @pytest.mark.parametrize("limit", [None, 10.0])
    def test_overflowing_gate_is_brought_back_by_a_limit(self, limit: float | None) -> None:
        # 1.75 * 2^127 times 2 in one product: no sum whose order could matter.
        case = exact_case(31, tokens=6, slots=1, limit=limit, alpha=8.0)
        x = np.zeros_like(case.x)
        x[:, 0], x[:, 32] = 448 * 2.0**119, 1.0
        experts, rows, _ = case.weights["gate_up_proj"].shape
        codes = np.zeros((experts, rows, x.shape[1]), np.uint8)
        codes[:, : rows // 2, 0], codes[:, rows // 2 :, 32] = 4, 5
        scale = np.full((experts, rows, x.shape[1] // 32), 127, np.uint8)
        weights = {**case.weights, "gate_up_proj": pack(codes), "gate_up_proj_scale_inv": scale}
        down = np.zeros((experts, x.shape[1], rows // 2), np.uint8)
        down[:, :, 5] = 6
        weights["down_proj"] = pack(down)
        weights["down_proj_scale_inv"] = np.full_like(case.weights["down_proj_scale_inv"], 127)
        ids = np.array([[0], [1], [2], [3], [0], [-1]], np.int32)
        over = changed(
            case, x=x, topk_idx=ids, topk_weights=np.ones((6, 1), np.float32), weights=weights
        )
        want = over.oracle()
        assert np.isnan(widen(want[:5])).all() if limit is None else (widen(want[:5]) == 120).all()
        assert_same_bits(self.result(over), want)

    @pytest.mark.parametrize("limit", [None, 7.0])
    @pytest.mark.parametrize("part", ["gate", "up"])
    def test_nan_passes_the_clamps(self, part: str, limit: float | None) -> None:
        case = small_case(bias=True, limit=limit)
        bias = case.weights["gate_up_proj_bias"].copy()
        bias[2, 5 if part == "gate" else 64 + 5] = np.nan
        y = self.result(changed(case, weights={**case.weights, "gate_up_proj_bias": bias}))
        routed = (case.topk_idx == 2).any(1)
        assert routed.any() and not routed.all()
        for token in np.flatnonzero(routed):
            assert_nan_row(y[token], f"token {token}")
        assert_same_bits(y[~routed], self.result(case)[~routed], "a token of another expert")

    @pytest.mark.parametrize("row", [3, 64 + 3])
    @pytest.mark.parametrize("codes", ["any", "zero"])
    def test_scale_byte_255_in_gate_up_reaches_only_tokens_of_its_expert(
        self, row: int, codes: str
    ) -> None:
        case = small_case(limit=7.0)
        scale = case.weights["gate_up_proj_scale_inv"].copy()
        packed = case.weights["gate_up_proj"].copy()
        scale[1, row, 1] = 255
        if codes == "zero":
            packed[1, row, 16:32] = 0
        clean = changed(case, weights={**case.weights, "gate_up_proj": packed})
        weights = {**clean.weights, "gate_up_proj_scale_inv": scale}
        y = self.result(changed(case, weights=weights))
        routed = (case.topk_idx == 1).any(1)
        assert routed.any() and not routed.all()
        for token in np.flatnonzero(routed):
            assert_nan_row(y[token], f"token {token}")
        assert_same_bits(y[~routed], self.result(clean)[~routed], "a token of another expert")

    @pytest.mark.parametrize("codes", ["any", "zero"])
    def test_scale_byte_255_in_down_reaches_one_column_of_its_tokens(self, codes: str) -> None:
        case = small_case()
        scale = case.weights["down_proj_scale_inv"].copy()
        packed = case.weights["down_proj"].copy()
        scale[1, 9, 0] = 255
        if codes == "zero":
            packed[1, 9, :16] = 0
        clean = changed(case, weights={**case.weights, "down_proj": packed})
        y = self.result(changed(clean, weights={**clean.weights, "down_proj_scale_inv": scale}))
        want = self.result(clean).copy()
        want.view(np.uint16)[(case.topk_idx == 1).any(1), 9] = CANONICAL_NAN
        assert_same_bits(y, want)

    def test_scale_byte_255_in_an_expert_without_tokens_reaches_nothing(self) -> None:
        case = small_case()
        ids = np.where(case.topk_idx == 1, 3, case.topk_idx).astype(np.int32)
        weights = {name: array.copy() for name, array in case.weights.items()}
        weights["gate_up_proj_scale_inv"][1] = 255
        weights["down_proj_scale_inv"][1] = 255
        case = changed(case, topk_idx=ids)
        assert_same_bits(self.result(changed(case, weights=weights)), self.result(case))

    def test_skipped_slots_read_no_scale_byte_255(self) -> None:
        case = small_case()
        weights = {name: array.copy() for name, array in case.weights.items()}
        weights["gate_up_proj_scale_inv"][[0, 3]] = 255
        ids = np.where(np.isin(case.topk_idx, [0, 3]), [-1, 4, -4], case.topk_idx).astype(np.int32)
        case = changed(case, topk_idx=ids)
        assert_same_bits(self.result(changed(case, weights=weights)), self.result(case))

    # -- independence, bit for bit

    def _batch(self, tokens: int) -> Case:
        """Data that shows any other order of summation in nearly every element."""
        return fragile_case(41, tokens=tokens)

    def test_result_of_a_token_does_not_depend_on_the_batch_or_its_place(self) -> None:
        case = self._batch(max(self.batches))
        alone = np.concatenate([self.result(take(case, [t])) for t in range(len(case.x))])
        rng = np.random.default_rng(0)
        for size in self.batches:
            # Every place of a batch holds a token whose result alone is known; twice, shuffled.
            for _ in range(2):
                tokens = rng.permutation(len(case.x))[:size]
                y = self.result(take(case, tokens))
                assert_same_bits(y, alone[tokens], f"batch of {size}")

    def test_result_of_a_token_does_not_depend_on_what_the_others_hold(self) -> None:
        case = self._batch(33)
        y = self.result(case)
        x, ids = case.x.copy(), case.topk_idx.copy()
        others = np.arange(33) != 7
        x[others] = np.where(np.arange(32)[:, None] % 2, np.nan, 3e38)
        ids[others] = np.where(np.arange(32)[:, None] % 3, ids[7], -1)
        assert_same_bits(self.result(changed(case, x=x, topk_idx=ids))[7], y[7])

    def test_one_token_repeated_gives_one_result(self) -> None:
        case = take(self._batch(2), [0] * 70)
        y = self.result(case)
        assert_same_bits(y, np.broadcast_to(y[:1], y.shape))

    def test_result_does_not_depend_on_the_run(self) -> None:
        case = self._batch(33)
        first = self.result(case)
        for _ in range(3):
            assert_same_bits(self.result(case), first)

    def test_exact_tokens_agree_alone_and_together(self) -> None:
        case = exact_case(42)
        alone = np.concatenate([self.result(take(case, [t])) for t in range(24)])
        assert_same_bits(alone, case.oracle())
        assert_same_bits(self.result(case), alone)

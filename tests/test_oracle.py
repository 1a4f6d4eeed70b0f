"""The judge is judged: the oracle against a scalar transcription of the contract in exact rationals,
its formats against ml_dtypes, and every test of `contract.py` against the planted faults it is about.
"""

from __future__ import annotations

import inspect
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import mutants
import numpy as np
import oracle
import pytest
from contract import Contract, assert_same_bits
from data import Case, assert_exact, exact_case, random_case
from oracle import Array, Oracle


class OracleContract(Contract):
    """The contract's tests on the oracle or on one of its mutants."""

    kind: type[Oracle] = Oracle

    def run(
        self, x: Array, topk_idx: Array, topk_weights: Array, weights: dict[str, Array], **activation: Any
    ) -> Array:
        return self.kind(weights, **activation)(x, topk_idx, topk_weights)


class TestOracle(OracleContract):
    """That the oracle passes shows that each expectation is consistent with the contract's steps."""


# --- the oracle by other means ------------------------------------------------------------------


def scalar_layer(case: Case, token: int) -> list[float]:
    """One token through the contract, in rationals; only for data whose sigmoid is 0, 1/2 or 1."""
    e2m1 = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    e2m1 += [-v for v in e2m1]

    def rounded(value: Fraction, precision: int, least: int) -> Fraction:
        if value == 0:
            return value
        exponent = math.floor(math.log2(abs(value)))
        exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
        step = Fraction(2) ** (max(exponent, least) - precision + 1)
        return round(value / step) * step  # Python rounds halves to even

    def f32(value: Fraction) -> Fraction:
        return rounded(value, 24, -126)

    def bf16(value: Fraction) -> Fraction:
        return rounded(value, 8, -126)

    def fp8(group: list[Fraction], floor: Fraction, least: int) -> list[Fraction]:
        amax, exponent = max(floor, *(abs(v) for v in group)), least
        while amax > 448 * Fraction(2) ** exponent:
            exponent += 1
        scale = Fraction(2) ** exponent
        return [rounded(v / scale, 4, -6) * scale for v in group]

    def row(name: str, expert: int, n: int) -> list[Fraction]:
        packed, scale = case.weights[name][expert, n], case.weights[name + "_scale_inv"][expert, n]
        codes = [code for byte in packed for code in (int(byte) & 15, (int(byte) >> 4) & 15)]
        return [e2m1[c] * Fraction(2) ** (int(scale[k // 32]) - 127) for k, c in enumerate(codes)]

    def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
        return f32(sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0)))

    def by_groups(values: list[Fraction], floor: Fraction, least: int) -> list[Fraction]:
        groups = [values[k : k + 32] for k in range(0, len(values), 32)]
        return [v for group in groups for v in fp8(group, floor, least)]

    def bias(name: str, expert: int, n: int) -> Fraction:
        return Fraction(float(case.weights[name][expert, n])) if name in case.weights else Fraction(0)

    limit = case.activation["swiglu_limit"]
    limit = None if limit is None else Fraction(float(np.float32(limit)))
    alpha = Fraction(float(np.float32(case.activation["swiglu_alpha"])))
    beta = Fraction(float(np.float32(case.activation["swiglu_beta"])))
    experts, hidden, half = case.weights["down_proj"].shape
    x = by_groups([Fraction(float(v)) for v in case.x[token]], Fraction(float(np.float32(1e-4))), -200)
    total = [Fraction(0)] * hidden
    for expert, weight in zip(case.topk_idx[token].tolist(), case.topk_weights[token], strict=True):
        if not 0 <= expert < experts:
            continue
        w, a = Fraction(float(weight)), []
        for i in range(2 * half):
            name = "gate_up_proj"
            gate = bf16(f32(dot(x, row(name, expert, i)) + bias(name + "_bias", expert, i)))
            other = i + 2 * half
            up = bf16(f32(dot(x, row(name, expert, other)) + bias(name + "_bias", expert, other)))
            if limit is not None:
                gate, up = min(gate, limit), min(max(up, -limit), limit)
            saturated = 1 if alpha * gate > 17 else 0
            assert saturated or gate == 0 or alpha * gate < -89
            a.append(f32(f32(gate * saturated * f32(up + beta)) * w))
        a = by_groups(a, Fraction(0), -126)
        for h in range(hidden):
            added = f32(w * bias("down_proj_bias", expert, h))
            o = bf16(f32(dot(a, row("down_proj", expert, h)) + added))
            total[h] = f32(total[h] + o)
    return [float(bf16(v)) for v in total]


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"kind": "wide"},
        {"routing": "thirds"},
        {"routing": "order", "slots": 4},
        {"routing": "least", "limit": 7.0, "alpha": 8.0},
        {"bias": True, "limit": 64.3, "alpha": 1.702, "beta": -0.3},
        {"kind": "tiny", "bias": True},
    ],
    ids=str,
)
def test_oracle_equals_the_contract_in_rationals(keywords: dict[str, Any]) -> None:
    case = exact_case(8, **{"tokens": 4, "hidden": 64, "intermediate": 32, "experts": 2, **keywords})
    want = np.array([scalar_layer(case, token) for token in range(4)])
    assert_same_bits(case.oracle(), (want + 0.0).astype(ml_dtypes.bfloat16))


def test_oracle_works_an_example_done_by_hand() -> None:
    # x = 17 in a group whose amax is 17: 17 / 448 lies in (2^-5, 2^-4], so s = 2^-4 and q = 272, a tie
    # between 256 and 288 whose even neighbour is 256: 16 is what the products see.
    x = np.zeros((1, 32))
    x[0, 1] = 17
    codes = np.zeros((1, 64, 32), np.uint8)
    codes[0, 0, 1] = 6  # gate[0] = 4 * 2^1 * 16 = 128
    codes[0, 32, 1] = 13  # up[0] = -3 * 2^-2 * 16 = -12
    scale = np.full((1, 64, 1), 127, np.uint8)
    scale[0, 0], scale[0, 32] = 128, 125
    down = np.zeros((1, 32, 32), np.uint8)
    down[0, 5, 0] = 1  # 0.5 * 2^3
    weights = {
        "gate_up_proj": oracle.pack(codes),
        "gate_up_proj_scale_inv": scale,
        "down_proj": oracle.pack(down),
        "down_proj_scale_inv": np.full((1, 32, 1), 130, np.uint8),
    }
    # a = 128 * -12 * 0.75 = -1152 = -1.125 * 2^10, which E4M3 holds; times 4.
    y = Oracle(weights)(x.astype(ml_dtypes.bfloat16), np.array([[0]]), np.array([[0.75]], np.float32))
    assert y[0, 5] == -4608 and np.count_nonzero(y) == 1


def test_oracle_formats_hold_the_values_of_ml_dtypes() -> None:
    for table, name in (
        (oracle.E2M1, "float4_e2m1fn"),
        (oracle.E4M3, "float8_e4m3fn"),
        (oracle.E8M0, "float8_e8m0fnu"),
    ):
        codes = np.arange(len(table), dtype=np.uint8)
        want = oracle.widen(codes.view(getattr(ml_dtypes, name)))
        np.testing.assert_array_equal(table, want)
        assert (np.signbit(table) == np.signbit(want))[~np.isnan(table)].all()


def test_oracle_rounds_to_bfloat16_as_ml_dtypes_does() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = np.append(values[~np.isnan(values)], np.float32([3.3895e38, 3.3961e38, 3.4e38, 0, -0.0, 1e-40]))
    assert_same_bits(
        oracle.bf16(oracle.widen(values)).astype(ml_dtypes.bfloat16), values.astype(ml_dtypes.bfloat16)
    )


def test_generator_refuses_data_that_is_not_exact() -> None:
    with pytest.raises(AssertionError, match=r"order|saturate"):
        assert_exact(random_case(1))
    case = exact_case(1, kind="wide")
    dense = {**case.weights, "down_proj": np.full_like(case.weights["down_proj"], 0x11)}
    with pytest.raises(AssertionError, match="a sum depends on its order"):
        assert_exact(Case(case.x, case.topk_idx, case.topk_weights, dense, case.activation))


# --- planted faults -----------------------------------------------------------------------------

M = mutants
# (test, its arguments, the faults that it must catch)
CATCHES: list[tuple[str, tuple[Any, ...], list[type[Oracle]]]] = [
    (
        "test_exact_data_gives_the_oracles_bits",
        ("plain",),
        [
            *(M.SwappedGateUp, M.InterleavedGateUp, M.SwappedNibbles, M.ScaleOfNextGroup, M.ScaleBias128),
            *(M.WrongExpert, M.NegativeIdWraps, M.LargeIdClamps, M.IdOfSixteenBits, M.DuplicateCountsOnce),
            *(M.TokensNotQuantised, M.TokensTruncated, M.TokensRoundedTiesAway, M.TokenScaleOneTooSmall),
            *(M.TokenScaleToNearestExponent, M.GateUpNotRounded, M.GateUpTruncated, M.WeightAfterDown),
            *(M.StepFourInBfloat16, M.NotRequantised, M.RequantisedTruncated, M.RequantisedTiesAway),
            *(M.RequantisedFlushed, M.RequantisedOneTooSmall, M.RequantisedFromBfloat16),
            *(M.RowsNotRounded, M.RowsTruncated, M.CombinedInBfloat16, M.ResultTruncated, M.NoTokens),
        ],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("scales at exact powers over subnormals",),
        [
            *(M.TokenScaleOfExactPowersGoesUp, M.TokenScaleOneTooLarge, M.TokensScaledPerRow),
            *(M.TokensFlushed, M.RequantisedFlushed, M.RequantisedOneTooLarge),
        ],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("tokens below the floor of amax",),
        [M.TokensWithoutFloor, M.TokensFlushed, M.NoBeta],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("limit 10",),
        [M.NoLimit, M.GateNotClamped, M.UpNotClamped, M.UpNotClampedBelow, M.AlphaOutside],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("limit 7, alpha, beta, biases",),
        [
            *(M.NoBeta, M.BetaOnGate, M.BetaBeforeClamp, M.AlphaOutside, M.NoGateUpBias),
            *(M.NoDownBias, M.DownBiasUnweighted, M.WeightAfterDown),
        ],
    ),
    ("test_exact_data_gives_the_oracles_bits", ("limit 0",), [M.NoLimit, M.ZeroLimitMeansNone]),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("limit that bfloat16 does not hold",),
        [M.LimitBeforeRounding, M.LimitRoundedToBfloat16, M.UpNotClamped, M.NoBeta],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("alpha of gpt-oss",),
        [M.AlphaOutside, M.LimitBeforeRounding, M.LimitRoundedToBfloat16, M.BetaBeforeClamp],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("biases",),
        [M.BiasAfterRounding, M.NoGateUpBias, M.NoDownBias, M.DownBiasUnweighted],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("weights that are not dyadic",),
        [M.StepFourInFloat64, M.WeightBeforeUp, M.WeightRoundedToBfloat16],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("step 5 has no floor",),
        [M.RequantisedWithFloor],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("step 5 at its least exponent",),
        [M.RequantisedWithFloor, M.ExponentWraps],
    ),
    (
        "test_exact_data_gives_the_oracles_bits",
        ("order of the slots",),
        [M.CombinedInReverse, M.CombinedByExpert, M.CombinedExactly, M.CombinedInBfloat16],
    ),
    ("test_exact_data_gives_the_oracles_bits", ("32 slots",), [M.SkippedTokenIsNegativeZero]),
    (
        "test_random_data_stays_within_the_row_bound",
        ("no limit",),
        [
            *(M.SwappedGateUp, M.InterleavedGateUp, M.SwappedNibbles, M.ScaleOfNextGroup, M.ScaleBias128),
            *(M.WrongExpert, M.GeluInstead, M.ReluInstead, M.RequantisedTruncated, M.WeightAfterDown),
        ],
    ),
    (
        "test_random_data_stays_within_the_row_bound",
        ("gpt-oss",),
        [M.NoAlpha, M.AlphaOutside, M.NoBeta, M.BetaOnGate, M.NoGateUpBias, M.NoDownBias],
    ),
    (
        "test_random_data_stays_within_the_row_bound",
        ("a limit that bites",),
        [M.GateClampedBelow, M.GateNotClamped, M.UpNotClamped, M.UpNotClampedBelow, M.BetaBeforeClamp],
    ),
    ("test_random_data_stays_within_the_row_bound", ("negative alpha",), [M.NoAlpha, M.AlphaOutside]),
    (
        "test_every_shape_gives_exact_bits_and_close_rows",
        (),
        [M.SwappedNibbles, M.WeightAfterDown, M.DuplicateCountsOnce, M.NoBeta],
    ),
    (
        "test_every_scale_byte_multiplies_exactly",
        (),
        [M.ScaleByteZeroIsZero, M.WeightsDequantisedInFloat32, M.WeightsFlushed, M.ScaleBias128],
    ),
    ("test_no_limit_is_an_infinite_limit", (3.4e38,), [M.NoneMeansTen]),
    ("test_limit_zero_is_a_limit", (), [M.ZeroLimitMeansNone, M.NoLimit, M.NoTokens]),
    ("test_gate_is_not_bounded_below", (), [M.GateClampedBelow]),
    (
        "test_routing_weights_of_sixteen_bits_are_widened",
        (np.float16,),
        [M.HalfWeightsRoundedToBfloat16],
    ),
    ("test_bfloat16_biases_are_widened", (), [M.NarrowBiasDropped]),
    ("test_any_number_of_slots", (32,), [M.DuplicateCountsOnce, M.CombinedInBfloat16]),
    ("test_no_token_and_one_token", (1,), [M.NoTokens]),
    (
        "test_id_outside_the_experts_adds_nothing_whatever_its_weight",
        (-1, np.nan),
        [M.SkippedSlotTimesZero, M.NegativeIdWraps],
    ),
    ("test_id_outside_the_experts_adds_nothing_whatever_its_weight", (4, 0.5), [M.LargeIdClamps]),
    ("test_id_outside_the_experts_adds_nothing_whatever_its_weight", (65536, 0.5), [M.IdOfSixteenBits]),
    ("test_every_expert_is_reached_by_its_own_id", (), [M.WrongExpert]),
    ("test_same_expert_in_several_slots_counts_each_time", (), [M.DuplicateCountsOnce]),
    ("test_slots_are_summed_in_their_order", (), [M.CombinedInReverse, M.CombinedByExpert, M.CombinedExactly]),
    (
        "test_token_without_a_valid_slot_gives_positive_zero",
        (0x7FC0,),
        [M.TokenLeaksWithoutSlots, M.SkippedTokenIsNegativeZero, M.SkippedSlotTimesZero],
    ),
    ("test_lone_negative_zero_comes_out_positive", (), [M.CombinedFromFirstRow]),
    (
        "test_special_value_in_a_token_makes_its_row_nan_and_no_other",
        ("quiet NaN", 37, 10.0),
        [M.ClampDropsNaN, M.OneHotDispatch, M.NegativeNaN],
    ),
    (
        "test_special_value_in_a_token_makes_its_row_nan_and_no_other",
        ("Inf", 0, 10.0),
        [M.TokenInfinitySaturates],
    ),
    ("test_token_of_nan_with_zero_weight_is_nan", (), [M.ZeroWeightSkips]),
    ("test_token_of_nan_with_one_valid_slot_is_nan", (), [M.ClampDropsNaN, M.NegativeNaN]),
    ("test_routing_weight_that_is_not_finite_makes_the_row_nan", (np.inf,), [M.InfinityDropped]),
    ("test_routing_weight_that_is_not_finite_makes_the_row_nan", (np.nan,), [M.OneHotDispatch]),
    ("test_overflow_in_step_4_makes_the_row_nan", (), [M.InfinityDropped]),
    ("test_overflowing_gate_is_brought_back_by_a_limit", (10.0,), [M.OverflowingGateIsNaN, M.NoLimit]),
    ("test_nan_passes_the_clamps", ("gate", 7.0), [M.ClampDropsNaN]),
    ("test_nan_passes_the_clamps", ("up", 7.0), [M.ClampDropsNaN]),
    (
        "test_scale_byte_255_in_gate_up_reaches_only_tokens_of_its_expert",
        (3, "zero"),
        [M.ScaleByte255SkipsZeroCodes, M.ScaleByte255IsLarge, M.OneHotDispatch],
    ),
    (
        "test_scale_byte_255_in_down_reaches_one_column_of_its_tokens",
        ("any",),
        [M.ScaleByte255IsLarge, M.OneHotDispatch],
    ),
    (
        "test_scale_byte_255_in_down_reaches_one_column_of_its_tokens",
        ("zero",),
        [M.ScaleByte255SkipsZeroCodes],
    ),
    ("test_scale_byte_255_in_an_expert_without_tokens_reaches_nothing", (), [M.DenseExperts, M.WrongExpert]),
    ("test_skipped_slots_read_no_scale_byte_255", (), [M.NegativeIdWraps, M.LargeIdClamps]),
    (
        "test_result_of_a_token_does_not_depend_on_the_batch_or_its_place",
        (),
        [M.BatchShiftsSums, M.PositionShiftsSums],
    ),
    ("test_result_of_a_token_does_not_depend_on_what_the_others_hold", (), [M.OneHotDispatch]),
    ("test_one_token_repeated_gives_one_result", (), [M.PositionShiftsSums]),
    ("test_result_does_not_depend_on_the_run", (), [M.RunShiftsSums]),
    ("test_exact_tokens_agree_alone_and_together", (), [M.BatchShiftsSums]),
]


@pytest.mark.parametrize(
    ("test", "arguments", "mutant"),
    [
        pytest.param(test, arguments, mutant, id="-".join([test[5:], *map(str, arguments), mutant.__name__]))
        for test, arguments, faults in CATCHES
        for mutant in faults
    ],
)
def test_planted_fault_is_caught(test: str, arguments: tuple[Any, ...], mutant: type[Oracle]) -> None:
    # That the same test passes for the oracle itself is shown by TestOracle.
    wrong = OracleContract()
    wrong.kind, wrong.examples = mutant, 6
    with pytest.raises(AssertionError):
        getattr(wrong, test)(*arguments)


def test_every_fault_is_caught_and_every_test_catches_one() -> None:
    caught = {mutant for _, _, faults in CATCHES for mutant in faults}
    planted = {
        kind
        for _, kind in inspect.getmembers(mutants, inspect.isclass)
        if issubclass(kind, Oracle) and kind is not Oracle
    }
    assert caught == planted
    tests = {name for name in dir(Contract) if name.startswith("test_")}
    assert {test for test, _, _ in CATCHES} == tests

"""The judge is judged: the oracle against a scalar transcription of the contract in exact
rationals, its formats against ml_dtypes, and every test of `contract.py` against the planted faults
it is about.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mutants
import oracle
from contract import EXACT, RANDOM, ROW_BOUND, Contract, assert_rows_close, assert_same_bits, bits
from data import Case, assert_exact, exact_case, fragile_case, random_case
from oracle import Array, Oracle


class OracleContract(Contract):
    """The contract's tests on the oracle or on one of its mutants."""

    kind: type[Oracle] = Oracle
    batches = (3, 24)
    examples = 6

    def run(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array,
        weights: dict[str, Array],
        **activation: Any,
    ) -> Array:
        return self.kind(weights, **activation)(x, topk_idx, topk_weights)


class TestOracle(OracleContract):
    """That the oracle passes shows that each expectation is consistent with the contract's
    steps."""


# --- the oracle by other means ------------------------------------------------------------------


def scalar_layer(case: Case, token: int) -> list[float]:
    """One token through the contract, in rationals; only for data whose sigmoid is 0, 1/2 or 1."""
    e2m1 = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    e2m1 += [-v for v in e2m1]

    def rounded(value: Fraction, precision: int, least: int) -> Fraction:
        if value == 0:
            return value
        exponent = math.floor(math.log2(abs(value)))
        exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (
            abs(value) < Fraction(2) ** exponent
        )
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
        return (
            Fraction(float(case.weights[name][expert, n])) if name in case.weights else Fraction(0)
        )

    limit = case.activation["swiglu_limit"]
    limit = None if limit is None else Fraction(float(np.float32(limit)))
    alpha = Fraction(float(np.float32(case.activation["swiglu_alpha"])))
    beta = Fraction(float(np.float32(case.activation["swiglu_beta"])))
    experts, hidden, half = case.weights["down_proj"].shape
    x = by_groups(
        [Fraction(float(v)) for v in case.x[token]], Fraction(float(np.float32(1e-4))), -200
    )
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
    case = exact_case(
        8, **{"tokens": 4, "hidden": 64, "intermediate": 32, "experts": 2, **keywords}
    )
    want = np.array([scalar_layer(case, token) for token in range(4)])
    assert_same_bits(case.oracle(), (want + 0.0).astype(ml_dtypes.bfloat16))


def test_oracle_works_an_example_done_by_hand() -> None:
    # x = 17 in a group whose amax is 17: 17 / 448 lies in (2^-5, 2^-4], so s = 2^-4 and q = 272, a
    # tie between 256 and 288 whose even neighbour is 256: 16 is what the products see.
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
    y = Oracle(weights)(
        x.astype(ml_dtypes.bfloat16), np.array([[0]]), np.array([[0.75]], np.float32)
    )
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
    values = np.append(
        values[~np.isnan(values)], np.float32([3.3895e38, 3.3961e38, 3.4e38, 0, -0.0, 1e-40])
    )
    assert_same_bits(
        oracle.bf16(oracle.widen(values)).astype(ml_dtypes.bfloat16),
        values.astype(ml_dtypes.bfloat16),
    )


def test_generator_refuses_data_that_is_not_exact() -> None:
    with pytest.raises(AssertionError, match=r"order|saturate"):
        assert_exact(random_case(1))
    case = exact_case(1, kind="wide")
    dense = {**case.weights, "down_proj": np.full_like(case.weights["down_proj"], 0x11)}
    with pytest.raises(AssertionError, match="a sum depends on its order"):
        assert_exact(Case(case.x, case.topk_idx, case.topk_weights, dense, case.activation))


# --- other orders of summation ------------------------------------------------------------------


class Float32Chain(Oracle):
    """One ascending float32 chain, as the CPU kernel has it."""

    def product(self, rows: Array, matrix: Array) -> Array:
        total = np.zeros((len(rows), len(matrix)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(rows.shape[1]):
                total += (rows[:, k, None] * matrix[:, k]).astype(np.float32)
        return total.astype(np.float64)


class Float32Pairs(Oracle):
    """Pairwise float32 sums, the second half first."""

    def product(self, rows: Array, matrix: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            terms = (rows[:, None, ::-1] * matrix[:, ::-1]).astype(np.float32)
            while terms.shape[-1] > 1:
                odd, terms = terms[..., terms.shape[-1] // 2 * 2 :], terms
                terms = np.concatenate([terms[..., :-1:2] + terms[..., 1::2], odd], axis=-1)
        return terms[..., 0].astype(np.float64)


class TensorCore(Oracle):
    """32 products and the sum so far, each cut to 25 bits below the largest, added exactly and cut
    to float32: the published bit-level model of block-scaled tensor core products."""

    def product(self, rows: Array, matrix: Array) -> Array:
        total = np.zeros((len(rows), len(matrix), 1))
        with np.errstate(invalid="ignore"):
            for k in range(0, rows.shape[1], 32):
                terms = np.append(rows[:, None, k : k + 32] * matrix[:, k : k + 32], total, axis=-1)
                top = np.frexp(np.abs(terms).max(-1, keepdims=True))[1]
                total = np.trunc(np.ldexp(terms, 26 - top)).sum(-1, keepdims=True)
                bits = np.maximum(np.frexp(total)[1] - 24, 0)
                total = np.ldexp(np.trunc(np.ldexp(total, -bits)), bits + top - 26)
        return total[..., 0]


ORDERS = [Float32Chain, Float32Pairs, TensorCore]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("name", [name for name in EXACT if name != "wider than any tile"])
def test_order_of_summation_does_not_show_on_exact_data(name: str, kind: type[Oracle]) -> None:
    """So that no right implementation is refused."""
    contract = OracleContract()
    contract.kind = kind
    contract.test_exact_data_gives_the_oracles_bits(name)


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("name", [name for name in RANDOM if name != "deep matrices"])
def test_order_of_summation_stays_below_the_row_bound_by_far(name: str, kind: type[Oracle]) -> None:
    case = random_case(3, **RANDOM[name])
    y = kind(case.weights, **case.activation)(case.x, case.topk_idx, case.topk_weights)
    assert_rows_close(y, case.oracle(), ROW_BOUND / 8)


def test_order_of_summation_shows_on_fragile_data_in_nearly_every_element() -> None:
    case = fragile_case(1, tokens=8)
    results = [
        bits(kind(case.weights, **case.activation)(case.x, case.topk_idx, case.topk_weights))
        for kind in (Oracle, *ORDERS)
    ]
    for one, other in itertools.combinations(results, 2):
        assert (one != other).mean() > 0.7


# --- planted faults -----------------------------------------------------------------------------

EXACT_BITS = "test_exact_data_gives_the_oracles_bits"
CLOSE_ROWS = "test_random_data_stays_within_the_row_bound"
# (test, its arguments, the faults that it must catch)
CATCHES: list[tuple[str, tuple[Any, ...], str]] = [
    (
        EXACT_BITS,
        ("plain",),
        """
        SwappedGateUp InterleavedGateUp SwappedNibbles ScaleOfNextGroup ScaleBias128
        WrongExpert NegativeIdWraps LargeIdClamps IdOfSixteenBits DuplicateCountsOnce
        TokensNotQuantised TokensTruncated TokensRoundedTiesAway TokenScaleOneTooSmall
        TokenScaleToNearestExponent GateUpNotRounded GateUpTruncated WeightAfterDown
        StepFourInBfloat16 NotRequantised RequantisedTruncated RequantisedTiesAway
        RequantisedFlushed RequantisedOneTooSmall RequantisedFromBfloat16 RowsNotRounded
        RowsTruncated CombinedInBfloat16 ResultTruncated NoTokens
        """,
    ),
    (
        EXACT_BITS,
        ("scales at exact powers over subnormals",),
        """
        TokenScaleOfExactPowersGoesUp TokenScaleOneTooLarge TokensScaledPerRow
        TokensFlushed RequantisedFlushed RequantisedOneTooLarge
        """,
    ),
    (
        EXACT_BITS,
        ("tokens below the floor of amax",),
        "TokensWithoutFloor TokensFlushed NoBeta",
    ),
    (
        EXACT_BITS,
        ("limit 10",),
        "NoLimit GateNotClamped UpNotClamped UpNotClampedBelow AlphaOutside",
    ),
    (
        EXACT_BITS,
        ("limit 7, alpha, beta, biases",),
        """
        NoBeta BetaOnGate BetaBeforeClamp AlphaOutside NoGateUpBias NoDownBias
        DownBiasUnweighted WeightAfterDown
        """,
    ),
    (EXACT_BITS, ("limit 0",), "NoLimit ZeroLimitMeansNone"),
    (
        EXACT_BITS,
        ("limit that bfloat16 does not hold",),
        "LimitBeforeRounding LimitRoundedToBfloat16 UpNotClamped NoBeta",
    ),
    (
        EXACT_BITS,
        ("alpha of gpt-oss",),
        "AlphaOutside LimitBeforeRounding LimitRoundedToBfloat16 BetaBeforeClamp",
    ),
    (
        EXACT_BITS,
        ("biases",),
        "BiasAfterRounding NoGateUpBias NoDownBias DownBiasUnweighted",
    ),
    (
        EXACT_BITS,
        ("weights that are not dyadic",),
        "StepFourInFloat64 WeightBeforeUp WeightRoundedToBfloat16",
    ),
    (
        EXACT_BITS,
        ("step 5 has no floor",),
        "RequantisedWithFloor",
    ),
    (
        EXACT_BITS,
        ("step 5 at its least exponent",),
        "RequantisedWithFloor ExponentWraps",
    ),
    (
        EXACT_BITS,
        ("order of the slots",),
        "CombinedInReverse CombinedByExpert CombinedExactly CombinedInBfloat16",
    ),
    (EXACT_BITS, ("32 slots",), "SkippedTokenIsNegativeZero"),
    (
        CLOSE_ROWS,
        ("no limit",),
        """
        SwappedGateUp InterleavedGateUp SwappedNibbles ScaleOfNextGroup ScaleBias128
        WrongExpert GeluInstead ReluInstead RequantisedTruncated WeightAfterDown
        """,
    ),
    (
        CLOSE_ROWS,
        ("gpt-oss",),
        "NoAlpha AlphaOutside NoBeta BetaOnGate NoGateUpBias NoDownBias",
    ),
    (
        CLOSE_ROWS,
        ("a limit that bites",),
        "GateClampedBelow GateNotClamped UpNotClamped UpNotClampedBelow BetaBeforeClamp",
    ),
    (CLOSE_ROWS, ("negative alpha",), "NoAlpha AlphaOutside"),
    (
        "test_every_shape_gives_exact_bits_and_close_rows",
        (),
        "SwappedNibbles WeightAfterDown DuplicateCountsOnce NoBeta",
    ),
    (
        "test_every_scale_byte_multiplies_exactly",
        (),
        "ScaleByteZeroIsZero WeightsDequantisedInFloat32 ScaleBias128",
    ),
    ("test_weights_below_float32s_normal_range_keep_products_within_it", (), "WeightsFlushed"),
    ("test_no_limit_is_an_infinite_limit", (3.4e38,), "NoneMeansTen"),
    ("test_limit_zero_is_a_limit", (), "ZeroLimitMeansNone NoLimit NoTokens"),
    ("test_gate_is_not_bounded_below", (), "GateClampedBelow"),
    (
        "test_routing_weights_of_sixteen_bits_are_widened",
        (np.float16,),
        "HalfWeightsRoundedToBfloat16",
    ),
    ("test_bfloat16_biases_are_widened", (), "NarrowBiasDropped"),
    ("test_any_number_of_slots", (32,), "DuplicateCountsOnce CombinedInBfloat16"),
    ("test_no_token_and_one_token", (1,), "NoTokens"),
    (
        "test_id_outside_the_experts_adds_nothing_whatever_its_weight",
        (-1, np.nan),
        "SkippedSlotTimesZero NegativeIdWraps",
    ),
    ("test_id_outside_the_experts_adds_nothing_whatever_its_weight", (4, 0.5), "LargeIdClamps"),
    (
        "test_id_outside_the_experts_adds_nothing_whatever_its_weight",
        (65536, 0.5),
        "IdOfSixteenBits",
    ),
    ("test_every_expert_is_reached_by_its_own_id", (), "WrongExpert"),
    ("test_same_expert_in_several_slots_counts_each_time", (), "DuplicateCountsOnce"),
    (
        "test_slots_are_summed_in_their_order",
        (),
        "CombinedInReverse CombinedByExpert CombinedExactly",
    ),
    (
        "test_token_without_a_valid_slot_gives_positive_zero",
        (0x7FC0,),
        "TokenLeaksWithoutSlots SkippedTokenIsNegativeZero SkippedSlotTimesZero",
    ),
    ("test_lone_negative_zero_comes_out_positive", (), "CombinedFromFirstRow"),
    (
        "test_special_value_in_a_token_makes_its_row_nan_and_no_other",
        ("quiet NaN", 37, 10.0),
        "ClampDropsNaN OneHotDispatch NegativeNaN",
    ),
    (
        "test_special_value_in_a_token_makes_its_row_nan_and_no_other",
        ("Inf", 0, 10.0),
        "TokenInfinitySaturates",
    ),
    ("test_token_of_nan_with_zero_weight_is_nan", (), "ZeroWeightSkips"),
    ("test_token_of_nan_with_one_valid_slot_is_nan", (), "ClampDropsNaN NegativeNaN"),
    ("test_routing_weight_that_is_not_finite_makes_the_row_nan", (np.inf,), "InfinityDropped"),
    ("test_routing_weight_that_is_not_finite_makes_the_row_nan", (np.nan,), "OneHotDispatch"),
    ("test_overflow_in_step_4_makes_the_row_nan", (), "InfinityDropped"),
    ("test_overflowing_gate_is_brought_back_by_a_limit", (10.0,), "OverflowingGateIsNaN NoLimit"),
    ("test_nan_passes_the_clamps", ("gate", 7.0), "ClampDropsNaN"),
    ("test_nan_passes_the_clamps", ("up", 7.0), "ClampDropsNaN"),
    (
        "test_scale_byte_255_in_gate_up_reaches_only_tokens_of_its_expert",
        (3, "zero"),
        "ScaleByte255SkipsZeroCodes ScaleByte255IsLarge OneHotDispatch",
    ),
    (
        "test_scale_byte_255_in_down_reaches_one_column_of_its_tokens",
        ("any",),
        "ScaleByte255IsLarge OneHotDispatch",
    ),
    (
        "test_scale_byte_255_in_down_reaches_one_column_of_its_tokens",
        ("zero",),
        "ScaleByte255SkipsZeroCodes",
    ),
    (
        "test_scale_byte_255_in_an_expert_without_tokens_reaches_nothing",
        (),
        "DenseExperts WrongExpert",
    ),
    ("test_skipped_slots_read_no_scale_byte_255", (), "NegativeIdWraps LargeIdClamps"),
    (
        "test_result_of_a_token_does_not_depend_on_the_batch_or_its_place",
        (),
        "BatchChoosesOrder PlaceChoosesOrder",
    ),
    ("test_result_of_a_token_does_not_depend_on_what_the_others_hold", (), "OneHotDispatch"),
    ("test_one_token_repeated_gives_one_result", (), "PlaceChoosesOrder"),
    ("test_result_does_not_depend_on_the_run", (), "RunChoosesOrder"),
    ("test_exact_tokens_agree_alone_and_together", (), "DuplicateCountsOnce"),
]


@pytest.mark.parametrize(
    ("test", "arguments", "mutant"),
    [(test, arguments, mutant) for test, arguments, faults in CATCHES for mutant in faults.split()],
)
def test_planted_fault_is_caught(test: str, arguments: tuple[Any, ...], mutant: str) -> None:
    # That the same test passes for the oracle itself is shown by TestOracle.
    wrong = OracleContract()
    wrong.kind = getattr(mutants, mutant)
    with pytest.raises(AssertionError):
        getattr(wrong, test)(*arguments)


def test_every_fault_is_caught_and_every_test_catches_one() -> None:
    caught = {mutant for _, _, faults in CATCHES for mutant in faults.split()}
    planted = {
        name
        for name, kind in vars(mutants).items()
        if isinstance(kind, type) and issubclass(kind, Oracle) and kind is not Oracle
    }
    assert caught == planted
    tests = {name for name in dir(Contract) if name.startswith("test_")}
    tests.remove("test_many_more_shapes_give_exact_bits_and_close_rows")  # the same check
    assert {test for test, _, _ in CATCHES} == tests

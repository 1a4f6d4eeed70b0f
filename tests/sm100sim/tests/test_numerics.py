"""Conversions and scalar arithmetic against NumPy, ml_dtypes and exact fractions.

Oracles share nothing with the simulator: ml_dtypes' casts for round to nearest, a sorted table of a
format's values for the directed modes, Python fractions for single-rounded arithmetic, integer
arithmetic on the bits for stochastic rounding.
"""

from __future__ import annotations

from fractions import Fraction

import _sm100sim_parts as parts
import ml_dtypes
import numpy as np
import pytest

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
BITS = {"f16": 16, "bf16": 16, "e5m2": 8, "e4m3": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4, "ue8m0": 8}
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "e5m2": 0x7F, "e4m3": 0x7F}
SIGNED = [name for name in DTYPES if name != "ue8m0"]
NONE = np.zeros(0, np.uint32)


def codes_of(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint16 if values.dtype.itemsize == 2 else np.uint8).astype(np.uint64)


def values_of(name: str) -> np.ndarray:
    """All values of a format in code order, as float64."""
    count = 1 << BITS[name]
    raw = np.arange(count, dtype=np.uint16 if BITS[name] == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        return raw.view(DTYPES[name]).astype(np.float64)


def encode(name, x, round="rn", satfinite=False, relu=False, sat=False, random=NONE, bits=0):
    x = np.ascontiguousarray(x, np.float64)
    return parts.encode(name, x, round, satfinite, relu, sat, random, bits)


def inputs() -> np.ndarray:
    """Every bf16 and every f16 number, and random float32 bit patterns."""
    rng = np.random.default_rng(1)
    random = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    narrow = rng.standard_normal(1 << 16).astype(np.float32) * np.exp2(
        rng.integers(-20, 20, 1 << 16)
    )
    with np.errstate(invalid="ignore"):
        return np.concatenate(
            [values_of("bf16"), values_of("f16"), random, narrow.astype(np.float32)]
        ).astype(np.float64)


def ties(name: str) -> np.ndarray:
    """Midpoints of neighbouring values, and their float32 neighbours on both sides."""
    finite = np.unique(values_of(name)[np.isfinite(values_of(name))])
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    return np.concatenate(
        [
            middle,
            np.nextafter(middle, np.float32(np.inf)),
            np.nextafter(middle, np.float32(-np.inf)),
        ]
    ).astype(np.float64)


@pytest.mark.parametrize("name", DTYPES)
def test_every_code_has_the_value_that_ml_dtypes_gives_it(name):
    got = parts.decode(name, np.arange(1 << BITS[name], dtype=np.uint64))
    np.testing.assert_array_equal(got, values_of(name))
    finite = np.isfinite(got)
    assert (np.signbit(got) == np.signbit(values_of(name)))[finite].all()


@pytest.mark.parametrize("name", SIGNED)
def test_round_to_nearest_even_is_ml_dtypes_cast(name):
    x = np.concatenate([inputs(), ties(name)])
    with np.errstate(all="ignore"):
        want = codes_of(x.astype(np.float32).astype(DTYPES[name]))
    got = encode(name, x)
    largest = np.nanmax(np.abs(np.where(np.isfinite(values_of(name)), values_of(name), 0)))
    if name in NAN:
        want = np.where(np.isnan(x), NAN[name], want)
        if (
            name == "e4m3"
        ):  # overflow is NaN of the input's sign in ml_dtypes, the canonical one here
            want = np.where((want & 0x7F) == 0x7F, np.where(np.isnan(x), 0x7F, want), want)
            got = np.where((got & 0x7F) == 0x7F, want, got)
        np.testing.assert_array_equal(got, want)
    else:
        inside = np.abs(x) <= largest
        np.testing.assert_array_equal(got[inside], want[inside])


@pytest.mark.parametrize("name", SIGNED)
def test_satfinite_clamps_to_the_largest_value_and_keeps_or_replaces_nan(name):
    x = inputs()
    got = encode(name, x, satfinite=True)
    table = values_of(name)
    largest = np.max(table[np.isfinite(table)])
    value = table[got]
    number = ~np.isnan(x)
    assert np.isfinite(value[number]).all()
    beyond = number & (np.abs(x) > largest)
    np.testing.assert_array_equal(value[beyond], np.sign(x[beyond]) * largest)
    inside = number & ~beyond
    with np.errstate(all="ignore"):
        want = codes_of(x[inside].astype(np.float32).astype(DTYPES[name]))
    np.testing.assert_array_equal(got[inside], want)
    if name in NAN:
        assert (got[~number] == NAN[name]).all()
    else:
        assert (value[~number] == largest).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding_picks_the_neighbour_on_that_side(name, mode):
    x = np.concatenate([inputs(), ties(name)])
    x = x[np.isfinite(x)]
    table = np.unique(values_of(name)[np.isfinite(values_of(name))])
    x = x[(x >= table[0]) & (x <= table[-1])]
    below = table[np.searchsorted(table, x, side="right") - 1]
    above = table[np.searchsorted(table, x, side="left")]
    want = {"rm": below, "rp": above, "rz": np.where(x > 0, below, above)}[mode]
    np.testing.assert_array_equal(values_of(name)[encode(name, x, mode)], want)


def test_directed_rounding_beyond_the_range():
    big = np.array([1e6, -1e6])
    assert list(encode("f16", big, "rz")) == [0x7BFF, 0xFBFF]
    assert list(encode("f16", big, "rp")) == [0x7C00, 0xFBFF]
    assert list(encode("f16", big, "rm")) == [0x7BFF, 0xFC00]
    assert list(encode("f16", np.array([1e-30, -1e-30]), "rp")) == [1, 0x8000]


@pytest.mark.parametrize("mode", ["rz", "rp"])
@pytest.mark.parametrize("satfinite", [False, True])
def test_ue8m0_takes_the_exponent_of_the_magnitude(mode, satfinite):
    x = inputs()
    got = encode("ue8m0", x, mode, satfinite)
    magnitude = np.abs(x)
    with np.errstate(all="ignore"):
        exponent = (np.floor if mode == "rz" else np.ceil)(np.log2(magnitude))
        power = np.exp2(np.round(np.log2(magnitude)))
        exponent = np.where(power == magnitude, np.round(np.log2(magnitude)), exponent)
        want = np.where(magnitude <= 2.0**-127, 0, exponent + 127)
    want = np.where(want > 0xFE, 0xFE if satfinite else 0xFF, want)
    want = np.where(np.isinf(x), 0xFE if satfinite else 0xFF, want)
    want = np.where(np.isnan(x), 0xFF, want).astype(np.uint64)
    np.testing.assert_array_equal(got, want)


def test_tf32_rounds_thirteen_bits_away_in_each_mode():
    x = inputs()
    x = x[np.isfinite(x)].astype(np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    low, rest = bits & 0x1FFF, bits & ~np.uint64(0x1FFF)
    odd = (bits >> 13) & 1
    want = {"rz": rest, "rna": rest + np.where(low >= 0x1000, 0x2000, 0).astype(np.uint64)}
    want["rn"] = rest + np.where((low > 0x1000) | ((low == 0x1000) & (odd == 1)), 0x2000, 0).astype(
        np.uint64
    )
    for mode, expected in want.items():
        np.testing.assert_array_equal(encode("tf32", x, mode), expected)


def test_relu_zeroes_negatives_and_keeps_the_canonical_nan():
    x = np.array([-1.0, -0.0, 0.0, 2.0, np.nan, -np.inf])
    assert list(encode("bf16", x, relu=True)) == [0, 0, 0, 0x4000, 0x7FFF, 0]
    assert list(encode("f16", np.array([-3.0, 0.25, 7.0, np.nan]), sat=True)) == [
        0,
        0x3400,
        0x3C00,
        0,
    ]


def test_stochastic_rounding_carries_out_of_the_random_bits():
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(20000) * np.exp2(rng.integers(-10, 10, 20000))).astype(np.float32)
    random = rng.integers(0, 1 << 16, x.size, dtype=np.uint32)
    bits = x.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(
        encode("bf16", x, "rs", random=random, bits=16), (bits + random) >> 16
    )
    half = x[np.abs(x) > 2.0**-14]
    random = random[np.abs(x) > 2.0**-14] & 0x1FFF
    raised = (
        ((half.view(np.uint32).astype(np.uint64) + random) & ~np.uint64(0x1FFF))
        .astype(np.uint32)
        .view(np.float32)
    )
    np.testing.assert_array_equal(
        encode("f16", half, "rs", random=random, bits=13), codes_of(raised.astype(np.float16))
    )


def test_packed_forms_put_the_first_source_on_top():
    assert parts.pack2("e4m3", 1.0, 2.0, "rn", True, 0) == 0x3840
    assert parts.pack2("e2m1", 1.0, 2.0, "rn", True, 0) == 0x24
    assert parts.pack2("bf16", 1.0, 2.0, "rn", False, 0) == 0x3F804000
    assert parts.pack2("ue8m0", 1.5, 0.75, "rp", True, 0) == 0x807F
    assert parts.pack4("e2m1", 0.5, 1.0, 1.5, 6.0, "rn", 0) == 0x1237
    assert parts.pack4("e4m3", 1.0, 2.0, 4.0, 8.0, "rs", 0) == 0x38404850
    assert parts.repack2("f16", "e4m3", 0x3840, False, False) == 0x3C004000
    assert parts.repack2("f16", "e2m1", 0x24, False, False) == 0x3C004000
    assert parts.repack2("bf16", "ue8m0", 0x7F80, False, False) == 0x3F804000
    assert parts.repack2("e4m3", "f16", 0x3C00C000, True, True) == 0x3800


@pytest.mark.parametrize(
    "bits,signed", [(8, True), (16, False), (32, True), (32, False), (64, True), (64, False)]
)
@pytest.mark.parametrize(
    "mode,function", [("rn", np.rint), ("rz", np.trunc), ("rm", np.floor), ("rp", np.ceil)]
)
def test_float_to_integer_rounds_and_clamps(bits, signed, mode, function):
    x = np.concatenate(
        [inputs()[::7], [0.5, 1.5, 2.5, -0.5, -2.5, 127.5, 2.0**31, -(2.0**31), 2.0**63, 2.0**64]]
    )
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    got = parts.to_integer(np.ascontiguousarray(x), mode, bits, signed, False)
    for value, code in zip(x[::11], got[::11], strict=True):
        if np.isnan(value):
            want = 0 if bits < 64 else 1 << 63
        elif np.isinf(value):
            want = high if value > 0 else low
        else:
            want = min(max(int(function(value)), low), high)
        assert int(code) == want % (1 << bits)


def test_integer_to_float_is_rounded_once():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 1 << 63, 4000, dtype=np.uint64) >> rng.integers(
        0, 63, 4000, dtype=np.uint64
    )
    np.testing.assert_array_equal(
        parts.from_integer("f32", x, False, "rn"), x.astype(np.float32).view(np.uint32)
    )
    signed = x.astype(np.int64) * np.where(rng.random(4000) < 0.5, 1, -1)
    np.testing.assert_array_equal(
        parts.from_integer("f64", signed.view(np.uint64), True, "rn"),
        signed.astype(np.float64).view(np.uint64),
    )


# ---- arithmetic ----------------------------------------------------------------------------------


def round_fraction(x: Fraction, mode: str, mantissa: int, emin: int, emax: int) -> float:
    """One rounding of an exact number to a binary format."""
    if x == 0:
        return 0.0
    magnitude, negative = abs(x), x < 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, emin) - mantissa)
    whole, rest = divmod(magnitude, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    value = (whole + up) * unit
    limit = (2 - Fraction(1, 2**mantissa)) * Fraction(2) ** emax
    if value > limit:
        to_infinity = mode == "rn" or (mode == "rp" and not negative) or (mode == "rm" and negative)
        return (-1 if negative else 1) * (float("inf") if to_infinity else float(limit))
    return (-1 if negative else 1) * float(value)


def floats(seed: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    wide = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    near = (
        (rng.standard_normal(count) * np.exp2(rng.integers(-3, 3, count)))
        .astype(np.float32)
        .view(np.uint32)
    )
    mix = np.where(rng.random(count) < 0.3, wide, near).astype(np.uint32)
    special = np.array(
        [0, 0x80000000, 1, 0x80000001, 0x7F7FFFFF, 0x00800000, 0x3F800000, 0xBF800000], np.uint32
    )
    mix[:: count // 64] = rng.choice(special, mix[:: count // 64].size)
    return np.where((mix & 0x7F800000) == 0x7F800000, mix & 0x807FFFFF, mix).astype(np.uint32)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "mul", "fma", "div"])
def test_f32_arithmetic_is_rounded_once_in_each_mode(op, mode):
    a, b, c = (floats(s, 1500) for s in (4, 5, 6))
    c[::3] = a[::3] ^ 0x80000000  # cancellation
    got = parts.arith_f32(op, a, b, c, mode, False, False).view(np.float32)
    for x, y, z, result in zip(
        a.view(np.float32), b.view(np.float32), c.view(np.float32), got, strict=True
    ):
        if op == "div" and y == 0:
            continue
        fx, fy, fz = Fraction(float(x)), Fraction(float(y)), Fraction(float(z))
        exact = {
            "add": fx + fy,
            "mul": fx * fy,
            "fma": fx * fy + fz,
            "div": fx / fy if fy else Fraction(0),
        }[op]
        assert float(result) == round_fraction(exact, mode, 23, -126, 127), (x, y, z)


def test_f32_zero_signs_nan_ftz_and_saturation():
    def one(op, a, b, c=0, mode="rn", ftz=False, sat=False):
        arrays = [np.array([v], np.uint32) for v in (a, b, c)]
        return int(parts.arith_f32(op, *arrays, mode, ftz, sat)[0])

    plus, minus = 0x3F800000, 0xBF800000
    assert one("add", plus, minus) == 0 and one("add", plus, minus, mode="rm") == 0x80000000
    assert (
        one("add", 0x80000000, 0x80000000) == 0x80000000
        and one("add", 0x80000000, 0, mode="rz") == 0
    )
    assert one("mul", 0x80000000, plus) == 0x80000000
    assert one("fma", plus, plus, minus, mode="rm") == 0x80000000
    assert one("add", 0x7F800000, 0xFF800000) == 0x7FFFFFFF
    assert (
        one("mul", 1, 0x3F000000, ftz=True) == 0
        and one("mul", 0x80800000, 0x3F000000, ftz=True) == 0x80000000
    )
    assert one("add", 0x7FC00000, plus, sat=True) == 0 and one("add", plus, plus, sat=True) == plus
    assert (
        parts.arith_f32x2("fma", 0x40000000_3F800000, 0x40400000_40000000, 0x3F800000_BF800000)
        == 0x40E00000_3F800000
    )


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f32_square_root_is_rounded_once(mode):
    a = floats(7, 1000) & 0x7FFFFFFF
    got = parts.arith_f32("sqrt", a, a, a, mode, False, False).view(np.float32)
    for x, result in zip(a.view(np.float32), got, strict=True):
        fx, fr = Fraction(float(x)), Fraction(float(result))
        step = Fraction(float(np.spacing(result)))
        below, above = fr - step, fr + step
        if mode in ("rz", "rm"):
            assert fr**2 <= fx < above**2
        elif mode == "rp":
            assert max(below, 0) ** 2 <= fx <= fr**2 and (fr == 0 or below**2 < fx)
        else:
            assert (fr - step / 2) ** 2 <= fx <= (fr + step / 2) ** 2 or fx == 0


@pytest.mark.parametrize(
    "which,dtype,mantissa,emin,emax",
    [("f16", np.float16, 10, -14, 15), ("bf16", ml_dtypes.bfloat16, 7, -126, 127)],
)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_packed_half_arithmetic_is_rounded_once_per_half(which, dtype, mantissa, emin, emax, op):
    rng = np.random.default_rng(8)
    a, b, c = (rng.integers(0, 1 << 32, 2000, dtype=np.uint32) for _ in range(3))
    got = parts.arith_half(op, which, a, b, c, False, False, False)
    with np.errstate(invalid="ignore"):
        halves = [v.view(np.uint16).view(dtype).astype(np.float64) for v in (a, b, c)]
        result = got.view(np.uint16).view(dtype).astype(np.float64)
    for x, y, z, r in zip(*halves, result, strict=True):
        used = (x, y, z) if op == "fma" else (x, y)
        if not np.isfinite(used).all():
            with np.errstate(all="ignore"):
                want = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + z}[op]
            assert np.isnan(r) if np.isnan(want) else r == want
            continue
        fx, fy, fz = Fraction(x), Fraction(y), Fraction(z) if np.isfinite(z) else Fraction(0)
        exact = {"add": fx + fy, "sub": fx - fy, "mul": fx * fy, "fma": fx * fy + fz}[op]
        assert r == round_fraction(exact, "rn", mantissa, emin, emax)


def test_mixed_precision_add_widens_exactly():
    rng = np.random.default_rng(9)
    a = rng.integers(0, 1 << 16, 3000, dtype=np.uint32)
    c = floats(10, 3000)
    wide = a.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(all="ignore"):
        want = wide + c.view(np.float32)
    got = parts.add_f32_narrow("bf16", a, c, False).view(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("maximum", [False, True])
def test_minimum_and_maximum_prefer_numbers_and_order_zeros(maximum):
    a, b = floats(11, 2000), floats(12, 2000)
    a[:8], b[:8] = (
        [0x7FC00000, 0x3F800000, 0x7FC00000, 0, 0x80000000, 0x80000000, 0, 5],
        [0x3F800000, 0x7FC00000, 0x7F800001, 0x80000000, 0, 0x80000000, 0, 6],
    )
    got = parts.min_max("f32", a, b, maximum, False, False, False)
    want = (np.fmax if maximum else np.fmin)(a.view(np.float32), b.view(np.float32))
    np.testing.assert_array_equal(got.view(np.float32), want)
    assert got[2] == 0x7FFFFFFF
    assert list(got[3:7]) == (
        [0, 0, 0x80000000, 0] if maximum else [0x80000000, 0x80000000, 0x80000000, 0]
    )
    strict = parts.min_max("f32", a, b, maximum, False, True, False)
    assert list(strict[:3]) == [0x7FFFFFFF] * 3
    signed = parts.min_max(
        "f32",
        np.array([0xC0000000], np.uint32),
        np.array([0x3F800000], np.uint32),
        maximum,
        False,
        False,
        True,
    )
    assert signed[0] == (0xC0000000 if maximum else 0xBF800000)


@pytest.mark.parametrize(
    "name,function",
    [
        ("ex2", np.exp2),
        ("lg2", np.log2),
        ("rcp", np.reciprocal),
        ("sqrt", np.sqrt),
        ("tanh", np.tanh),
        ("sin", np.sin),
        ("cos", np.cos),
    ],
)
def test_approximations_are_the_mathematics_to_the_last_bit_but_one(name, function):
    x = np.random.default_rng(13).uniform(0.01, 20, 2000).astype(np.float32)
    got = parts.approximate(name, "f32", x.view(np.uint32), False).view(np.float32)
    np.testing.assert_allclose(got, function(x.astype(np.float64)), rtol=2.0**-24)
    special = np.array([0, 0x7F800000, 0x7FC00000], np.uint32)
    assert np.isnan(parts.approximate(name, "f32", special, False).view(np.float32)[2])

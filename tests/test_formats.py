"""`jax_megamoe.formats` on every code, tie, scale byte and boundary, against the oracle and
ml_dtypes.

Where inputs cannot be enumerated (float32), they are chosen around every place where the result
changes. Results are compared as codes and bits; only NaN is compared as NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import oracle
from jax_megamoe import dequantize_fp4, dequantize_fp8, formats, quantize_fp4, quantize_fp8
from oracle import E2M1, E4M3, E8M0, Array, widen

BF16 = ml_dtypes.bfloat16
E4M3_TYPE = ml_dtypes.float8_e4m3fn
E8M0_TYPE = ml_dtypes.float8_e8m0fnu

ALL_BF16 = np.arange(65536, dtype=np.uint16).view(BF16)
BYTES = np.arange(256, dtype=np.uint8)


def eager(function: Callable[..., Any], *arguments: Any) -> Any:
    return jax.tree.map(np.asarray, function(*map(jnp.asarray, arguments)))


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    return eager(jax.jit(function), *arguments)


@pytest.fixture(params=[eager, compiled], ids=lambda apply: apply.__name__)
def mode(request: pytest.FixtureRequest) -> Any:
    """Applies a function and returns NumPy arrays, in both ways where that is cheap."""
    return request.param


def raw(array: Array) -> Array:
    return array.view(np.uint8)


def around(values: Array) -> Array:
    """Each float32 value of either sign, with its neighbours."""
    values = np.asarray(values, np.float32)
    values = np.concatenate(
        [
            values,
            np.nextafter(values, np.float32(0)),
            np.nextafter(values, np.finfo(np.float32).max),
        ]
    )
    return np.concatenate([values, -values])


def in_groups(amax: Array, filling: Array | None = None) -> Array:
    """One group of 32 per amax: it stands at a random place among values not larger, of either
    sign."""
    rng = np.random.default_rng(0)
    groups = np.zeros((len(amax), 32)) if filling is None else filling
    groups = np.clip(groups, -np.abs(amax)[:, None], np.abs(amax)[:, None])
    groups[np.arange(len(amax)), rng.integers(0, 32, len(amax))] = amax
    return groups


# --- E2M1 ---------------------------------------------------------------------------------------


def test_e2m1_decodes_every_code(mode: Any) -> None:
    codes = BYTES[:16]
    for dtype in (jnp.float32, jnp.bfloat16):
        got = mode(lambda c, dtype=dtype: formats.decode_e2m1(c, dtype), codes)
        assert got.dtype == dtype
        np.testing.assert_array_equal(widen(got), widen(codes.view(ml_dtypes.float4_e2m1fn)))
        # The code of negative zero decodes to a zero; which one no product can tell.
        assert (np.signbit(widen(got)) == np.signbit(E2M1))[np.arange(16) != 8].all()


def test_e2m1_encodes_its_own_values(mode: Any) -> None:
    got = mode(formats.encode_e2m1, E2M1.astype(np.float32))
    np.testing.assert_array_equal(got, [*range(8), 0, *range(9, 16)])


def test_e2m1_rounds_ties_to_even_and_their_neighbours_to_nearest(mode: Any) -> None:
    ties = (E2M1[:7] + E2M1[1:8]) / 2
    # Between codes c and c + 1 the even one wins; 0.25 goes to 0, never to the code of -0.
    np.testing.assert_array_equal(
        mode(formats.encode_e2m1, ties.astype(np.float32)), [0, 2, 2, 4, 4, 6, 6]
    )
    np.testing.assert_array_equal(
        mode(formats.encode_e2m1, -ties.astype(np.float32)), [0, 10, 10, 12, 12, 14, 14]
    )
    values = around(ties)
    got = mode(formats.encode_e2m1, values)
    np.testing.assert_array_equal(got, oracle.encode_e2m1(widen(values)))


def test_e2m1_saturates_at_6_and_has_no_negative_zero(mode: Any) -> None:
    values = np.float32([6, 6.0001, 7, 8, 1e30, np.inf, -7, -np.inf, -0.0, -0.25, -1e-30])
    np.testing.assert_array_equal(mode(formats.encode_e2m1, values), [7] * 6 + [15] * 2 + [0] * 3)


def test_e2m1_encodes_every_bfloat16_as_ml_dtypes_without_its_negative_zero(mode: Any) -> None:
    finite = ALL_BF16[np.isfinite(widen(ALL_BF16))]
    got = mode(formats.encode_e2m1, finite)
    want = raw(finite.astype(np.float32).astype(ml_dtypes.float4_e2m1fn))
    np.testing.assert_array_equal(got, np.where(want == 8, 0, want))
    np.testing.assert_array_equal(got, oracle.encode_e2m1(widen(finite)))


def test_fp4_packs_the_even_element_into_the_low_nibble(mode: Any) -> None:
    codes = np.stack([BYTES & 15, BYTES >> 4], axis=-1).reshape(8, 64)
    packed = mode(formats.pack_fp4, codes)
    assert packed.dtype == np.int8 and packed.shape == (8, 32)
    np.testing.assert_array_equal(raw(packed).reshape(-1), BYTES)
    np.testing.assert_array_equal(mode(formats.unpack_fp4, packed), codes)
    np.testing.assert_array_equal(raw(packed), raw(oracle.pack(codes)))


# --- E4M3 ---------------------------------------------------------------------------------------


def test_e4m3_decodes_every_code(mode: Any) -> None:
    codes = BYTES.view(E4M3_TYPE)
    for dtype in (jnp.float32, jnp.bfloat16):
        got = widen(mode(lambda q, dtype=dtype: formats.decode_e4m3(q, dtype), codes))
        np.testing.assert_array_equal(got, E4M3)
        assert (np.signbit(got) == np.signbit(E4M3))[~np.isnan(E4M3)].all()


def test_e4m3_encodes_every_code_tie_and_neighbour(mode: Any) -> None:
    finite = E4M3[:0x7F]
    values = np.concatenate([around(finite), around((finite[1:] + finite[:-1]) / 2)])
    got = raw(mode(formats.encode_e4m3, values))
    np.testing.assert_array_equal(got, oracle.encode_e4m3(widen(values)))
    np.testing.assert_array_equal(got, raw(np.clip(values, -448, 448).astype(E4M3_TYPE)))


def test_e4m3_saturates_at_448_where_a_cast_gives_nan(mode: Any) -> None:
    values = np.float32([448, 449, 463.9, 464, 480, 1e30, np.inf])
    np.testing.assert_array_equal(raw(mode(formats.encode_e4m3, values)), [0x7E] * 7)
    np.testing.assert_array_equal(raw(mode(formats.encode_e4m3, -values)), [0xFE] * 7)


def test_e4m3_keeps_nan(mode: Any) -> None:
    got = raw(mode(formats.encode_e4m3, np.float32([np.nan, -np.nan])))
    assert ((got & 0x7F) == 0x7F).all()


def test_e4m3_encodes_every_bfloat16(mode: Any) -> None:
    got = raw(mode(formats.encode_e4m3, ALL_BF16))
    want = oracle.encode_e4m3(widen(ALL_BF16))
    nan = np.isnan(widen(ALL_BF16))
    np.testing.assert_array_equal(got[~nan], want[~nan])
    assert ((got[nan] & 0x7F) == 0x7F).all()


# --- scales -------------------------------------------------------------------------------------


def test_e8m0_decodes_every_byte() -> None:
    """Bits are compared: a float32 comparison of the denormal of byte 0 may flush it."""
    want = E8M0.astype(np.float32).view(np.uint32)
    for scale in (BYTES, BYTES.view(E8M0_TYPE)):
        for decode in (formats.decode_e8m0, jax.jit(formats.decode_e8m0)):
            got = np.asarray(decode(jnp.asarray(scale)))
            assert got.dtype == np.float32 and np.isnan(got[255])
            np.testing.assert_array_equal(got.view(np.uint32)[1:255], want[1:255])
            assert got.view(np.uint32)[0] in (want[0], 0)


def test_e8m0_table_of_the_oracle_is_ml_dtypes() -> None:
    np.testing.assert_array_equal(E8M0, widen(BYTES.view(E8M0_TYPE)))


SCALE_FORMS: dict[str, Callable[[Array], Array]] = {
    "uint8": lambda b: b,
    "float8_e8m0fnu": lambda b: b.view(E8M0_TYPE),
    "float32": lambda b: E8M0[b].astype(np.float32),
    "int32": lambda b: np.ascontiguousarray(b).view(np.dtype("<i4")),
}


@pytest.mark.parametrize("form", SCALE_FORMS)
def test_every_scale_form_gives_every_byte(form: str, mode: Any) -> None:
    bytes_ = BYTES.reshape(2, 4, 32)
    got = mode(formats.scale_bytes, SCALE_FORMS[form](bytes_))
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, bytes_)


def test_int32_scales_hold_the_lowest_group_in_the_lowest_byte(mode: Any) -> None:
    got = mode(formats.scale_bytes, np.array([0x04030201, -2], np.int32))
    np.testing.assert_array_equal(got, [1, 2, 3, 4, 254, 255, 255, 255])


def test_float32_scale_that_is_no_power_of_two_becomes_nan_never_a_rounded_number(
    mode: Any,
) -> None:
    powers = E8M0[1:255].astype(np.float32)
    bad = np.concatenate(
        [np.nextafter(powers, np.float32(np.inf)), np.nextafter(powers, np.float32(0)), -powers]
    )
    other = np.float32([0.0, -0.0, 3.0, np.inf, -np.inf, np.nan, -np.nan, 2.0**-126 * 1.5])
    denormals = np.array([1, 1 << 21, (1 << 22) + 1, (1 << 22) - 1, (1 << 23) - 1], np.uint32).view(
        np.float32
    )
    got = mode(formats.scale_bytes, np.concatenate([bad, other, denormals]))
    np.testing.assert_array_equal(got, 255)


@pytest.mark.parametrize("form", SCALE_FORMS)
def test_dequantised_values_have_the_same_bits_in_every_scale_form(form: str, mode: Any) -> None:
    rng = np.random.default_rng(1)
    scale = np.concatenate([BYTES, BYTES]).reshape(16, 32)
    codes = rng.integers(-128, 128, (16, 512)).astype(np.int8)
    want = mode(dequantize_fp4, codes, scale)
    got = mode(dequantize_fp4, codes, SCALE_FORMS[form](scale))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    q = rng.integers(0, 256, (16, 1024)).astype(np.uint8).view(E4M3_TYPE)
    want = mode(dequantize_fp8, q, scale)
    got = mode(dequantize_fp8, q, SCALE_FORMS[form](scale))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


# --- dequantising -------------------------------------------------------------------------------


def check_dequantised(got: Array, want: Array) -> None:
    """Equal to the exact product rounded to float32; what ends below 2^-126 may be flushed to
    zero."""
    want = oracle.f32(want)
    tiny = np.abs(want) < 2.0**-126
    np.testing.assert_array_equal(got[~tiny], want[~tiny].astype(np.float32))
    assert ((got == 0) | (got == want.astype(np.float32)))[tiny].all()


def test_fp4_dequantises_every_code_times_every_scale_byte() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    want = oracle.dequantise(E2M1[codes], BYTES[:, None])
    check_dequantised(
        compiled(dequantize_fp4, oracle.pack(codes), BYTES[:, None].view(E8M0_TYPE)), want
    )


def test_fp8_dequantises_every_code_times_every_scale_byte() -> None:
    codes = np.tile(BYTES, (256, 1))
    scale = np.repeat(BYTES[:, None], 8, axis=1)
    want = oracle.dequantise(E4M3[codes], scale)
    check_dequantised(compiled(dequantize_fp8, codes.view(E4M3_TYPE), scale.view(E8M0_TYPE)), want)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dequantising_gives_the_type_asked_for(dtype: Any) -> None:
    codes, scale = quantize_fp4(jnp.linspace(-3, 3, 64).reshape(2, 32))
    got = dequantize_fp4(codes, scale, dtype)
    assert got.dtype == dtype and dequantize_fp8(*quantize_fp8(got), dtype=dtype).dtype == dtype
    np.testing.assert_array_equal(
        widen(got), widen(dequantize_fp4(codes, scale))
    )  # exact in all three


# --- quantising ---------------------------------------------------------------------------------


def check_fp8(x: Array, apply: Any = compiled) -> None:
    q, scale = apply(quantize_fp8, x)
    assert q.dtype == E4M3_TYPE and q.shape == x.shape
    assert scale.dtype == E8M0_TYPE and scale.shape == (*x.shape[:-1], x.shape[-1] // 32)
    codes, bytes_ = oracle.quantise_fp8(widen(x))
    np.testing.assert_array_equal(raw(scale), bytes_)
    finite = np.repeat(bytes_ != 255, 32, axis=-1)
    np.testing.assert_array_equal(raw(q)[finite], codes[finite])


def check_fp4(x: Array, apply: Any = compiled) -> None:
    codes, scale = apply(quantize_fp4, x)
    assert codes.dtype == np.int8 and codes.shape == (*x.shape[:-1], x.shape[-1] // 2)
    assert scale.dtype == E8M0_TYPE and scale.shape == (*x.shape[:-1], x.shape[-1] // 32)
    want, bytes_ = oracle.quantise_fp4(widen(x))
    np.testing.assert_array_equal(raw(scale), bytes_)
    finite = np.repeat(bytes_ != 255, 16, axis=-1)
    np.testing.assert_array_equal(codes[finite], want[finite])


CHECKS = {"fp8": (check_fp8, 448.0), "fp4": (check_fp4, 6.0)}


@pytest.mark.parametrize("kind", CHECKS)
def test_every_bfloat16_is_quantised_right_as_the_largest_of_its_group(kind: str) -> None:
    check, _ = CHECKS[kind]
    rng = np.random.default_rng(2)
    amax = widen(ALL_BF16)
    size = np.where(np.isfinite(amax), np.abs(amax), 1.0)
    filling = (
        rng.standard_normal((len(amax), 32))
        * size[:, None]
        * 2.0 ** rng.integers(-12, 1, (len(amax), 32))
    )
    with np.errstate(over="ignore", invalid="ignore"):
        groups = in_groups(amax, filling).astype(BF16)
    check(groups.reshape(-1, 128))


@pytest.mark.parametrize("kind", CHECKS)
def test_every_bfloat16_is_rounded_right_under_a_fixed_scale(kind: str) -> None:
    check, largest = CHECKS[kind]
    # Groups led by the largest value of the format at several scales: all inputs up to it, E4M3's
    # subnormals and every tie of eight-bit significands among them.
    for exponent in (-12, 0, 40):
        lead = largest * 2.0**exponent
        values = widen(ALL_BF16)
        values = values[np.isfinite(values) & (np.abs(values) <= lead)]
        values = np.concatenate([values, np.zeros(-len(values) % 31)]).reshape(-1, 31)
        check(np.concatenate([np.full((len(values), 1), lead), values], axis=1).astype(BF16))


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("sign", [1, -1])
def test_scale_decision_at_every_boundary_and_one_ulp_around(kind: str, sign: int) -> None:
    check, largest = CHECKS[kind]
    edge = largest * E8M0[1:245]
    values = np.concatenate([edge, E8M0[1:254], [1e-4, 5e-5, 2e-4, np.finfo(np.float32).max]])
    values = around(values)
    values = values[values > 0] * np.float32(sign)
    rng = np.random.default_rng(3)
    filling = rng.standard_normal((len(values), 32)) * np.abs(values)[:, None] * 0.5
    check(in_groups(values, filling).astype(np.float32))


@pytest.mark.parametrize(("kind", "largest"), [("fp8", 448.0), ("fp4", 6.0)])
def test_exact_power_of_two_times_the_largest_value_stays_and_one_ulp_more_goes_up(
    kind: str, largest: float
) -> None:
    quantise = quantize_fp8 if kind == "fp8" else quantize_fp4
    # From the amax whose scale lies just above the floor's to float32's last.
    exponent = np.arange(-14, 119)
    edge = np.ldexp(np.float32(largest), exponent)
    for values, more in ((edge, 0), (np.nextafter(edge, np.float32(np.inf)), 1)):
        _, scale = compiled(quantise, in_groups(values).astype(np.float32))
        np.testing.assert_array_equal(raw(scale)[:, 0].astype(int), exponent + 127 + more)


@pytest.mark.parametrize(("kind", "byte"), [("fp8", 127 - 22), ("fp4", 127 - 15)])
def test_floor_of_amax_bounds_the_scale(kind: str, byte: int) -> None:
    quantise = quantize_fp8 if kind == "fp8" else quantize_fp4
    # 1e-4 / 448 lies in (2^-23, 2^-22], 1e-4 / 6 in (2^-16, 2^-15].
    for amax in (0.0, 1e-30, 1e-6, 9e-5, 1e-4):
        _, scale = compiled(quantise, in_groups(np.array([amax])).astype(np.float32))
        assert raw(scale)[0, 0] == byte, amax
    CHECKS[kind][0](in_groups(np.geomspace(1e-9, 1e-4, 200)).astype(np.float32))


@pytest.mark.parametrize("kind", CHECKS)
def test_group_of_zeros_has_zero_codes_and_a_finite_scale(kind: str) -> None:
    quantise = quantize_fp8 if kind == "fp8" else quantize_fp4
    x = np.zeros((2, 64), np.float32)
    x[0, 40] = 1
    x[1, :32] = -0.0
    codes, scale = compiled(quantise, x)
    assert (raw(scale) != 255).all()
    per_group = codes.shape[-1] // 2
    zeros = raw(codes)[[0, 1, 1]].reshape(3, 2, per_group)[[0, 1, 2], [0, 0, 1]]
    assert ((zeros & (0x7F if kind == "fp8" else 0xFF)) == 0).all()
    dequantise = dequantize_fp8 if kind == "fp8" else dequantize_fp4
    back = compiled(dequantise, codes, scale)
    assert (back[:, :32] == 0).all() and (back[1] == 0).all()


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_group_holding_nan_or_inf_gets_scale_byte_255_and_no_other_does(
    kind: str, dtype: Any, value: float
) -> None:
    quantise, dequantise = (
        (quantize_fp8, dequantize_fp8) if kind == "fp8" else (quantize_fp4, dequantize_fp4)
    )
    x = np.linspace(-2, 2, 96).reshape(1, 96).astype(dtype)
    x[0, 45] = value
    codes, scale = quantise(jnp.asarray(x))
    assert (raw(np.asarray(scale)) == 255).tolist() == [[False, True, False]]
    back = np.asarray(dequantise(codes, scale))
    assert np.isnan(back[0, 32:64]).all() and np.isfinite(np.delete(back[0], np.s_[32:64])).all()
    clean = np.linspace(-2, 2, 96).reshape(1, 96).astype(dtype)
    want, _ = quantise(jnp.asarray(clean))
    per_group = codes.shape[-1] // 3
    for group in (0, 2):
        at = np.s_[..., group * per_group : (group + 1) * per_group]
        np.testing.assert_array_equal(raw(np.asarray(codes))[at], raw(np.asarray(want))[at])


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize(
    "shape", [(32,), (0, 32), (3, 64), (2, 0, 32), (2, 3, 5, 96), (1, 1, 1, 1, 32)]
)
def test_leading_dimensions_of_any_number(kind: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    CHECKS[kind][0](x)


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_float_types_are_quantised_as_their_values(kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 256)) * 2.0 ** rng.integers(-10, 11, (64, 1))
    CHECKS[kind][0](x.astype(dtype))


@pytest.mark.parametrize("kind", CHECKS)
def test_eager_and_compiled_give_the_same_codes_and_values(kind: str) -> None:
    quantise, dequantise = (
        (quantize_fp8, dequantize_fp8) if kind == "fp8" else (quantize_fp4, dequantize_fp4)
    )
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((248, 32)) * E8M0[5:253, None]).astype(np.float32)
    x[7, 3], x[9, 4], x[11] = np.nan, np.inf, 0
    CHECKS[kind][0](x, eager)
    pairs = zip(
        (*eager(quantise, x), eager(dequantise, *quantise(x))),
        (*compiled(quantise, x), compiled(dequantise, *quantise(x))),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_array_equal(raw(one), raw(other))


@pytest.mark.parametrize("kind", CHECKS)
def test_quantising_what_was_dequantised_changes_nothing(kind: str) -> None:
    quantise, dequantise = (
        (quantize_fp8, dequantize_fp8) if kind == "fp8" else (quantize_fp4, dequantize_fp4)
    )
    x = np.random.default_rng(6).standard_normal((32, 256)).astype(np.float32)
    once = compiled(dequantise, *compiled(quantise, x))
    twice = compiled(dequantise, *compiled(quantise, once))
    np.testing.assert_array_equal(once, twice)


def test_formats_and_the_oracle_disagree_on_planted_faults() -> None:
    """That the checks above can fail: a cast instead of a quantiser, and scales one too large."""

    def cast(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(x).astype(jnp.float8_e4m3fn), quantize_fp8(x)[1]

    def doubled(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return quantize_fp8(x)[0], quantize_fp8(2 * x)[1]

    x = np.random.default_rng(7).standard_normal((4, 32)).astype(np.float32)
    for fault in (cast, doubled):
        with pytest.raises(AssertionError):
            check_fp8(x, lambda _, x, fault=fault: eager(fault, x))

"""The contract's number formats, E2M1 (FP4), E4M3 (FP8), UE8M0 scales, and their quantisers.

Everything here is plain jax.numpy: jittable, on any leading dimensions, groups of 32 along the last
axis (OCP Microscaling Formats v1.0, "MX-compliant" groups). Two constraints shaped it: dtype casts
are not used where they round differently (a cast to float8_e8m0fnu rounds to nearest and turns 0
into NaN, one to float8_e4m3fn overflows to NaN instead of saturating), and no step may rely on
float32 denormals, which XLA flushes on CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_megamoe import validation

GROUP = validation.GROUP  #: elements that share one UE8M0 scale
E4M3_MAX = 448.0
E2M1_MAX = 6.0
AMAX_FLOOR = 1e-4  #: lower bound on the largest magnitude of a group, as in the PyTorch original
NAN_SCALE = 255  #: the UE8M0 byte that means NaN

_MANTISSA_MASK = 0x7FFFFF
_INF_BITS = 0x7F800000


def pack_fp4(codes: Array) -> Array:
    """Packs 4-bit codes (uint8 [..., K]) in bytes, even k in the low nibble: int8 [..., K/2]."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return jax.lax.bitcast_convert_type(low | (high << 4), jnp.int8)


def unpack_fp4(packed: Array) -> Array:
    """The 4-bit codes (uint8, [..., K]) of packed bytes (int8 or uint8, [..., K/2])."""
    raw = jax.lax.bitcast_convert_type(packed, jnp.uint8)
    return jnp.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], 2 * raw.shape[-1])


def encode_e2m1(x: ArrayLike) -> Array:
    """E2M1 codes (uint8, 0..15) of x: round to nearest even, saturating at 6, no negative zero, NaN
    gives 0.
    """
    x = jnp.asarray(x, jnp.float32)
    magnitude = jnp.abs(x)
    # Midpoints between neighbouring values; a tie goes to the even code, hence > and >= in turn.
    code = jnp.zeros(x.shape, jnp.uint8)
    for midpoint, upper_is_even in (
        (0.25, False),
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        above = magnitude >= midpoint if upper_is_even else magnitude > midpoint
        code = code + above.astype(jnp.uint8)
    return code | jnp.where((x < 0) & (code > 0), jnp.uint8(8), jnp.uint8(0))


def decode_e2m1(codes: Array, dtype: DTypeLike = jnp.float32) -> Array:
    """Values of E2M1 codes (uint8, 0..15): +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}, exact in every float
    type here.
    """
    magnitude = (codes & 7).astype(jnp.int32)
    # From code 2 on, code bits 2:1 are an exponent with bias 1 and bit 0 the mantissa: float32 bits
    # by a shift.
    normal = jax.lax.bitcast_convert_type((magnitude + 252) << 22, jnp.float32)
    value = jnp.where(magnitude >= 2, normal, 0.5 * magnitude.astype(jnp.float32))
    return jnp.where(codes >= 8, -value, value).astype(dtype)


def encode_e4m3(x: ArrayLike) -> Array:
    """x as float8_e4m3fn: round to nearest even, saturating at 448 (inf too), NaN stays NaN."""
    x = jnp.asarray(x, jnp.float32)
    return jnp.clip(x, -E4M3_MAX, E4M3_MAX).astype(jnp.float8_e4m3fn)


def decode_e4m3(q: Array, dtype: DTypeLike = jnp.float32) -> Array:
    """Values of float8_e4m3fn codes; exact in bfloat16 and float32."""
    return q.astype(dtype)


def decode_e8m0(scale: Array) -> Array:
    """float32 values of UE8M0 bytes (uint8 or float8_e8m0fnu): 2^(b-127), NaN for 255.

    Byte 0 is 2^-127, a float32 denormal: arithmetic on it may see 0. Use `apply_scale` to scale by
    it.
    """
    bits = _as_bytes(scale).astype(jnp.int32)
    value = jnp.where(bits == 0, 1 << 22, bits << 23)
    value = jnp.where(bits == NAN_SCALE, _INF_BITS | 1 << 22, value)
    return jax.lax.bitcast_convert_type(value, jnp.float32)


def power_of_two(exponent: Array) -> Array:
    """float32 2^exponent for int32 exponents in -126..127 (normal numbers only)."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def apply_scale(values: Array, scale: Array, shift: ArrayLike = 0) -> Array:
    """values * 2^(byte - 127 - shift) in float32, NaN where the byte is 255; shapes broadcast.

    In two factors, so that a result in the normal range is exact for every byte, 0 and 254
    included.
    """
    byte = _as_bytes(scale).astype(jnp.int32)
    exponent = byte - 127 - shift
    half = exponent >> 1
    product = values.astype(jnp.float32) * power_of_two(half) * power_of_two(exponent - half)
    return jnp.where(byte == NAN_SCALE, jnp.float32(jnp.nan), product)


def scale_bytes(scale: Array, groups: int | None = None) -> Array:
    """The UE8M0 bytes (uint8) of a scale array in any of the four accepted forms.

    Args:
      scale: float8_e8m0fnu, uint8 (the bits), float32 (exact powers of two in 2^-127..2^127;
        anything else becomes byte 255, never a rounded number), or int32 (four bytes along the last
        axis, lowest first).
      groups: length of the last axis of the result, needed only where int32 holds padding bytes.
    """
    if scale.dtype == jnp.int32:
        raw = jax.lax.bitcast_convert_type(scale, jnp.uint8)
        raw = raw.reshape(*scale.shape[:-1], 4 * scale.shape[-1])
        return raw if groups is None else raw[..., :groups]
    if scale.dtype == jnp.float32:
        bits = jax.lax.bitcast_convert_type(scale, jnp.int32)
        exponent = bits >> 23  # negative numbers keep the sign and fail the range test
        exact = ((bits & _MANTISSA_MASK) == 0) & (exponent >= 1) & (exponent <= 254)
        byte = jnp.where(exact, exponent, NAN_SCALE)
        return jnp.where(bits == 1 << 22, 0, byte).astype(jnp.uint8)
    return _as_bytes(scale)


def quantize_fp4(x: ArrayLike) -> tuple[Array, Array]:
    """Quantises to MXFP4: E2M1 codes with one UE8M0 scale for each 32 values of the last axis.

    The scale is 2^ceil(log2(max(amax, 1e-4) / 6)); codes are rounded to nearest even and saturate
    at 6. A group of zeros has zero codes; a group that holds NaN or Inf has zero codes and scale
    byte 255 (NaN).

    Args:
      x: [..., K] floating point, K a multiple of 32.

    Returns:
      Packed codes, int8 [..., K/2] (even k in the low nibble), and scales,
      float8_e8m0fnu [..., K/32].

    Raises:
      ValueError: K is not a multiple of 32.
      TypeError: x is not floating point.
    """
    groups = _grouped(x, "quantize_fp4")
    scaled, byte = _normalise(
        groups, exponent_of_max=2, mantissa_of_max=0x400000, amax_floor=AMAX_FLOOR
    )
    codes = encode_e2m1(scaled).reshape(*groups.shape[:-2], GROUP * groups.shape[-2])
    return pack_fp4(codes), _as_scale(byte)


def dequantize_fp4(codes: Array, scale: Array, dtype: DTypeLike = jnp.float32) -> Array:
    """Values [..., K] of MXFP4 codes (int8 [..., K/2]) and scales [..., K/32] in any form."""
    validation.check_dequantizable("codes", codes, (jnp.int8, jnp.uint8), scale)
    return _dequantize(decode_e2m1(unpack_fp4(jnp.asarray(codes))), jnp.asarray(scale), dtype)


def quantize_fp8(x: ArrayLike) -> tuple[Array, Array]:
    """Quantises to MXFP8: E4M3 codes with one UE8M0 scale for each 32 values of the last axis.

    Step 1 of the contract: the scale is 2^ceil(log2(max(amax, 1e-4) / 448)), decided on the float32
    bits so that exact powers of two stay. A group that holds NaN or Inf has zero codes and scale
    byte 255 (NaN).

    Args:
      x: [..., K] floating point, K a multiple of 32.

    Returns:
      Codes, float8_e4m3fn [..., K], and scales, float8_e8m0fnu [..., K/32].

    Raises:
      ValueError: K is not a multiple of 32.
      TypeError: x is not floating point.
    """
    return _quantize_e4m3(_grouped(x, "quantize_fp8"), AMAX_FLOOR)


def quantize_intermediate(a: Array) -> tuple[Array, Array]:
    """Step 5 of the contract: as `quantize_fp8`, without the floor on amax; the exponent is at
    least -126.
    """
    return _quantize_e4m3(_grouped(a, "quantize_intermediate"), 0.0)


def dequantize_fp8(q: Array, scale: Array, dtype: DTypeLike = jnp.float32) -> Array:
    """Values [..., K] of MXFP8 codes (float8_e4m3fn [..., K]) and scales ([..., K/32], any accepted
    form).
    """
    validation.check_dequantizable("q", q, (jnp.float8_e4m3fn,), scale)
    return _dequantize(decode_e4m3(jnp.asarray(q)), jnp.asarray(scale), dtype)


def _quantize_e4m3(groups: Array, amax_floor: float) -> tuple[Array, Array]:
    scaled, byte = _normalise(
        groups, exponent_of_max=8, mantissa_of_max=0x600000, amax_floor=amax_floor
    )
    q = encode_e4m3(scaled).reshape(*groups.shape[:-2], GROUP * groups.shape[-2])
    return q, _as_scale(byte)


def _normalise(
    groups: Array, *, exponent_of_max: int, mantissa_of_max: int, amax_floor: float
) -> tuple[Array, Array]:
    """x / 2^e for groups [..., G, 32], and the scale bytes [..., G].

    e = max(ceil(log2(amax / format_max)), -126). With amax = m * 2^p and format_max = M * 2^P
    (1 <= m, M < 2), the logarithm is p - P, plus 1 where m > M: an integer comparison of the
    mantissas, exact where a division would round.
    """
    magnitude = jax.lax.bitcast_convert_type(jnp.abs(groups), jnp.int32)
    bad = jnp.max(magnitude, axis=-1) >= _INF_BITS
    amax = jnp.maximum(jnp.max(magnitude, axis=-1), _float_bits(amax_floor))
    exponent = (amax >> 23) - 127 - exponent_of_max
    exponent = exponent + ((amax & _MANTISSA_MASK) > mantissa_of_max).astype(jnp.int32)
    exponent = jnp.where(bad, 0, jnp.maximum(exponent, -126))
    scaled = groups * power_of_two(-exponent)[..., None]
    byte = jnp.where(bad, NAN_SCALE, exponent + 127).astype(jnp.uint8)
    return jnp.where(bad[..., None], 0.0, scaled), byte


def _dequantize(values: Array, scale: Array, dtype: DTypeLike) -> Array:
    groups = values.shape[-1] // GROUP
    byte = scale_bytes(scale, groups)
    if byte.shape != (*values.shape[:-1], groups):
        raise ValueError(
            f"scale has shape {scale.shape} (as bytes {byte.shape}), but the values have shape "
            f"{values.shape}: one scale for each {GROUP} values of the last axis is accepted."
        )
    grouped = values.reshape(*byte.shape, GROUP)
    return apply_scale(grouped, byte[..., None]).reshape(values.shape).astype(dtype)


def _grouped(x: ArrayLike, function: str) -> Array:
    validation.check_array("x", x)
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"{function}: x has dtype {x.dtype}; a floating-point array is accepted (cast it with "
            "x.astype(jnp.float32))."
        )
    if x.ndim == 0 or x.shape[-1] % GROUP:
        raise ValueError(
            f"{function}: the last axis of x has {x.shape[-1] if x.ndim else 'no'} elements "
            f"(shape {x.shape}); a multiple of {GROUP} is accepted, since {GROUP} values share "
            "one scale. Pad with zeros."
        )
    return x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)


def _as_bytes(scale: Array) -> Array:
    return scale if scale.dtype == jnp.uint8 else jax.lax.bitcast_convert_type(scale, jnp.uint8)


def _as_scale(byte: Array) -> Array:
    return jax.lax.bitcast_convert_type(byte, jnp.float8_e8m0fnu)


def _float_bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))

"""A slow model of the tensor core's sums in exact fractions, written from the published description
and from nothing else.

One instruction: every product is exact with the exponent ea + eb (+ scales); the accumulator joins
as one more term; all terms are cut toward zero to F fractional bits of the largest exponent; the
exact sum is converted once (toward zero to f32, to nearest even to f16). The FP4 kinds first add
groups of 16 products exactly; the group's exponent is that of the scales alone.
"""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

EMIN = {
    "f32": -126,
    "tf32": -126,
    "bf16": -126,
    "f16": -14,
    "e5m2": -14,
    "e4m3": -6,
    "e3m2": -2,
    "e2m3": 0,
    "e2m1": 0,
    "ue8m0": -127,
    "ue4m3": -6,
}
DTYPE = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
ZERO_EXPONENT = -133


def values(name: str, codes: np.ndarray) -> np.ndarray:
    """float64 values of codes, by ml_dtypes."""
    with np.errstate(invalid="ignore"):
        if name == "tf32":
            return (codes.astype(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
        if name == "ue4m3":
            return (codes & 0x7F).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        raw = codes.astype(np.uint16 if name in ("f16", "bf16") else np.uint8)
        return raw.view(DTYPE[name]).astype(np.float64)


def exponent(x: float, emin: int) -> int:
    return max(math.frexp(x)[1] - 1, emin)


def toward_zero(x: Fraction, unit: Fraction) -> Fraction:
    whole = abs(x) // unit * unit
    return whole if x >= 0 else -whole


def finish(x: Fraction, result: str) -> float:
    if x == 0:
        return 0.0
    magnitude = abs(x)
    e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** e > magnitude:
        e -= 1
    mantissa, emin, emax = (23, -126, 127) if result == "f32" else (10, -14, 15)
    unit = Fraction(2) ** (max(e, emin) - mantissa)
    whole, rest = divmod(magnitude, unit)
    if result == "f16" and (rest * 2 > unit or (rest * 2 == unit and whole % 2)):
        whole += 1
    out = whole * unit
    if out >= Fraction(2) ** (emax + 1):
        return math.copysign(math.inf, x)
    return math.copysign(float(out), x)


def dot(
    a,
    b,
    c,
    fa,
    fb,
    *,
    result="f32",
    scales_a=(),
    scales_b=(),
    scale_format="ue8m0",
    grouped=False,
    scale_input_d=0,
) -> float:
    """One element of D. a, b, c and the scales are floats; fa, fb name the formats (for the
    smallest exponents).
    """
    fraction = 35 if grouped else 25
    c = float(c) * 2.0**-scale_input_d if math.isfinite(c) else float(c)
    all_scales = [*scales_a, *scales_b]
    with np.errstate(invalid="ignore", over="ignore"):
        plain = np.float64(c)
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            s = i * len(scales_a) // len(a) if scales_a else 0
            plain += (
                np.float64(x) * np.float64(y) * (scales_a[s] * scales_b[s] if scales_a else 1.0)
            )
    if not np.isfinite([*a, *b, c, *all_scales]).all():
        return float(plain)
    terms = [(Fraction(c), exponent(c, EMIN[result] - 0) if c else ZERO_EXPONENT)]
    if scale_input_d and c:
        terms = [(Fraction(c), exponent(c * 2.0**scale_input_d, EMIN[result]) - scale_input_d)]
    size = 16 if grouped else 1
    for start in range(0, len(a), size):
        s = start * len(scales_a) // len(a) if scales_a else 0
        scale = Fraction(scales_a[s]) * Fraction(scales_b[s]) if scales_a else Fraction(1)
        e = (
            exponent(scales_a[s], EMIN[scale_format]) + exponent(scales_b[s], EMIN[scale_format])
            if scales_a and scale
            else 0
        )
        value = (
            sum(
                (
                    Fraction(x) * Fraction(y)
                    for x, y in zip(a[start : start + size], b[start : start + size], strict=True)
                ),
                Fraction(0),
            )
            * scale
        )
        if not grouped and value:
            e += exponent(a[start], EMIN[fa]) + exponent(b[start], EMIN[fb])
        terms.append((value, e if value else ZERO_EXPONENT))
    top = max(e for _, e in terms)
    unit = Fraction(2) ** (top - fraction)
    return finish(sum((toward_zero(v, unit) for v, _ in terms), Fraction(0)), result)

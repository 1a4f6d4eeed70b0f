"""The layer in NumPy float64, written from the contract alone: the judge of every implementation.

It decides what the right bits are; `data.py` makes inputs, `contract.py` compares, `mutants.py`
plants faults by overriding one method of `Oracle`. It shares no code with the package: the formats
are built here from the definitions in OCP MX v1.0 (E2M1, E4M3, E8M0) by exact arithmetic, and
ml_dtypes serves as a type only. Everything is a float64 array whose values lie on the lattice of
the type the contract names; `f32` and `bf16` are the places where the contract rounds. A float64
operation on two float32 operands followed by `f32` is the correctly rounded float32 operation (53
>= 2 * 24 + 2).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GROUP = 32
SCALE_NAN = 255
E4M3_MAX = 448.0
E2M1_MAX = 6.0
# Both quantisers of the public API and step 1 floor amax here; step 5 does not.
AMAX_FLOOR = float(np.float32(1e-4))


# --- number formats -----------------------------------------------------------------------------


def nearest(value: Array, mantissa_bits: int, least_exponent: int) -> Array:
    """Round to nearest even onto an unbounded binary format with gradual underflow.

    The quotient by the spacing has the parity of the mantissa, so `rint` breaks ties as IEEE does.
    """
    value = np.asarray(value, np.float64)
    exponent = np.maximum(np.frexp(value)[1] - 1, least_exponent)
    spacing = np.ldexp(1.0, exponent - mantissa_bits)
    return np.copysign(np.rint(np.abs(value) / spacing) * spacing, value)


def widen(value: Array) -> Array:
    """To float64 from any float type (a cast of a signalling NaN would warn)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(value).astype(np.float64)


def f32(value: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value, np.float64).astype(np.float32).astype(np.float64)


def bf16(value: Array) -> Array:
    rounded = nearest(value, 7, -126)
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)


def decode_minifloat(exponent_bits: int, mantissa_bits: int, bias: int) -> Array:
    """Every value of a sign-exponent-mantissa format without infinities, by code."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    significand = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    magnitude = np.ldexp(
        significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits
    )
    return np.where(codes >> (exponent_bits + mantissa_bits), -magnitude, magnitude)


E2M1 = decode_minifloat(2, 1, 1)
E4M3 = decode_minifloat(4, 3, 7)
E4M3[[0x7F, 0xFF]] = np.nan
E8M0 = np.ldexp(1.0, np.arange(256) - 127)
E8M0[SCALE_NAN] = np.nan


def encode_e4m3(value: Array) -> Array:
    """Codes (uint8): nearest even, saturating at 448, NaN stays NaN, the sign of zero kept."""
    value = np.asarray(value, np.float64)
    magnitude = np.minimum(np.abs(nearest(value, 3, -6)), E4M3_MAX)
    code = np.searchsorted(E4M3[:0x7F], magnitude)  # NaN sorts past the end: 0x7F
    return (code | (np.signbit(value) << 7)).astype(np.uint8)


def encode_e2m1(value: Array) -> Array:
    """Codes (uint8): nearest even, saturating at 6, never the code of negative zero."""
    value = np.asarray(value, np.float64)
    magnitude = np.minimum(np.abs(nearest(value, 1, 0)), E2M1_MAX)
    code = np.searchsorted(E2M1[:8], magnitude)
    return (code | ((np.signbit(value) & (code > 0)) << 3)).astype(np.uint8)


def pack(codes: Array) -> Array:
    """Two codes a byte, even k in the low nibble."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8).view(np.int8)


def unpack(packed: Array) -> Array:
    byte = packed.view(np.uint8)
    return np.stack([byte & 15, byte >> 4], axis=-1).reshape(*byte.shape[:-1], 2 * byte.shape[-1])


def scale_exponent(amax: Array, largest: float) -> Array:
    """The least e with amax <= largest * 2^e, which is ceil(log2(amax / largest)), exactly."""
    mantissa, exponent = np.frexp(amax)
    top_mantissa, top_exponent = np.frexp(largest)
    return exponent - top_exponent + (mantissa > top_mantissa)


def grouped(value: Array) -> Array:
    return value.reshape(*value.shape[:-1], value.shape[-1] // GROUP, GROUP)


def quantise(value: Array, largest: float, floor: float = 0.0) -> tuple[Array, Array]:
    """(value / scale, not yet rounded; scale bytes) per group of 32 along the last axis."""
    groups = grouped(np.asarray(value, np.float64))
    amax = np.abs(groups).max(-1)
    finite = np.isfinite(amax)
    amax = np.maximum(np.where(finite, amax, 1.0), floor)
    exponent = np.where(amax > 0, scale_exponent(amax, largest), -126)
    exponent = np.maximum(exponent, -126)
    scaled = np.where(finite[..., None], np.ldexp(groups, -exponent[..., None]), 0.0)
    return scaled.reshape(value.shape), np.where(finite, exponent + 127, SCALE_NAN).astype(np.uint8)


def quantise_fp8(value: Array, floor: float = AMAX_FLOOR) -> tuple[Array, Array]:
    """(E4M3 codes uint8 [..., K], E8M0 bytes uint8 [..., K/32])."""
    scaled, scale = quantise(value, E4M3_MAX, floor)
    return encode_e4m3(scaled), scale


def quantise_fp4(value: Array) -> tuple[Array, Array]:
    """(packed E2M1 codes int8 [..., K/2], E8M0 bytes uint8 [..., K/32])."""
    scaled, scale = quantise(value, E2M1_MAX, AMAX_FLOOR)
    return pack(encode_e2m1(scaled)), scale


def dequantise(values: Array, scale: Array) -> Array:
    """Decoded codes times their group's scale; a NaN scale makes zeros NaN too."""
    return (grouped(values) * E8M0[scale][..., None]).reshape(values.shape)


# --- the layer ----------------------------------------------------------------------------------


class Oracle:
    """Steps 1 to 7 for all experts on one device. Call it with (x, topk_idx, topk_weights).

    `weights` holds NumPy arrays under the contract's names in the checkpoint layout, the scales as
    uint8 bytes. T tokens, H hidden, I intermediate, E experts, K slots; S the slots of one expert.
    """

    def __init__(
        self,
        weights: dict[str, Array],
        *,
        swiglu_limit: float | None = None,
        swiglu_alpha: float = 1.0,
        swiglu_beta: float = 0.0,
    ) -> None:
        self.weights = weights
        self.experts = weights["gate_up_proj"].shape[0]
        self.intermediate = weights["down_proj"].shape[-1] * 2
        # float32 attributes of the layer; no limit is an infinite one.
        self.limit = float(np.float32(np.inf if swiglu_limit is None else swiglu_limit))
        self.alpha = float(np.float32(swiglu_alpha))
        self.beta = float(np.float32(swiglu_beta))

    def __call__(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        return self.combine(self.rows(x, topk_idx, topk_weights), self.valid(topk_idx), topk_idx)

    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        """Steps 1 to 6: one row per (token, slot), [T, K, H]; a skipped slot's row is zero."""
        rows = np.zeros((*topk_idx.shape, x.shape[1]))
        for expert, token, slot, a in self.activations(x, topk_idx, topk_weights):
            routing = self.routing_weights(topk_weights)[token, slot]
            rows[token, slot] = self.down(self.requantise(a), routing, expert)
        return rows

    def activations(
        self, x: Array, topk_idx: Array, topk_weights: Array
    ) -> list[tuple[int, Array, Array, Array]]:
        """Steps 1 to 4, expert by expert: (expert, token [S], slot [S], a [S, I])."""
        tokens = self.quantise_tokens(widen(x))
        expert_of = np.where(self.valid(topk_idx), self.expert_id(topk_idx), -1)
        found = []
        for expert in range(self.experts):
            token, slot = np.nonzero(expert_of == expert)
            if token.size:
                routing = self.routing_weights(topk_weights)[token, slot]
                gate, up = self.gate_up(tokens[token], expert)
                gate, up = self.limited(gate, up)
                found.append((expert, token, slot, self.activation(gate, up, routing)))
        return found

    # -- routing

    def valid(self, topk_idx: Array) -> Array:
        return (topk_idx >= 0) & (topk_idx < self.experts)

    def expert_id(self, topk_idx: Array) -> Array:
        return topk_idx

    def routing_weights(self, topk_weights: Array) -> Array:
        return widen(topk_weights)

    # -- weights

    def matrix(self, name: str, expert: int) -> Array:
        """One expert's dequantised matrix [N, K]; float64 holds every code times every scale."""
        codes = self.unpack(self.weights[name][expert])
        return dequantise(E2M1[codes], self.weights[name + "_scale_inv"][expert])

    def unpack(self, packed: Array) -> Array:
        return unpack(packed)

    def bias(self, name: str, expert: int) -> Array | float:
        bias = self.weights.get(name)
        return 0.0 if bias is None else widen(bias[expert])

    def product(self, rows: Array, matrix: Array) -> Array:
        """Row by row, so that no row's bits depend on how many rows there are."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.stack([matrix @ row for row in rows])

    # -- the steps

    def quantise_tokens(self, x: Array) -> Array:
        """Step 1."""
        codes, scale = quantise_fp8(x, AMAX_FLOOR)
        return dequantise(E4M3[codes], scale)

    def gate_up(self, tokens: Array, expert: int) -> tuple[Array, Array]:
        """Step 2."""
        total = f32(self.product(tokens, self.matrix("gate_up_proj", expert)))
        total = f32(total + self.bias("gate_up_proj_bias", expert))
        return total[:, : self.intermediate], total[:, self.intermediate :]

    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        """Step 3."""
        gate, up = bf16(gate), bf16(up)
        return np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit)

    def sigmoid(self, gate: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return f32(1.0 / f32(1.0 + f32(np.exp(-f32(self.alpha * gate)))))

    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        """Step 4."""
        with np.errstate(over="ignore", invalid="ignore"):
            gated = f32(gate * self.sigmoid(gate))
            return f32(f32(gated * f32(up + self.beta)) * routing[:, None])

    def requantise(self, a: Array) -> Array:
        """Step 5."""
        codes, scale = quantise_fp8(a, floor=0.0)
        return dequantise(E4M3[codes], scale)

    def down(self, a: Array, routing: Array, expert: int) -> Array:
        """Step 6."""
        total = f32(self.product(a, self.matrix("down_proj", expert)))
        with np.errstate(invalid="ignore"):
            return bf16(f32(total + f32(routing[:, None] * self.bias("down_proj_bias", expert))))

    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        """Step 7."""
        total = np.zeros((rows.shape[0], rows.shape[2]))
        for slot in range(rows.shape[1]):
            with np.errstate(invalid="ignore"):
                total = np.where(valid[:, slot, None], f32(total + rows[:, slot]), total)
        return self.result(bf16(total))

    def result(self, total: Array) -> Array:
        return np.where(np.isnan(total), np.nan, total).astype(ml_dtypes.bfloat16)

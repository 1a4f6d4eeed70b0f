"""Planted faults: the oracle with one step wrong, each a mistake somebody could make or has made.

`test_oracle.py` runs the checks of `contract.py` on them: a check that a mutant passes proves
nothing about that mistake. One class a fault, one method overridden; the class name is the fault.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from oracle import (
    AMAX_FLOOR,
    E2M1,
    E4M3,
    E4M3_MAX,
    E8M0,
    Array,
    Oracle,
    bf16,
    dequantise,
    encode_e4m3,
    f32,
    grouped,
    quantise,
    quantise_fp8,
    unpack,
    widen,
)

# --- weights and routing ------------------------------------------------------------------------


class SwappedGateUp(Oracle):
    def gate_up(self, tokens: Array, expert: int) -> tuple[Array, Array]:
        return super().gate_up(tokens, expert)[::-1]


class InterleavedGateUp(Oracle):
    """Rows taken as gate, up, gate, up, ... (gpt-oss checkpoints before conversion)."""

    def gate_up(self, tokens: Array, expert: int) -> tuple[Array, Array]:
        total = np.concatenate(super().gate_up(tokens, expert), axis=1)
        return total[:, 0::2], total[:, 1::2]


class SwappedNibbles(Oracle):
    def unpack(self, packed: Array) -> Array:
        byte = packed.view(np.uint8)
        return unpack((byte >> 4 | byte << 4).view(np.int8))


class ScaleOfNextGroup(Oracle):
    def matrix(self, name: str, expert: int) -> Array:
        scale = self.weights[name + "_scale_inv"][expert]
        codes = unpack(self.weights[name][expert])
        return dequantise(E2M1[codes], np.roll(scale.reshape(-1), -1).reshape(scale.shape))


class ScaleBias128(Oracle):
    def matrix(self, name: str, expert: int) -> Array:
        return super().matrix(name, expert) / 2


class ScaleByteZeroIsZero(Oracle):
    def matrix(self, name: str, expert: int) -> Array:
        live = grouped(super().matrix(name, expert))
        scale = self.weights[name + "_scale_inv"][expert][..., None]
        return np.where(scale == 0, 0.0, live).reshape(live.shape[0], -1)


class ScaleByte255IsLarge(Oracle):
    """255 shifted into the exponent field, with no NaN."""

    def matrix(self, name: str, expert: int) -> Array:
        scale = np.append(E8M0[:255], 2.0**128)[self.weights[name + "_scale_inv"][expert]]
        codes = unpack(self.weights[name][expert])
        return (grouped(E2M1[codes]) * scale[..., None]).reshape(codes.shape)


class ScaleByte255SkipsZeroCodes(Oracle):
    def matrix(self, name: str, expert: int) -> Array:
        return np.where(
            E2M1[unpack(self.weights[name][expert])] == 0, 0, super().matrix(name, expert)
        )


class WeightsDequantisedInFloat32(Oracle):
    """6 * 2^127 overflows though the product with a small token fits."""

    def matrix(self, name: str, expert: int) -> Array:
        return f32(super().matrix(name, expert))


class WeightsFlushed(Oracle):
    def matrix(self, name: str, expert: int) -> Array:
        matrix = super().matrix(name, expert)
        return np.where(np.abs(matrix) < 2.0**-126, 0.0, matrix)


class WrongExpert(Oracle):
    def expert_id(self, topk_idx: Array) -> Array:
        return (topk_idx + 1) % self.experts


class NegativeIdWraps(Oracle):
    def valid(self, topk_idx: Array) -> Array:
        return (topk_idx >= -self.experts) & (topk_idx < self.experts)

    def expert_id(self, topk_idx: Array) -> Array:
        return topk_idx % self.experts


class LargeIdClamps(Oracle):
    def valid(self, topk_idx: Array) -> Array:
        return topk_idx >= 0

    def expert_id(self, topk_idx: Array) -> Array:
        return np.minimum(topk_idx, self.experts - 1)


class IdOfSixteenBits(Oracle):
    def valid(self, topk_idx: Array) -> Array:
        return super().valid(topk_idx.astype(np.int16))

    def expert_id(self, topk_idx: Array) -> Array:
        return topk_idx.astype(np.int16)


class DuplicateCountsOnce(Oracle):
    def valid(self, topk_idx: Array) -> Array:
        valid = super().valid(topk_idx)
        for slot in range(1, topk_idx.shape[1]):
            valid[:, slot] &= ~(topk_idx[:, :slot] == topk_idx[:, slot, None]).any(-1)
        return valid


class SkippedSlotTimesZero(Oracle):
    """A skipped slot runs as expert 0 and is multiplied by zero: NaN leaks."""

    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        skipped_nan = np.isnan(self.last_weights) & ~valid
        return super().combine(
            np.where(skipped_nan[..., None], np.nan, rows), valid | True, topk_idx
        )

    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        self.last_weights = widen(topk_weights)
        return super().rows(x, topk_idx, topk_weights)


class TokenLeaksWithoutSlots(Oracle):
    """The result starts from 0 * x."""

    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return super().rows(x, topk_idx, topk_weights) + (widen(x) * 0)[:, None]

    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        return super().combine(rows, valid | True, topk_idx)


class ZeroWeightSkips(Oracle):
    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        rows = super().rows(x, topk_idx, topk_weights)
        return np.where((widen(topk_weights) == 0)[..., None], 0.0, rows)


class OneHotDispatch(Oracle):
    """Dense dispatch by a one-hot product: 0 * NaN reaches every token of the batch."""

    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        rows = super().rows(x, topk_idx, topk_weights)
        return np.where(np.isnan(rows).any(axis=(0, 1)), np.nan, rows)


class DenseExperts(Oracle):
    """Every expert runs for every token, those not chosen times zero."""

    def rows(self, x: Array, topk_idx: Array, topk_weights: Array) -> Array:
        rows = super().rows(x, topk_idx, topk_weights)
        for name in ("gate_up_proj", "down_proj"):
            rows = rows + 0 * E8M0[self.weights[name + "_scale_inv"]].max()
        return rows


def _split_sum(rows: Array, matrix: Array, parts: int) -> Array:
    """float32 sums over k in `parts` interleaved chains."""
    chains = [
        np.cumsum((rows[:, None, i::parts] * matrix[:, i::parts]).astype(np.float32), axis=-1)
        for i in range(parts)
    ]
    return widen(np.sum([chain[..., -1] for chain in chains], axis=0, dtype=np.float32))


class BatchChoosesOrder(Oracle):
    """A kernel for one row sums in another order than that for several."""

    def product(self, rows: Array, matrix: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            return _split_sum(rows, matrix, 4 if len(rows) == 1 else 1)


class PlaceChoosesOrder(Oracle):
    """The rows that remain behind the last whole tile of eight are summed in another order."""

    def product(self, rows: Array, matrix: Array) -> Array:
        whole = len(rows) // 8 * 8
        with np.errstate(invalid="ignore", over="ignore"):
            parts = [_split_sum(rows[:whole], matrix, 1), _split_sum(rows[whole:], matrix, 2)]
        return np.concatenate(parts)


class RunChoosesOrder(Oracle):
    """Partial sums are added as threads finish."""

    calls = 0

    def product(self, rows: Array, matrix: Array) -> Array:
        RunChoosesOrder.calls += 1
        with np.errstate(invalid="ignore", over="ignore"):
            return _split_sum(rows, matrix, 1 + RunChoosesOrder.calls % 5)


# --- step 1 -------------------------------------------------------------------------------------


class TokensNotQuantised(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return x


class TokenInfinitySaturates(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
        return super().quantise_tokens(np.clip(x, -largest, largest))


class TokensWithoutFloor(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        codes, scale = quantise_fp8(x, 0.0)
        return dequantise(E4M3[codes], scale)


def _rounded_by(value: Array, rounding: str) -> Array:
    """E4M3 with another rounding rule."""
    exponent = np.maximum(np.frexp(value)[1] - 1, -6)
    quotient = np.abs(value) / np.ldexp(1.0, exponent - 3)
    whole = {"truncate": np.floor(quotient), "away": np.floor(quotient + 0.5)}[rounding]
    return np.copysign(np.minimum(whole * np.ldexp(1.0, exponent - 3), E4M3_MAX), value)


def _quantised_badly(x: Array, floor: float, how: str) -> Array:
    scaled, scale = quantise(x, E4M3_MAX, floor)
    if how in ("truncate", "away"):
        return dequantise(_rounded_by(scaled, how), scale)
    if how == "flush":  # E4M3 subnormals lost
        values = E4M3[encode_e4m3(scaled)]
        return dequantise(np.where(np.abs(values) < 2.0**-6, 0.0, values), scale)
    # The scale of the wrong power of two for a share of the groups.
    amax = np.abs(grouped(x)).max(-1)
    ratio = amax / (E4M3_MAX * E8M0[scale])
    step = {
        "exact powers go up": ratio == 1,
        "nearest exponent": -1 * (ratio < np.sqrt(0.5) + 0.04),
        "one too small": -1 * (ratio > 0.9),
        "one too large": ratio > 0,
    }[how]
    least = 1 if floor == 0 else 127 - 22
    moved = np.where(scale == 255, 255, np.maximum(scale.astype(int) + step, least)).astype(
        np.uint8
    )
    with np.errstate(invalid="ignore"):
        return dequantise(E4M3[encode_e4m3(dequantise(x, 254 - np.minimum(moved, 254)))], moved)


class TokensTruncated(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "truncate")


class TokensRoundedTiesAway(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "away")


class TokensFlushed(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "flush")


class TokenScaleOfExactPowersGoesUp(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "exact powers go up")


class TokenScaleToNearestExponent(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "nearest exponent")


class TokenScaleOneTooSmall(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "one too small")


class TokenScaleOneTooLarge(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        return _quantised_badly(x, AMAX_FLOOR, "one too large")


class TokensScaledPerRow(Oracle):
    def quantise_tokens(self, x: Array) -> Array:
        _, scale = quantise_fp8(x, AMAX_FLOOR)
        widest = np.broadcast_to(scale.max(-1, keepdims=True), scale.shape)
        values = dequantise(x, 254 - np.minimum(widest, 254))
        return dequantise(E4M3[encode_e4m3(values)], widest)


# --- steps 2 and 3 ------------------------------------------------------------------------------


class NoGateUpBias(Oracle):
    def bias(self, name: str, expert: int) -> Array | float:
        return 0.0 if name == "gate_up_proj_bias" else super().bias(name, expert)


class NarrowBiasDropped(Oracle):
    def bias(self, name: str, expert: int) -> Array | float:
        bias = self.weights.get(name)
        narrow = bias is not None and bias.dtype == ml_dtypes.bfloat16
        return 0.0 if narrow else super().bias(name, expert)


class BiasAfterRounding(Oracle):
    """The product is rounded to bfloat16 before its bias is added."""

    def gate_up(self, tokens: Array, expert: int) -> tuple[Array, Array]:
        total = bf16(f32(self.product(tokens, self.matrix("gate_up_proj", expert))))
        total = f32(total + self.bias("gate_up_proj_bias", expert))
        return total[:, : self.intermediate], total[:, self.intermediate :]


class GateUpNotRounded(Oracle):
    """What XLA does when it drops a float32 -> bfloat16 -> float32 pair."""

    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit)


class GateUpTruncated(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        def cut(value: Array) -> Array:
            return widen((value.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32))

        return super().limited(cut(gate), cut(up))


class LimitBeforeRounding(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return bf16(np.minimum(gate, self.limit)), bf16(np.clip(up, -self.limit, self.limit))


class LimitRoundedToBfloat16(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        limit = bf16(np.float64(self.limit))
        return np.minimum(bf16(gate), limit), np.clip(bf16(up), -limit, limit)


class NoneMeansTen(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        limit = 10.0 if np.isinf(self.limit) else self.limit
        return np.minimum(bf16(gate), limit), np.clip(bf16(up), -limit, limit)


class NoLimit(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return bf16(gate), bf16(up)


class ZeroLimitMeansNone(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return super().limited(gate, up) if self.limit else (bf16(gate), bf16(up))


class GateClampedBelow(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        gate, up = super().limited(gate, up)
        return np.maximum(gate, -self.limit), up


class GateNotClamped(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return bf16(gate), super().limited(gate, up)[1]


class UpNotClamped(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return super().limited(gate, up)[0], bf16(up)


class UpNotClampedBelow(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        return super().limited(gate, up)[0], np.minimum(bf16(up), self.limit)


class ClampDropsNaN(Oracle):
    """min and max as CUDA and one argument order of std::min have them."""

    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        gate, up = bf16(gate), bf16(up)
        return np.fmin(gate, self.limit), np.fmax(np.fmin(up, self.limit), -self.limit)


class OverflowingGateIsNaN(Oracle):
    """An infinite gate is not brought back by the limit."""

    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        infinite = np.isinf(bf16(gate))
        gate, up = super().limited(gate, up)
        return np.where(infinite, np.nan, gate), up


# --- step 4 -------------------------------------------------------------------------------------


class NoBeta(Oracle):
    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        return super().activation(gate, up - self.beta, routing)


class BetaOnGate(Oracle):
    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        return super().activation(gate + self.beta, up - self.beta, routing)


class BetaBeforeClamp(Oracle):
    def limited(self, gate: Array, up: Array) -> tuple[Array, Array]:
        gate, up = super().limited(gate, f32(bf16(up) + self.beta))
        return gate, up - self.beta


class AlphaOutside(Oracle):
    """alpha * gate * sigmoid(gate)."""

    def sigmoid(self, gate: Array) -> Array:
        with np.errstate(over="ignore"):
            return f32(self.alpha / f32(1.0 + f32(np.exp(-gate))))


class NoAlpha(Oracle):
    def sigmoid(self, gate: Array) -> Array:
        with np.errstate(over="ignore"):
            return f32(1.0 / f32(1.0 + f32(np.exp(-gate))))


class GeluInstead(Oracle):
    def sigmoid(self, gate: Array) -> Array:
        return f32(0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))))


class ReluInstead(Oracle):
    def sigmoid(self, gate: Array) -> Array:
        return np.where(np.isnan(gate), gate, (gate > 0) * 1.0)


class WeightAfterDown(Oracle):
    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        return super().activation(gate, up, np.ones_like(routing))

    def down(self, a: Array, routing: Array, expert: int) -> Array:
        total = f32(self.product(a, self.matrix("down_proj", expert)))
        return bf16(f32(f32(total + self.bias("down_proj_bias", expert)) * routing[:, None]))


class WeightRoundedToBfloat16(Oracle):
    def routing_weights(self, topk_weights: Array) -> Array:
        return bf16(super().routing_weights(topk_weights))


class HalfWeightsRoundedToBfloat16(Oracle):
    def routing_weights(self, topk_weights: Array) -> Array:
        wide = super().routing_weights(topk_weights)
        return bf16(wide) if topk_weights.dtype == np.float16 else wide


class StepFourInFloat64(Oracle):
    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        return gate * self.sigmoid(gate) * (up + self.beta) * routing[:, None]


class StepFourInBfloat16(Oracle):
    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        gated = bf16(gate * self.sigmoid(gate))
        return bf16(bf16(gated * bf16(up + self.beta)) * routing[:, None])


class WeightBeforeUp(Oracle):
    """((gate * sigmoid) * weight) * (up + beta)."""

    def activation(self, gate: Array, up: Array, routing: Array) -> Array:
        gated = f32(f32(gate * self.sigmoid(gate)) * routing[:, None])
        return f32(gated * f32(up + self.beta))


# --- step 5 -------------------------------------------------------------------------------------


class NotRequantised(Oracle):
    def requantise(self, a: Array) -> Array:
        return a


class RequantisedWithFloor(Oracle):
    def requantise(self, a: Array) -> Array:
        codes, scale = quantise_fp8(a, AMAX_FLOOR)
        return dequantise(E4M3[codes], scale)


class ExponentWraps(Oracle):
    """No lower bound on the exponent: the byte of a tiny group wraps around."""

    def requantise(self, a: Array) -> Array:
        amax = np.abs(grouped(a)).max(-1)
        tiny = (amax > 0) & (amax <= E4M3_MAX * 2.0**-127)
        return (grouped(super().requantise(a)) * np.where(tiny, 2.0**127, 1.0)[..., None]).reshape(
            a.shape
        )


class RequantisedTruncated(Oracle):
    def requantise(self, a: Array) -> Array:
        return _quantised_badly(a, 0.0, "truncate")


class RequantisedTiesAway(Oracle):
    def requantise(self, a: Array) -> Array:
        return _quantised_badly(a, 0.0, "away")


class RequantisedFlushed(Oracle):
    def requantise(self, a: Array) -> Array:
        return _quantised_badly(a, 0.0, "flush")


class RequantisedOneTooSmall(Oracle):
    def requantise(self, a: Array) -> Array:
        return _quantised_badly(a, 0.0, "one too small")


class RequantisedOneTooLarge(Oracle):
    def requantise(self, a: Array) -> Array:
        return _quantised_badly(a, 0.0, "one too large")


class RequantisedFromBfloat16(Oracle):
    def requantise(self, a: Array) -> Array:
        return super().requantise(bf16(a))


class InfinityDropped(Oracle):
    """An overflow in step 4 saturates instead of making the row NaN."""

    def requantise(self, a: Array) -> Array:
        return super().requantise(np.clip(a, -(2.0**127), 2.0**127))


# --- steps 6 and 7 ------------------------------------------------------------------------------


class NoDownBias(Oracle):
    def bias(self, name: str, expert: int) -> Array | float:
        return 0.0 if name == "down_proj_bias" else super().bias(name, expert)


class DownBiasUnweighted(Oracle):
    def down(self, a: Array, routing: Array, expert: int) -> Array:
        total = f32(self.product(a, self.matrix("down_proj", expert)))
        with np.errstate(invalid="ignore"):
            return bf16(f32(total + self.bias("down_proj_bias", expert)))


class RowsNotRounded(Oracle):
    def down(self, a: Array, routing: Array, expert: int) -> Array:
        total = f32(self.product(a, self.matrix("down_proj", expert)))
        with np.errstate(invalid="ignore"):
            return f32(total + f32(routing[:, None] * self.bias("down_proj_bias", expert)))


class RowsTruncated(RowsNotRounded):
    def down(self, a: Array, routing: Array, expert: int) -> Array:
        rows = super().down(a, routing, expert).astype(np.float32)
        return widen((rows.view(np.uint32) & 0xFFFF0000).view(np.float32))


class CombinedInReverse(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        return super().combine(rows[:, ::-1], valid[:, ::-1], topk_idx)


class CombinedByExpert(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        order = np.argsort(topk_idx, axis=1, kind="stable")
        rows = np.take_along_axis(rows, order[..., None], axis=1)
        return super().combine(rows, np.take_along_axis(valid, order, axis=1), topk_idx)


class CombinedExactly(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        return self.result(bf16(np.where(valid[..., None], rows, 0.0).sum(1)))


class CombinedInBfloat16(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        total = np.zeros((rows.shape[0], rows.shape[2]))
        for slot in range(rows.shape[1]):
            total = np.where(valid[:, slot, None], bf16(total + rows[:, slot]), total)
        return self.result(total)


class ResultTruncated(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        total = np.zeros((rows.shape[0], rows.shape[2]), np.float32)
        for slot in range(rows.shape[1]):
            row = np.where(valid[:, slot, None], rows[:, slot], 0.0)
            total = (total + row).astype(np.float32)
        return self.result(widen((total.view(np.uint32) & 0xFFFF0000).view(np.float32)))


class CombinedFromFirstRow(Oracle):
    """The sum starts from the first row instead of +0: a lone -0 survives."""

    def down(self, a: Array, routing: Array, expert: int) -> Array:
        rows = super().down(a, routing, expert)
        return np.where((rows == 0) & (routing[:, None] < 0), -0.0, rows)

    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        total = super().combine(rows, valid, topk_idx)
        lone = (valid.sum(1) == 1)[:, None] & (total == 0)
        negative = (np.signbit(rows) & valid[..., None]).any(1)
        return np.where(lone & negative, -0.0, widen(total)).astype(ml_dtypes.bfloat16)


class SkippedTokenIsNegativeZero(Oracle):
    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        total = widen(super().combine(rows, valid, topk_idx))
        return np.where(valid.any(1)[:, None], total, -0.0).astype(ml_dtypes.bfloat16)


class NegativeNaN(Oracle):
    """The NaN that x86 makes from inf - inf."""

    def result(self, total: Array) -> Array:
        return np.where(np.isnan(total), -np.nan, total).astype(ml_dtypes.bfloat16)


class NoTokens(Oracle):
    """Forgets to write the result."""

    def combine(self, rows: Array, valid: Array, topk_idx: Array) -> Array:
        return np.zeros((rows.shape[0], rows.shape[2]), ml_dtypes.bfloat16)

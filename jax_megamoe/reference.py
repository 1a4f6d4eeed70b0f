"""The contract, step by step, in plain JAX: what every implementation computes.  Read this first.

    x [T, H] --1 quantise--> --2 gate/up product--> --3 round, clamp--> --4 SwiGLU * routing
    weight--> --5 quantise--> --6 down product--> rows [T, K, H] --7 sum in slot order--> [T, H]

It is also `implementation="xla"`, which runs on any device. Two promises shaped it beyond the
arithmetic: a token's bits do not depend on the other tokens, although XLA's dots of different
heights differ in bits, so every product is one of TILE rows, padded; and memory is bounded, so one
expert at a time is widened to float32.

Letters: T tokens, K slots a token, H hidden, I intermediate, E experts here. A slot whose id is
outside 0..E-1 is skipped: it reads nothing and adds nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_megamoe import formats, manual_axes
from jax_megamoe.config import SwiGLU
from jax_megamoe.weights import PreparedWeights

TILE = 32  #: rows of every product


def moe_layer(
    x: Array, topk_idx: Array, topk_weights: Array, weights: PreparedWeights, swiglu: SwiGLU
) -> Array:
    """The whole layer on one device: steps 1 to 7.

    Args:
      x: bfloat16 [T, H].
      topk_idx: int32 [T, K], expert ids 0..E-1; any other id skips the slot.
      topk_weights: float32 [T, K].
      weights: E experts, prepared for "xla".
      swiglu: the activation's parameters.

    Returns:
      bfloat16 [T, H].
    """
    with jax.named_scope("jax_megamoe.quantize"):
        q, scale = formats.quantize_fp8(x)  # step 1
    rows = expert_rows(q, formats.scale_bytes(scale), topk_idx, topk_weights, weights, swiglu)
    return combine(rows)


def activate(gate: Array, up: Array, topk_weight: Array, swiglu: SwiGLU) -> Array:
    """Steps 3 and 4 on float32 gate and up [..., I] and routing weights [..., 1]."""
    gate, up = round_to_bfloat16(gate), round_to_bfloat16(up)
    limit = jnp.float32(swiglu.limit)
    gate = jnp.minimum(gate, limit)  # not bounded below; minimum and maximum propagate NaN
    up = jnp.maximum(jnp.minimum(up, limit), -limit)
    sigmoid = 1.0 / (1.0 + jnp.exp(-jnp.float32(swiglu.alpha) * gate))
    return ((gate * sigmoid) * (up + jnp.float32(swiglu.beta))) * topk_weight


def combine(rows: Array) -> Array:
    """Step 7: the float32 sum of bfloat16 rows [T, K, H] in slot order, from +0, rounded to
    bfloat16 [T, H].
    """
    with jax.named_scope("jax_megamoe.combine"):
        total = jnp.zeros((rows.shape[0], rows.shape[2]), jnp.float32)
        for slot in range(rows.shape[1]):
            total = total + rows[:, slot].astype(jnp.float32)
        return jnp.where(jnp.isnan(total), jnp.nan, total).astype(jnp.bfloat16)


def round_to_bfloat16(x: Array) -> Array:
    """float32 rounded to bfloat16 values; XLA may drop a pair of casts, but not this."""
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def expert_rows(
    q: Array,
    scale: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: PreparedWeights,
    swiglu: SwiGLU,
) -> Array:
    """Steps 2 to 6: one row for each (token, slot), +0 for skipped slots.

    Slots are sorted by expert. Each expert's products run over tiles of TILE slots, as many as it
    has; a tile's surplus rows belong to the next expert and are overwritten by it.

    Args:
      q: float8_e4m3fn [T, H], the tokens after step 1.
      scale: uint8 [T, H/32], their scale bytes.
      topk_idx, topk_weights, weights, swiglu: as in `moe_layer`.

    Returns:
      bfloat16 [T, K, H].
    """
    (tokens, slots), hidden = topk_idx.shape, q.shape[1]
    num_experts = weights.gate_up_proj.shape[0]
    expert = jnp.where((topk_idx >= 0) & (topk_idx < num_experts), topk_idx, num_experts).reshape(
        -1
    )
    order = jnp.argsort(expert, stable=True)
    # Where each expert's slots begin. Not by searchsorted: jax cannot trace it where some mesh axes
    # are manual and others are not.
    count = jnp.zeros(num_experts + 2, jnp.int32).at[expert + 1].add(1)
    first = jnp.cumsum(count, dtype=jnp.int32)
    routing = topk_weights.reshape(-1)

    def one_expert(e: Array, rows: Array) -> Array:
        gate_up = _widen(weights.gate_up_proj, weights.gate_up_proj_scale_inv, e)
        down = _widen(weights.down_proj, weights.down_proj_scale_inv, e)

        def one_tile(i: Array, rows: Array) -> Array:
            start = first[e] + i * TILE
            slot = order[jnp.minimum(start + jnp.arange(TILE), tokens * slots - 1)]
            token, weight = slot // slots, routing[slot][:, None]
            products = _product(q[token], scale[token], gate_up)  # step 2
            if weights.gate_up_proj_bias is not None:
                products = products + weights.gate_up_proj_bias[e].astype(jnp.float32)
            gate, up = jnp.split(products, 2, axis=1)
            a = activate(gate, up, weight, swiglu)  # steps 3, 4
            aq, a_scale = formats.quantize_intermediate(a)  # step 5
            out = _product(aq, formats.scale_bytes(a_scale), down)  # step 6
            if weights.down_proj_bias is not None:
                out = out + weight * weights.down_proj_bias[e].astype(jnp.float32)
            return jax.lax.dynamic_update_slice_in_dim(rows, out.astype(jnp.bfloat16), start, 0)

        count = first[e + 1] - first[e]
        return jax.lax.fori_loop(0, (count + TILE - 1) // TILE, one_tile, rows)

    def used_expert(e: Array, rows: Array) -> Array:
        return jax.lax.cond(first[e + 1] > first[e], one_expert, lambda e, rows: rows, e, rows)

    with jax.named_scope("jax_megamoe.experts"):
        axes = manual_axes.varying_axes(q, scale, topk_idx, topk_weights, weights)
        rows = jnp.zeros((tokens * slots + TILE, hidden), jnp.bfloat16)
        rows = jax.lax.fori_loop(0, num_experts, used_expert, manual_axes.vary_over(rows, axes))
        rows = rows[jnp.argsort(order)]  # back from the order of experts to that of slots
        rows = jnp.where((expert < num_experts)[:, None], rows, jnp.bfloat16(0))
    return rows.reshape(tokens, slots, hidden)


class _Widened(NamedTuple):
    """One expert's matrix in float32: scaled, or, where a scale is extreme, as bare codes."""

    values: Array  # float32 [N, K]
    scale: Array  # uint8 [N, K/32]
    extreme: Array  # bool: the values are not scaled


def _widen(codes: Array, scale: Array, expert: Array) -> _Widened:
    byte = jax.lax.dynamic_index_in_dim(scale, expert, keepdims=False)
    packed = jax.lax.dynamic_index_in_dim(codes, expert, keepdims=False)
    values = formats.decode_e2m1(formats.unpack_fp4(packed))
    # 6 * 2^126 is beyond float32 and 0.5 * 2^-126 below its normal numbers, although their
    # products with a token may well be within.
    extreme = jnp.any((byte < 2) | (byte > 252))
    grouped = values.reshape(*byte.shape, formats.GROUP)
    scaled = formats.apply_scale(grouped, byte[..., None]).reshape(values.shape)
    return _Widened(jnp.where(extreme, values, scaled), byte, extreme)


def _product(q: Array, scale: Array, weights: _Widened) -> Array:
    """The scaled product of quantised rows [TILE, K] with weights [N, K]: float32 [TILE, N].

    Which way it is summed depends on the expert alone, so a row's bits do not depend on others.
    """
    # A barrier, since XLA may drop a pair of casts through float8 within one fusion.
    values = formats.decode_e4m3(jax.lax.optimization_barrier(q))
    return jax.lax.cond(weights.extreme, _sum_groups, _sum_all, values, scale, weights)


def _sum_all(values: Array, scale: Array, weights: _Widened) -> Array:
    # A token of nearly the largest bfloat16 rounds up to 2^128: such rows are held divided by 4,
    # which flushes nothing, since no token is scaled by less than 2^-22.
    headroom = jnp.where(jnp.max(scale, axis=-1) >= 247, 2, 0).astype(jnp.int32)
    grouped = values.reshape(*scale.shape, formats.GROUP)
    scaled = formats.apply_scale(grouped, scale[..., None], headroom[:, None, None])
    product = _dot(scaled.reshape(values.shape), weights.values)
    return product * formats.power_of_two(headroom)[:, None]


def _sum_groups(values: Array, scale: Array, weights: _Widened) -> Array:
    """Sums groups of 32 k one by one, each times both its scales at once."""

    def add_group(group: Array, total: Array) -> Array:
        def columns(array: Array, size: int) -> Array:
            return jax.lax.dynamic_slice_in_dim(array, group * size, size, axis=1)

        partial = _dot(columns(values, formats.GROUP), columns(weights.values, formats.GROUP))
        row, column = columns(scale, 1), columns(weights.scale, 1).T
        exponent = row.astype(jnp.int32) + column.astype(jnp.int32) - 254
        half = exponent >> 1
        product = partial * formats.power_of_two(half) * formats.power_of_two(exponent - half)
        is_nan = (row == formats.NAN_SCALE) | (column == formats.NAN_SCALE)
        return total + jnp.where(is_nan, jnp.float32(jnp.nan), product)

    axes = manual_axes.varying_axes(values, scale, weights)
    total = jnp.zeros((values.shape[0], weights.values.shape[0]), jnp.float32)
    total = manual_axes.vary_over(total, axes)
    return jax.lax.fori_loop(0, scale.shape[1], add_group, total)


def _dot(rows: Array, columns: Array) -> Array:
    return jax.lax.dot_general(
        rows,
        columns,
        (((1,), (1,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )

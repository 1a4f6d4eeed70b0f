"""The exchange of the `cpu` and `xla` implementations: XLA's own collectives around a local call.

Every rank gathers all QUANTISED tokens, computes the rows of its own experts, and sends each
(token, slot) row home in bfloat16, where rows are added in slot order. No sum crosses ranks, so the
bits do not depend on their number. Gathered tokens come in chunks, which bounds the memory whatever
T is.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jax_megamoe import formats, manual_axes, reference, validation
from jax_megamoe.config import SwiGLU
from jax_megamoe.weights import PreparedWeights

#: Bounds on one chunk: gathered tokens, and gathered (token, slot) rows.
MAX_CHUNK_TOKENS = 4096
MAX_CHUNK_ROWS = 32768

RowsFunction = Callable[[Array, Array, Array, Array, PreparedWeights, SwiGLU], Array]


def exchanged_layer(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: PreparedWeights,
    swiglu: SwiGLU,
    *,
    axis_name: validation.AxisName,
    expert_rows: RowsFunction,
) -> Array:
    """The expert-parallel layer from one rank's view, inside shard_map.

    Args:
      x: bfloat16 [T, H], this rank's tokens, T >= 1.
      topk_idx: int32 [T, K], GLOBAL expert ids; -1 skips the slot.
      topk_weights: float32 [T, K].
      weights: this rank's experts.
      swiglu: the activation's parameters.
      axis_name: the expert-parallel axis or axes.
      expert_rows: steps 2 to 6 on local experts, as `reference.expert_rows`.

    Returns:
      bfloat16 [T, H], complete over the ranks.
    """
    axes = manual_axes.varying_axes(x, topk_idx, topk_weights, weights)
    if axes:  # empty under check_vma=False, where nothing is marked
        x, topk_idx, topk_weights, weights = manual_axes.vary_over(
            (x, topk_idx, topk_weights, weights), axes | set(validation.axis_names(axis_name))
        )
    ranks = jax.lax.axis_size(axis_name)
    experts = weights.gate_up_proj.shape[0]
    first_expert = jax.lax.axis_index(axis_name) * experts

    def gather(value: Array) -> Array:
        return jax.lax.all_gather(value, axis_name, tiled=True)

    def one_chunk(chunk: tuple[Array, Array, Array]) -> Array:
        x, topk_idx, topk_weights = chunk
        with jax.named_scope("jax_megamoe.quantize"):
            q, scale = formats.quantize_fp8(x)
        with jax.named_scope("jax_megamoe.dispatch"):
            # As bytes, since not every collective backend knows the float8 types.
            q = gather(jax.lax.bitcast_convert_type(q, jnp.uint8))
            q = jax.lax.bitcast_convert_type(q, jnp.float8_e4m3fn)
            scale = gather(formats.scale_bytes(scale))
            local_idx = gather(topk_idx) - first_expert
            local_idx = jnp.where((local_idx >= 0) & (local_idx < experts), local_idx, -1)
            gathered_weights = gather(topk_weights)
        rows = expert_rows(q, scale, local_idx, gathered_weights, weights, swiglu)
        with jax.named_scope("jax_megamoe.return_rows"):
            rows = rows.reshape(ranks, *topk_idx.shape, x.shape[1])
            rows = jax.lax.all_to_all(rows, axis_name, 0, 0)  # now by the rank that owns the expert
            skipped = topk_idx < 0
            owner = jnp.where(skipped, 0, topk_idx // experts)
            rows = jnp.take_along_axis(rows, owner[None, :, :, None], axis=0)[0]
            rows = jnp.where(skipped[:, :, None], jnp.bfloat16(0), rows)
        return reference.combine(rows)

    tokens, slots = topk_idx.shape
    most = max(1, min(MAX_CHUNK_TOKENS, MAX_CHUNK_ROWS // slots) // ranks)
    chunks = -(-tokens // most)
    if chunks == 1:
        return one_chunk((x, topk_idx, topk_weights))
    size = -(-tokens // chunks)
    surplus = chunks * size - tokens

    def split(value: Array, fill: int) -> Array:
        value = jnp.pad(value, ((0, surplus), (0, 0)), constant_values=fill)
        return value.reshape(chunks, size, value.shape[1])

    y = jax.lax.map(one_chunk, (split(x, 0), split(topk_idx, -1), split(topk_weights, 0)))
    return y.reshape(chunks * size, -1)[:tokens]

"""`mega_moe`: the layer on the local arrays of a shard_map, whatever implementation runs it.

It checks, picks the implementation, and wraps the call so that vmap folds a batch into tokens and
differentiation is refused in words. Global arrays and meshes are `expert_parallel`'s business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap

from jax_megamoe import config, exchange, manual_axes, platforms, reference, targets, validation
from jax_megamoe.config import SwiGLU
from jax_megamoe.weights import (
    ExpertWeights,
    PreparedWeights,
    check_layout,
    check_prepared_arrays,
    check_scale_values,
    prepare_in_trace,
)

logger = logging.getLogger("jax_megamoe")

Weights = ExpertWeights | PreparedWeights


def mega_moe(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
    *,
    axis_name: validation.AxisName,
    swiglu_limit: float | None = None,
    swiglu_alpha: float = 1.0,
    swiglu_beta: float = 0.0,
    implementation: str | None = None,
) -> Array:
    """Mixture-of-experts layer with FP4 expert weights, on the local arrays of a `jax.shard_map`.

    T tokens of this rank, H hidden, I intermediate, E experts over the R ranks of the axis, K slots
    a token. Rank r owns experts r*E/R ... (r+1)*E/R - 1. The result is complete: do not reduce it
    over the axis. The arithmetic, rounding by rounding, is `jax_megamoe.reference`.

    Args:
      x: bfloat16 [T, H].
      topk_idx: int32 or int64 [T, K], GLOBAL expert ids; an id outside 0..E-1 (-1 by custom) skips
        the slot.
      topk_weights: float32, bfloat16 or float16 [T, K].
      weights: this rank's E/R experts, ExpertWeights or PreparedWeights.
      axis_name: the expert-parallel mesh axis, manual here; stands in for a process group.
      swiglu_limit: L >= 0; None or inf: no limit.
      swiglu_alpha, swiglu_beta: the activation is gate * sigmoid(alpha * gate) * (up + beta).
      implementation: "sm100", "cpu", "xla", or None: by platform (cpu -> cpu, cuda -> sm100, others
        -> xla), or what the weights are prepared for.

    Returns:
      bfloat16 [T, H].

    Raises:
      ValueError, TypeError, NotImplementedError: see `jax_megamoe.validation`.
    """
    devices = platforms.context_devices(None, x, topk_idx, topk_weights, weights)
    swiglu = config.swiglu(swiglu_limit, swiglu_alpha, swiglu_beta)
    check_call(weights, implementation, devices)
    validation.check_axis_is_manual(axis_name, jax.sharding.get_abstract_mesh().manual_axes)
    check_shapes(x, topk_idx, topk_weights, weights)
    return local_layer(x, topk_idx, topk_weights, weights, axis_name, swiglu, implementation)


def check_call(weights: Weights, implementation: str | None, devices: Iterable[Any]) -> None:
    """The first checks, in the original's order: device, then weight type."""
    validation.check_implementation(implementation)
    resolved = weights.implementation if isinstance(weights, PreparedWeights) else implementation
    check_device(resolved, devices)
    if isinstance(weights, PreparedWeights):
        check_layout(weights, implementation)
        validation.check_weight_arrays(weights)
        validation.check_codes("gate_up_proj", weights.gate_up_proj.dtype)
        validation.check_codes("down_proj", weights.down_proj.dtype)
    elif isinstance(weights, ExpertWeights):
        validation.check_weight_types(weights)
        check_scale_values(weights)
    else:
        raise TypeError(
            f"weights is {validation.a_type(weights)}; an ExpertWeights or a PreparedWeights is "
            "accepted: ExpertWeights(gate_up_proj, gate_up_proj_scale_inv, down_proj, "
            "down_proj_scale_inv), or moe.expert_weights() of a module."
        )


def check_device(implementation: str | None, devices: Iterable[Any]) -> None:
    """Refuses devices, builds and a forced instruction set that cannot run the implementation, as
    far as it is known which one that is.
    """
    devices = list(devices)
    validation.check_devices(devices, implementation)
    cuda = implementation is None and any(map(validation.is_cuda, devices))
    if implementation == "sm100" or cuda:
        validation.check_sm100_built(targets.sm100_built())
    if implementation == "cpu":
        targets.check_cpu_path()


def check_shapes(
    x: Any,
    topk_idx: Any,
    topk_weights: Any,
    weights: Weights,
    num_slots: int | None = None,
    names: validation.TokenNames = validation.FUNCTION_NAMES,
) -> None:
    """The last checks: shapes of weights and tokens, dtypes of tokens."""
    if isinstance(weights, PreparedWeights):
        check_prepared_arrays(weights)
        hidden = weights.hidden_size
    else:
        hidden, _ = validation.check_weight_shapes(weights)
    validation.check_tokens(x, topk_idx, topk_weights, hidden, num_slots, names)


def local_layer(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
    axis_name: validation.AxisName,
    swiglu: SwiGLU,
    implementation: str | None,
) -> Array:
    """The checked call: x [T, H] of one rank, inside shard_map."""
    if x.shape[0] == 0:
        return x
    chosen = weights.implementation if isinstance(weights, PreparedWeights) else implementation
    _log_choice(chosen, weights)
    experts = weights.gate_up_proj.shape[0] * jax.lax.axis_size(axis_name)
    valid = (topk_idx >= 0) & (topk_idx < experts)  # before int64 narrows to int32
    topk_idx = jnp.where(valid, topk_idx, -1).astype(jnp.int32)
    topk_weights = topk_weights.astype(jnp.float32)

    def forward(x: Array, topk_idx: Array, topk_weights: Array, weights: Weights) -> Array:
        if chosen is not None:
            x = platforms.require_platform(x, chosen)
            return _run(chosen, axis_name, swiglu, x, topk_idx, topk_weights, weights)

        def branch(name: str) -> Callable[..., Array]:
            def run(x: Array, *operands: Any) -> Array:
                x = platforms.require_platform(x, name, by_platform=True)
                return _run(name, axis_name, swiglu, x, *operands)

            return run

        cpu, sm100, xla = map(branch, ("cpu", "sm100", "xla"))
        return jax.lax.platform_dependent(
            x, topk_idx, topk_weights, weights, cpu=cpu, cuda=sm100, default=xla
        )

    with jax.named_scope("jax_megamoe"):
        return _transformable(forward)(x, topk_idx, topk_weights, weights)


def _log_choice(chosen: str | None, weights: Weights) -> None:
    how = chosen or "by platform (cpu on cpu, sm100 on cuda, xla elsewhere)"
    note = ""
    if isinstance(weights, ExpertWeights) and chosen != "xla":
        note = (
            "; plain ExpertWeights are rearranged at every execution (prepare_weights does it once)"
        )
    logger.info("implementation: %s%s", how, note)


def _run(
    implementation: str,
    axis_name: validation.AxisName,
    swiglu: SwiGLU,
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
) -> Array:
    if isinstance(weights, ExpertWeights):
        weights = prepare_in_trace(weights, implementation)
    operands = (x, topk_idx, topk_weights, weights, swiglu)
    ranks = jax.lax.axis_size(axis_name)
    if implementation == "sm100":
        y = targets.sm100_layer(*operands, ranks)
    elif ranks == 1:
        layer = targets.cpu_layer if implementation == "cpu" else reference.moe_layer
        y = layer(*operands)
    else:
        rows = targets.cpu_rows if implementation == "cpu" else reference.expert_rows
        y = exchange.exchanged_layer(*operands, axis_name=axis_name, expert_rows=rows)
    # One rank's exchange is no collective, so only here do all branches come to vary over the axis.
    axes = manual_axes.varying_axes(x, topk_idx, topk_weights, weights)
    names = validation.axis_names(axis_name)
    return manual_axes.vary_over(y, axes | set(names)) if axes else y


def _transformable(forward: Callable[..., Array]) -> Callable[..., Array]:
    """Gives forward(x, topk_idx, topk_weights, weights) its rules for vmap and derivatives."""
    folding = custom_vmap(forward)

    @folding.def_vmap
    def fold(axis_size: int, in_batched: Any, *operands: Any) -> tuple[Array, bool]:
        *tokens_batched, weights_batched = in_batched
        if any(jax.tree.leaves(weights_batched)):
            raise NotImplementedError(validation.VMAP_OVER_WEIGHTS_MESSAGE)
        *tokens, weights = operands
        batched = [
            value if is_batched else jnp.broadcast_to(value, (axis_size, *value.shape))
            for value, is_batched in zip(tokens, tokens_batched, strict=True)
        ]
        x = batched[0]
        if x.size == 0:  # a batch of none: as for T = 0, nothing is called
            return x, True
        folded = [value.reshape(-1, value.shape[-1]) for value in batched]
        return folding(*folded, weights).reshape(x.shape), True

    call = jax.custom_jvp(folding)

    @call.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(validation.DIFFERENTIATION_MESSAGE)

    return call


def host_ids(topk_idx: Any, num_experts: int) -> Any:
    """NumPy int64 ids outside 0..E-1 as -1: without x64, JAX would cut them to 32 bits before we
    see them.
    """
    if isinstance(topk_idx, np.ndarray) and topk_idx.dtype == np.int64:
        return np.where((topk_idx >= 0) & (topk_idx < num_experts), topk_idx, -1).astype(np.int32)
    return topk_idx

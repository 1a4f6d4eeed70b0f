"""The XLA custom-call targets, their public names, and the calls themselves.

The names are stable: a serialised `jax.export` program holds them, and `jax.export` wants them
listed in `jax.export.DisabledSafetyCheck.custom_call`. One of the project's two registries is here
(the FFI targets); registering starts no backend.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_megamoe import _native, manual_axes
from jax_megamoe.config import SwiGLU

if TYPE_CHECKING:  # weights.py asks here what is built
    from jax_megamoe.weights import PreparedWeights

CPU_LAYER = "jax_megamoe.cpu.moe"  #: steps 1 to 7 on one device
CPU_ROWS = "jax_megamoe.cpu.rows"  #: steps 2 to 6 for tokens already quantised
SM100_LAYER = "jax_megamoe.sm100.moe"  #: the whole expert-parallel layer, exchange included

TARGETS = (CPU_LAYER, CPU_ROWS, SM100_LAYER)


@functools.cache
def register() -> None:
    """Registers the handlers that this build has, once."""
    for name, capsule in _native.registrations().items():
        platform = "cpu" if name.startswith("jax_megamoe.cpu.") else "CUDA"
        jax.ffi.register_ffi_target(name, capsule, platform=platform, api_version=1)


def cpu_layer(
    x: Array, topk_idx: Array, topk_weights: Array, weights: PreparedWeights, swiglu: SwiGLU
) -> Array:
    """The whole layer on one CPU device; arguments and result as in `reference.moe_layer`."""
    operands = (x, topk_idx, topk_weights, *_weights_and_biases(weights))
    return _call(CPU_LAYER, operands, x.shape, swiglu, weights.layout_version)


def cpu_rows(
    q: Array,
    scale: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: PreparedWeights,
    swiglu: SwiGLU,
) -> Array:
    """Steps 2 to 6 on one CPU device; arguments and result as in `reference.expert_rows`."""
    operands = (q, scale, topk_idx, topk_weights, *_weights_and_biases(weights))
    shape = (*topk_idx.shape, q.shape[1])
    return _call(CPU_ROWS, operands, shape, swiglu, weights.layout_version)


def sm100_layer(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: PreparedWeights,
    swiglu: SwiGLU,
    num_ranks: int,
) -> Array:
    """The whole expert-parallel layer in one CUDA kernel; ids are global, the result is complete
    over the ranks.
    """
    operands = (x, topk_idx, topk_weights, *_weights_and_biases(weights))
    version = weights.layout_version
    return _call(SM100_LAYER, operands, x.shape, swiglu, version, num_ranks=np.int32(num_ranks))


def _call(
    target: str,
    operands: tuple[Array, ...],
    shape: tuple[int, ...],
    swiglu: SwiGLU,
    layout_version: int,
    **attributes: Any,
) -> Array:
    operands = manual_axes.vary_over(operands, manual_axes.varying_axes(operands))
    result = manual_axes.result_type(operands[0], shape, jnp.bfloat16)
    with jax.named_scope(target):
        return jax.ffi.ffi_call(target, result)(
            *operands,
            swiglu_limit=np.float32(swiglu.limit),
            swiglu_alpha=np.float32(swiglu.alpha),
            swiglu_beta=np.float32(swiglu.beta),
            layout_version=np.int32(layout_version),
            **attributes,
        )


def _weights_and_biases(weights: PreparedWeights) -> tuple[Array, ...]:
    """The six operands of a target; an absent bias is an array without columns."""
    experts = weights.gate_up_proj.shape[0]
    biases = tuple(
        jnp.zeros((experts, 0), jnp.float32) if bias is None else bias.astype(jnp.float32)
        for bias in (weights.gate_up_proj_bias, weights.down_proj_bias)
    )
    return (
        weights.gate_up_proj,
        weights.gate_up_proj_scale_inv,
        weights.down_proj,
        weights.down_proj_scale_inv,
        *biases,
    )


def sm100_built() -> bool:
    """Whether this build has the SM100 part."""
    return bool(_native.build_info()["sm100"])


def check_cpu_path() -> None:
    """ValueError, naming the accepted ones, if JAX_MEGAMOE_CPU_PATH asks for an instruction-set
    path that this machine has not; a call would report the same only when it runs.
    """
    _native.cpu_path()

"""What both modules do at construction and at each call: refuse, then call the layer.

The refusals themselves are in `jax_megamoe.validation`; the order in which they are used here is
that of the PyTorch original: device, weight type, axis, shapes. Nothing here reads a value, so all
of it may be traced.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import Array

from jax_megamoe import config as config_module
from jax_megamoe import platforms, validation
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.expert_parallel import AnyMesh, global_layer, mesh_of_call
from jax_megamoe.mega_moe import check_call, check_device
from jax_megamoe.modules import placing
from jax_megamoe.weights import ExpertWeights, PreparedWeights, check_prepared_arrays

Weights = ExpertWeights | PreparedWeights


def call(
    config: MegaMoeConfig,
    weights: Weights,
    hidden_states: Any,
    top_k_index: Any,
    top_k_weights: Any,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None,
    implementation: str | None,
) -> Array:
    """The layer of a module: `expert_parallel` with the config's activation and slots."""
    check_layer(config, weights, axis_name, mesh, implementation)
    swiglu = config_module.swiglu(config.swiglu_limit, config.swiglu_alpha, config.swiglu_beta)
    return global_layer(
        hidden_states,
        top_k_index,
        top_k_weights,
        weights,
        axis_name,
        mesh,
        swiglu,
        implementation,
        config.num_experts_per_tok,
        validation.MODULE_NAMES,
    )


def check_layer(
    config: MegaMoeConfig,
    weights: Weights | None,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None,
    implementation: str | None,
) -> None:
    """Every refusal that needs no tokens, in the original's order: device, weight type, axis,
    shapes.

    Args:
      weights: None where they are still to be made.
      mesh: None: the mesh in context, and if there is none, what depends on it is left to the
        call.
    """
    validation.check_config(config, MegaMoeConfig)
    mesh = mesh_of_call(mesh)
    devices = platforms.context_devices(mesh, *jax.tree.leaves(weights))
    if weights is None:
        validation.check_implementation(implementation)
        check_device(implementation, devices)
    else:
        check_call(weights, implementation, devices)
    names = validation.axis_names(axis_name)
    if mesh is not None:
        validation.check_axis_in_mesh(axis_name, mesh.axis_names)
    ranks = 1 if mesh is None else math.prod(mesh.shape[name] for name in names)
    validation.check_experts_divide(config.num_experts, ranks, axis_name)
    if weights is not None:
        local_ranks = ranks if placing.axis_is_manual(names) else 1
        _check_shapes(config, weights, config.num_experts // local_ranks)


def check_dense(
    config: MegaMoeConfig, gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any
) -> None:
    """Refuses unquantised experts of another type or shape than the config's."""
    experts, hidden, intermediate = (
        config.num_experts,
        config.hidden_size,
        config.intermediate_size,
    )
    for name, value, shape in (
        ("gate_up", gate_up, (experts, 2 * intermediate, hidden)),
        ("down", down, (experts, hidden, intermediate)),
        ("gate_up_bias", gate_up_bias, (experts, 2 * intermediate)),
        ("down_bias", down_bias, (experts, hidden)),
    ):
        if value is None:
            continue
        validation.check_array(name, value)
        if name.endswith("_bias"):
            validation.check_bias(name, value.dtype)
        else:
            validation.check_dense(name, value.dtype)
        validation.check_fits_config(name, tuple(value.shape), shape)
    for name, value in (("gate_up_bias", gate_up_bias), ("down_bias", down_bias)):
        validation.check_bias_given(name, value is not None, config.use_bias)


def _check_shapes(config: MegaMoeConfig, weights: Weights, num_experts: int) -> None:
    if isinstance(weights, PreparedWeights):
        check_prepared_arrays(weights)
        hidden, intermediate = weights.hidden_size, weights.intermediate_size
    else:
        hidden, intermediate = validation.check_weight_shapes(weights)
    found = (weights.gate_up_proj.shape[0], hidden, intermediate)
    expected = (num_experts, config.hidden_size, config.intermediate_size)
    validation.check_fits_config("(experts here, H, I) of the weights", found, expected)
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        validation.check_bias_given(name, getattr(weights, name) is not None, config.use_bias)

"""Makes a layer's experts: at random, from floating point, or from weights that are given.

The float32 form of all experts would not fit, so experts are made one at a time, each on the
device that owns it. All of it also runs inside a trace, where nothing is allocated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_megamoe import validation
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.expert_parallel import AnyMesh, inside_jit, mesh_of_call
from jax_megamoe.formats import GROUP, quantize_fp4, scale_bytes
from jax_megamoe.modules.placing import AxisNames, axis_is_manual, place
from jax_megamoe.weights import ExpertWeights, PreparedWeights

Weights = ExpertWeights | PreparedWeights


def random_weights(
    key: Array, config: MegaMoeConfig, axis_name: validation.AxisName, mesh: AnyMesh | None
) -> ExpertWeights:
    """FP4 experts whose values are normal with variance 1/fan-in; biases are zero.

    Expert e depends on the key and e alone, not on the mesh.
    """
    mesh = mesh_of_call(mesh)
    if isinstance(mesh, Mesh) and not isinstance(key, jax.core.Tracer) and not inside_jit():
        key = jax.device_put(key, NamedSharding(mesh, P()))
    names = validation.axis_names(axis_name)
    weights: ExpertWeights = _random(key, config=config, names=names, mesh=mesh)
    return weights


@functools.partial(jax.jit, static_argnames=("config", "names", "mesh"))
def _random(
    key: Array, *, config: MegaMoeConfig, names: AxisNames, mesh: AnyMesh | None
) -> ExpertWeights:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    gate_up, down = 2 * intermediate * hidden, hidden * intermediate
    fan_in = np.repeat([hidden, intermediate], [gate_up // GROUP, down // GROUP])

    def one_expert(key: Array, expert: Array) -> ExpertWeights:
        # Groups of both matrices at once: half as much to compile as one matrix after the other.
        values = jax.random.normal(jax.random.fold_in(key, expert), (fan_in.size, GROUP))
        codes, scale = quantize_fp4(values * np.float32(fan_in[:, None] ** -0.5))
        split = gate_up // GROUP
        weights = ExpertWeights(
            codes[:split].reshape(2 * intermediate, -1),
            scale[:split].reshape(2 * intermediate, -1),
            codes[split:].reshape(hidden, -1),
            scale[split:].reshape(hidden, -1),
        )
        if not config.use_bias:
            return weights
        biases = (jnp.zeros(2 * intermediate), jnp.zeros(hidden))
        return dataclasses.replace(weights, gate_up_proj_bias=biases[0], down_proj_bias=biases[1])

    def of_rank(key: Array, ids: Array) -> Any:
        return jax.lax.map(functools.partial(one_expert, key), ids)

    ids = jnp.arange(config.num_experts, dtype=jnp.int32)
    weights: ExpertWeights = _over_ranks(of_rank, names, mesh)(key, ids)
    return weights


def quantize_dense(
    gate_up: Any,
    down: Any,
    gate_up_bias: Any,
    down_bias: Any,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None,
) -> ExpertWeights:
    """FP4 experts from floating-point ones, float32 for one expert of a device at a time."""
    names = validation.axis_names(axis_name)
    mesh = mesh_of_call(mesh)
    dense = tuple(place(value, names, mesh) for value in (gate_up, down))
    weights: ExpertWeights = _quantize(*dense, names=names, mesh=mesh)
    return dataclasses.replace(weights, gate_up_proj_bias=gate_up_bias, down_proj_bias=down_bias)


@functools.partial(jax.jit, static_argnames=("names", "mesh"))
def _quantize(
    gate_up: Array, down: Array, *, names: AxisNames, mesh: AnyMesh | None
) -> ExpertWeights:
    def one_expert(dense: tuple[Array, Array]) -> ExpertWeights:
        gate_up, down = dense
        return ExpertWeights(*quantize_fp4(gate_up), *quantize_fp4(down))

    def of_rank(_: None, dense: tuple[Array, Array]) -> Any:
        return jax.lax.map(one_expert, dense)

    weights: ExpertWeights = _over_ranks(of_rank, names, mesh)(None, (gate_up, down))
    return weights


def _over_ranks(
    of_rank: Callable[[Any, Any], Any], names: AxisNames, mesh: AnyMesh | None
) -> Callable[[Any, Any], Any]:
    """of_rank(replicated, experts) on each rank's experts, experts being split over the axis.

    Inside a caller's shard_map, where the axis is manual, it takes this rank's part of all
    experts.
    """
    if axis_is_manual(names):

        def local(replicated: Any, experts: Any) -> Any:
            rank, ranks = jax.lax.axis_index(names), jax.lax.axis_size(names)

            def part(leaf: Array) -> Array:
                size = leaf.shape[0] // ranks
                return jax.lax.dynamic_slice_in_dim(leaf, rank * size, size)

            return of_rank(replicated, jax.tree.map(part, experts))

        return local
    if mesh is None:
        return of_rank

    def sharded(replicated: Any, experts: Any) -> Any:
        experts = jax.tree.map(lambda leaf: place(leaf, names, mesh), experts)
        call = jax.shard_map(of_rank, mesh=mesh, in_specs=(P(), P(names)), out_specs=P(names))
        return call(replicated, experts)

    return sharded


def given_weights(
    weights: Weights, axis_name: validation.AxisName, mesh: AnyMesh | None
) -> Weights:
    """Weights that a module is given, in its standard form and placed."""
    names = validation.axis_names(axis_name)
    mesh = mesh_of_call(mesh)
    placed: Weights = jax.tree.map(lambda leaf: place(leaf, names, mesh), standard_form(weights))
    return placed


def standard_form(weights: Weights) -> Weights:
    """The weights as modules hold them: checkpoint scales as float8_e8m0fnu in any case."""
    if isinstance(weights, PreparedWeights):
        return weights

    def scale(codes: Any, value: Any) -> Any:
        if value.dtype == jnp.float8_e8m0fnu:
            return value
        if isinstance(value, jax.ShapeDtypeStruct):
            shape = (*codes.shape[:-1], 2 * codes.shape[-1] // GROUP)
            return jax.ShapeDtypeStruct(shape, jnp.float8_e8m0fnu)
        return _as_e8m0(value, groups=2 * codes.shape[-1] // GROUP)

    return dataclasses.replace(
        weights,
        gate_up_proj_scale_inv=scale(weights.gate_up_proj, weights.gate_up_proj_scale_inv),
        down_proj_scale_inv=scale(weights.down_proj, weights.down_proj_scale_inv),
    )


@functools.partial(jax.jit, static_argnames="groups")
def _as_e8m0(scale: Array, *, groups: int) -> Array:
    return jax.lax.bitcast_convert_type(scale_bytes(scale, groups), jnp.float8_e8m0fnu)

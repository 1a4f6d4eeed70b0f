"""Rearranges a layer's experts into the layout of an implementation, in their own memory.

Weights fill the memory, so a second copy is what must not exist: each expert is written over its
checkpoint form, in arrays that are donated. What is written is `prepare_expert`'s business.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_megamoe import formats, validation
from jax_megamoe import weights as weights_module
from jax_megamoe.expert_parallel import AnyMesh, inside_jit, mesh_of_call
from jax_megamoe.modules.placing import AxisNames, place
from jax_megamoe.weights import FIELDS, ExpertWeights, PreparedWeights

Weights = ExpertWeights | PreparedWeights


def preparation_target(
    implementation: str | None, mesh: AnyMesh | None, weights: ExpertWeights
) -> str:
    """What `prepare` prepares for: None means the platform of the mesh, else of the arrays."""
    if implementation is not None:
        return implementation
    if isinstance(mesh, Mesh):
        return weights_module.implementation_of_device(mesh.devices.flat[0])
    return weights_module.implementation_for(weights)


def prepare(
    weights: ExpertWeights,
    implementation: str,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None,
    donate: frozenset[str] = frozenset(),
) -> PreparedWeights:
    """Prepared weights, made expert by expert, inside the memory of donated arrays.

    Args:
      donate: the names of the arrays that nobody else holds; they are used up.
    """
    names = validation.axis_names(axis_name)
    mesh = mesh_of_call(mesh)
    if mesh is not None:
        validation.check_axis_in_mesh(axis_name, mesh.axis_names)
    leaves = jax.tree.leaves(weights)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        shapes = _prepared_shapes(weights, implementation)
        placed: PreparedWeights = jax.tree.map(lambda leaf: place(leaf, names, mesh), shapes)
        return placed
    if inside_jit() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return weights_module.prepare_weights(weights, implementation)
    arrays = {name: getattr(weights, name) for name in FIELDS}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    shapes = _prepared_shapes(weights, implementation)
    for name, array in arrays.items():
        arrays[name] = place(array, names, mesh)
        if arrays[name] is not array:
            donate |= {name}
    for name in [name for name in arrays if name.endswith("_scale_inv")]:
        # A program of its own: the next one works in place only on arrays of the result's type.
        as_bytes = _donated_as_bytes if name in donate else _as_bytes
        arrays[name] = as_bytes(arrays[name])
        donate |= {name}
    donate = frozenset(name for name in donate if arrays[name].size == getattr(shapes, name).size)
    own = {name: arrays.pop(name) for name in donate if name in arrays}
    sharded_mesh = _mesh_sharded_by_experts([*own.values(), *arrays.values()], names)
    prepared: PreparedWeights = _prepare(
        own, arrays, implementation=implementation, names=names, mesh=sharded_mesh
    )
    return prepared


def unprepare(
    weights: Weights, axis_name: validation.AxisName, mesh: AnyMesh | None
) -> ExpertWeights:
    """The weights in checkpoint form."""
    if isinstance(weights, ExpertWeights):
        return weights
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(weights)):
        names = validation.axis_names(axis_name)
        mesh = mesh_of_call(mesh)
        shapes = jax.eval_shape(weights_module.unprepare_weights, weights)
        placed: ExpertWeights = jax.tree.map(lambda leaf: place(leaf, names, mesh), shapes)
        return placed
    return weights_module.unprepare_weights(weights)


@functools.partial(jax.jit, static_argnames=("implementation", "names", "mesh"), donate_argnums=0)
def _prepare(
    own: dict[str, Array],
    others: dict[str, Array],
    *,
    implementation: str,
    names: AxisNames,
    mesh: Mesh | None,
) -> PreparedWeights:
    def of_rank(arrays: dict[str, Array]) -> PreparedWeights:
        return _prepare_experts(arrays, implementation)

    if mesh is not None:
        of_rank = jax.shard_map(of_rank, mesh=mesh, in_specs=P(names), out_specs=P(names))
    with jax.named_scope("jax_megamoe.prepare"):
        return of_rank({**own, **others})


def _prepare_experts(arrays: dict[str, Array], implementation: str) -> PreparedWeights:
    """Writes each expert over its checkpoint form, where the layout has as many bytes."""

    def of_one(expert: dict[str, Array]) -> PreparedWeights:
        return weights_module.prepare_expert(ExpertWeights(**expert), implementation)

    first = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), arrays)
    shapes: PreparedWeights = jax.eval_shape(of_one, first)
    sizes = {name: math.prod(getattr(shapes, name).shape) for name in arrays}
    if any(sizes[name] != math.prod(first[name].shape) for name in arrays):
        whole: PreparedWeights = jax.lax.map(of_one, arrays)
        return whole

    def replace(expert: Array, arrays: dict[str, Array]) -> dict[str, Array]:
        old = {
            name: jax.lax.dynamic_index_in_dim(array, expert, keepdims=False)
            for name, array in arrays.items()
        }
        prepared = of_one(old)
        return {
            name: jax.lax.dynamic_update_index_in_dim(
                array, getattr(prepared, name).reshape(old[name].shape), expert, 0
            )
            for name, array in arrays.items()
        }

    experts = arrays["gate_up_proj"].shape[0]
    arrays = jax.lax.fori_loop(0, experts, replace, arrays)
    reshaped = {
        name: array.reshape(experts, *getattr(shapes, name).shape) for name, array in arrays.items()
    }
    fields: dict[str, Any] = dict(reshaped)
    return dataclasses.replace(shapes, **fields)


def _prepared_shapes(weights: ExpertWeights, implementation: str) -> PreparedWeights:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), weights)
    prepare = functools.partial(weights_module.prepare_weights, implementation=implementation)
    prepared: PreparedWeights = jax.eval_shape(prepare, shapes)
    return prepared


def _mesh_sharded_by_experts(arrays: list[Array], names: AxisNames) -> Mesh | None:
    """The mesh over whose axis all arrays are split by experts; None if they are not."""
    mesh: Mesh | None = None
    for array in arrays:
        sharding = array.sharding
        if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
            return None
        if not set(names) <= set(sharding.mesh.axis_names):
            return None
        wanted = NamedSharding(sharding.mesh, P(names))
        if not sharding.is_equivalent_to(wanted, array.ndim) or mesh not in (None, sharding.mesh):
            return None
        mesh = sharding.mesh
    return mesh


def _bytes_of(scale: Array) -> Array:
    return formats.scale_bytes(scale)


_as_bytes = jax.jit(_bytes_of)
_donated_as_bytes = jax.jit(_bytes_of, donate_argnums=0)

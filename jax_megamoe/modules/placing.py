"""Where a layer's arrays live: the experts split over the expert-parallel axis of a mesh.

Outside a trace arrays are moved; inside one the compiler is told. Arrays of a caller are never
aliased, see `place`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_megamoe.expert_parallel import AnyMesh, inside_jit

AxisNames = tuple[str, ...]


def place(leaf: Any, names: AxisNames, mesh: AnyMesh | None) -> Any:
    """An array of all experts, split over the axis of the mesh; as it is where there is no mesh.

    The result never shares memory with an array of the caller's, unless it is that very array:
    `prepare` gives memory back by donating arrays that nobody else holds.
    """
    if mesh is None or axis_is_manual(names):
        return leaf if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) else jnp.asarray(leaf)
    sharding = NamedSharding(mesh, P(names, *[None] * (len(leaf.shape) - 1)))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    if isinstance(mesh, Mesh) and not isinstance(leaf, jax.core.Tracer) and not inside_jit():
        if isinstance(leaf, jax.Array) and _is_placed(leaf, sharding):
            return leaf
        placed = jax.device_put(leaf, sharding)
        return jnp.copy(placed) if _may_share(leaf, sharding) else placed
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if all(kinds[name] == AxisType.Explicit for name in names):
        return jax.reshard(leaf, sharding)
    return jax.lax.with_sharding_constraint(leaf, sharding)


def _may_share(leaf: Any, sharding: NamedSharding) -> bool:
    """Whether `device_put` may keep a part where it is, which may_alias=False does not prevent."""
    if not isinstance(leaf, jax.Array) or leaf.sharding.device_set.isdisjoint(sharding.device_set):
        return False
    return leaf.sharding.shard_shape(leaf.shape) == sharding.shard_shape(leaf.shape)


def _is_placed(array: Array, sharding: NamedSharding) -> bool:
    if array.sharding.is_equivalent_to(sharding, array.ndim):
        return True
    return array.sharding.device_set == sharding.device_set and len(sharding.device_set) == 1


def axis_is_manual(names: AxisNames) -> bool:
    """Whether we are inside a caller's shard_map over the axis, so that arrays are one rank's."""
    return set(jax.sharding.get_abstract_mesh().manual_axes).issuperset(names)

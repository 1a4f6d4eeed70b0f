"""`expert_parallel`: the layer on global arrays, entering shard_map over the whole mesh.

All mesh axes become manual: XLA cannot partition a custom call, and with some axes left to it it
would gather the tokens over them. Tokens keep the sharding they have; where that does not use the
expert axis, each rank takes its part of what it holds and the parts are gathered over the expert
axis alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_megamoe import config, platforms, validation
from jax_megamoe.config import SwiGLU
from jax_megamoe.mega_moe import Weights, check_call, check_shapes, host_ids, local_layer

AnyMesh = Mesh | AbstractMesh


def expert_parallel(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
    *,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None = None,
    swiglu_limit: float | None = None,
    swiglu_alpha: float = 1.0,
    swiglu_beta: float = 0.0,
    implementation: str | None = None,
) -> Array:
    """`mega_moe` on global arrays: enters `jax.shard_map` over all axes of the mesh.

    The experts are split over the axis, and replicated over other axes; tokens are split over every
    axis of their sharding and over the expert axis. T need not divide by anything. Inside a
    shard_map where the axis is manual already, this is `mega_moe`.

    Args:
      x: bfloat16 [T, H]; more leading axes are allowed, here and below.
      topk_idx: int32 or int64 [T, K], expert ids; an id outside 0..E-1 skips the slot.
      topk_weights: float32, bfloat16 or float16 [T, K].
      weights: all E experts, ExpertWeights or PreparedWeights.
      axis_name: the expert-parallel mesh axis.
      mesh: a mesh that has it; None: the mesh in context (`jax.set_mesh`).
      swiglu_limit, swiglu_alpha, swiglu_beta, implementation: as in `mega_moe`.

    Returns:
      bfloat16, the shape of x, and its sharding on Explicit meshes.

    Raises:
      ValueError, TypeError, NotImplementedError: see `jax_megamoe.validation`.
    """
    swiglu = config.swiglu(swiglu_limit, swiglu_alpha, swiglu_beta)
    return global_layer(x, topk_idx, topk_weights, weights, axis_name, mesh, swiglu, implementation)


def global_layer(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
    axis_name: validation.AxisName,
    mesh: AnyMesh | None,
    swiglu: SwiGLU,
    implementation: str | None,
    num_slots: int | None = None,
    names_in_messages: validation.TokenNames = validation.FUNCTION_NAMES,
) -> Array:
    """The body of `expert_parallel` and of the modules' calls; `num_slots` is K where a config
    fixes it.
    """
    mesh = mesh_of_call(mesh)
    devices = platforms.context_devices(mesh, x, topk_idx, topk_weights, weights)
    check_call(weights, implementation, devices)
    validation.check_axis_in_mesh(axis_name, mesh.axis_names if mesh is not None else None)
    assert mesh is not None
    names = validation.axis_names(axis_name)
    manual = set(jax.sharding.get_abstract_mesh().manual_axes)
    validation.check_axis_is_whole(axis_name, manual)
    check_shapes(x, topk_idx, topk_weights, weights, num_slots, names_in_messages)
    experts = weights.gate_up_proj.shape[0]
    ranks = math.prod(mesh.shape[name] for name in names)
    if manual.issuperset(names):
        experts *= ranks
    else:
        validation.check_experts_divide(experts, ranks, axis_name)
    topk_idx = host_ids(topk_idx, experts)
    x, topk_idx, topk_weights = map(_as_array, (x, topk_idx, topk_weights))
    if x.size == 0:
        return x
    if manual.issuperset(names):
        tokens = _flat(x, topk_idx, topk_weights)
        return local_layer(*tokens, weights, axis_name, swiglu, implementation).reshape(x.shape)

    free = tuple(name for name in mesh.axis_names if name not in manual)
    lead = x.shape[:-1]
    spec = _token_spec(x, mesh, names, free)
    if spec is None:  # tokens in one axis, split over all that fit
        x, topk_idx, topk_weights = _flat(x, topk_idx, topk_weights)
        spec = _widest_spec(x.shape[0], mesh, names, free)
    tokens = (x, topk_idx, topk_weights)
    y = _sharded(
        *(_place(value, mesh, _partition(spec), free) for value in tokens),
        jax.tree.map(lambda leaf: _place(leaf, mesh, P(names), free), weights),
        mesh=mesh,
        spec=spec,
        free=free,
        axis_name=names,
        swiglu=swiglu,
        implementation=implementation,
    )
    return y.reshape(*lead, y.shape[-1])


@functools.partial(
    jax.jit, static_argnames=("mesh", "spec", "free", "axis_name", "swiglu", "implementation")
)
def _sharded(
    x: Array,
    topk_idx: Array,
    topk_weights: Array,
    weights: Weights,
    *,
    mesh: AnyMesh,
    spec: tuple[tuple[str, ...], ...],
    free: tuple[str, ...],
    axis_name: tuple[str, ...],
    swiglu: SwiGLU,
    implementation: str | None,
) -> Array:
    split = _partition(spec)
    split_already = {name for names in spec for name in names}.issuperset(axis_name)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        axis_names=set(free),
        in_specs=(split, split, split, P(axis_name)),
        out_specs=split,
    )
    def layer(x: Array, topk_idx: Array, topk_weights: Array, weights: Weights) -> Array:
        tokens = _flat(x, topk_idx, topk_weights)
        count = tokens[0].shape[0]
        if not split_already:
            tokens = (
                _own_part(tokens[0], axis_name, 0),
                _own_part(tokens[1], axis_name, -1),
                _own_part(tokens[2], axis_name, 0),
            )
        y = local_layer(*tokens, weights, axis_name, swiglu, implementation)
        if not split_already:
            y = jax.lax.all_gather(y, axis_name, tiled=True, to="invarying")[:count]
        return y.reshape(x.shape)

    return layer(x, topk_idx, topk_weights, weights)


def mesh_of_call(mesh: AnyMesh | None) -> AnyMesh | None:
    """The mesh given, else the one in context (abstract inside a trace), else None; inside a
    shard_map the one in context in any case, since only it says which axes are manual.
    """
    validation.check_mesh(mesh)
    context: AnyMesh = jax.sharding.get_abstract_mesh()
    if mesh is not None and not context.manual_axes:
        validation.check_mesh_in_context(mesh, context)
        return mesh
    if context.empty:
        return None
    return context if inside_jit() else jax.sharding.get_mesh()


def _flat(x: Array, topk_idx: Array, topk_weights: Array) -> tuple[Array, Array, Array]:
    """The leading axes of each as one axis of tokens."""
    return (
        x.reshape(-1, x.shape[-1]),
        topk_idx.reshape(-1, topk_idx.shape[-1]),
        topk_weights.reshape(-1, topk_weights.shape[-1]),
    )


def _partition(spec: tuple[tuple[str, ...], ...]) -> P:
    return P(*(group or None for group in spec), None)


def _names(entry: Any) -> tuple[str, ...]:
    """The axes in one entry of a PartitionSpec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _explicit_axes(mesh: AnyMesh, free: tuple[str, ...]) -> set[str]:
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name for name, kind in kinds if kind == AxisType.Explicit and name in free}


def inside_jit() -> bool:
    """Whether operations are being recorded rather than run."""
    try:
        jax.sharding.get_mesh()
    except ValueError:  # its documented refusal inside jax.jit
        return True
    return False


def _own_part(value: Array, axis_name: tuple[str, ...], fill: int) -> Array:
    """This rank's share of rows that all ranks of the axis hold, padded to equal shares."""
    ranks = jax.lax.axis_size(axis_name)
    share = -(-value.shape[0] // ranks)
    value = jnp.pad(value, ((0, share * ranks - value.shape[0]), (0, 0)), constant_values=fill)
    return jax.lax.dynamic_slice_in_dim(value, jax.lax.axis_index(axis_name) * share, share)


def _token_spec(
    x: Array, mesh: AnyMesh, names: tuple[str, ...], free: tuple[str, ...]
) -> tuple[tuple[str, ...], ...] | None:
    """The axes that split each leading axis of x, from its type; None on Auto meshes, where types
    do not tell.
    """
    explicit = _explicit_axes(mesh, free)
    if not explicit:
        return None
    spec = tuple(jax.typeof(x).sharding.spec)[: x.ndim - 1]
    axes = [_names(entry) for entry in spec]
    axes += [()] * (x.ndim - 1 - len(axes))
    used = [tuple(name for name in group if name in explicit) for group in axes]
    # A part of the expert axis cannot stay: the parts of one rank must be one block of tokens.
    if not set(names).issubset({name for group in used for name in group}):
        used = [tuple(name for name in group if name not in names) for group in used]
    return tuple(used)


def _widest_spec(
    tokens: int, mesh: AnyMesh, names: tuple[str, ...], free: tuple[str, ...]
) -> tuple[tuple[str, ...]]:
    """All axes if they divide T; else those besides the expert axis that do (see `_own_part`)."""
    others = tuple(name for name in free if name not in names)
    if tokens % math.prod(mesh.shape[name] for name in (*others, *names)) == 0:
        return ((*others, *names),)
    kept: tuple[str, ...] = ()
    for name in others:
        if tokens % math.prod(mesh.shape[kept_name] for kept_name in (*kept, name)) == 0:
            kept = (*kept, name)
    return (kept,)


def _place(value: Any, mesh: AnyMesh, spec: P, free: tuple[str, ...]) -> Any:
    """The value, sharded as shard_map wants it: moved, or inside a trace resharded if Explicit."""
    if isinstance(mesh, Mesh) and not isinstance(value, jax.core.Tracer) and not inside_jit():
        return jax.device_put(value, NamedSharding(mesh, spec))
    explicit = _explicit_axes(mesh, free)
    if not explicit:
        return value
    kept = P(*(tuple(n for n in _names(group) if n in explicit) or None for group in spec))
    return jax.reshard(value, NamedSharding(mesh, kept))


def _as_array(value: Any) -> Array:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)

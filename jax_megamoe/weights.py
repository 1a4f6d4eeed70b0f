"""Expert weights: as a checkpoint holds them, and prepared for one implementation.

Both are plain pytrees of arrays. Unflattening never validates, because transformations put None,
specs, shardings or ShapeDtypeStructs into the leaves; checks run where weights are used. All
preparation goes through `prepare_expert`, which knows the layouts; nothing else does.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_megamoe import formats, layouts, targets, validation

#: The field names of both classes, those of the Hugging Face modules: checkpoints map one to one.
FIELDS = (
    "gate_up_proj",
    "gate_up_proj_scale_inv",
    "down_proj",
    "down_proj_scale_inv",
    "gate_up_proj_bias",
    "down_proj_bias",
)

#: The static fields of PreparedWeights.
STATIC_FIELDS = ("implementation", "layout_version", "hidden_size", "intermediate_size")


@functools.partial(jax.tree_util.register_dataclass, data_fields=FIELDS, meta_fields=())
@dataclasses.dataclass(frozen=True)
class ExpertWeights:
    """Expert weights in the checkpoint layout.

    E local or global experts, H hidden size, I intermediate size, both multiples of 32.

    Attributes:
      gate_up_proj: int8 [E, 2I, H/2], two E2M1 codes a byte, even k in the low nibble; gate rows,
        then up rows.
      gate_up_proj_scale_inv: UE8M0 [E, 2I, H/32]: float8_e8m0fnu, uint8 bits, float32 powers of
        two, or int32 with four bytes along k.
      down_proj: int8 [E, H, I/2].
      down_proj_scale_inv: UE8M0 [E, H, I/32].
      gate_up_proj_bias: None, or float32 or bfloat16 [E, 2I].
      down_proj_bias: None, or float32 or bfloat16 [E, H].
    """

    gate_up_proj: Any
    gate_up_proj_scale_inv: Any
    down_proj: Any
    down_proj_scale_inv: Any
    gate_up_proj_bias: Any = None
    down_proj_bias: Any = None


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=FIELDS,
    meta_fields=STATIC_FIELDS,
)
@dataclasses.dataclass(frozen=True)
class PreparedWeights:
    """Expert weights in the layout of one implementation, made by `prepare_weights`.

    The array fields keep their names; their shapes are the layout's (see `jax_megamoe.layouts`),
    with the experts first and scales as uint8 bytes. The other fields are static: part of the
    tree's structure.

    Attributes:
      implementation: what the arrays are prepared for; calls with them run it.
      layout_version: the layout's version; another version is refused.
      hidden_size: H.
      intermediate_size: I.
    """

    gate_up_proj: Any
    gate_up_proj_scale_inv: Any
    down_proj: Any
    down_proj_scale_inv: Any
    gate_up_proj_bias: Any = None
    down_proj_bias: Any = None
    implementation: str = dataclasses.field(kw_only=True)
    layout_version: int = dataclasses.field(kw_only=True)
    hidden_size: int = dataclasses.field(kw_only=True)
    intermediate_size: int = dataclasses.field(kw_only=True)


def _register_for_export(nodetype: type[Any], static_fields: tuple[str, ...]) -> None:
    """Lets `jax.export` serialise programs that take such weights; the name is stored with them."""

    def build(static: Any, children: Any) -> Any:
        fields = zip((*FIELDS, *static_fields), (*children, *static), strict=True)
        return nodetype(**dict(fields))

    from_children: Any = build  # jax's protocol names its parameters with underscores

    jax.export.register_pytree_node_serialization(
        nodetype,
        serialized_name=f"jax_megamoe.{nodetype.__name__}",
        serialize_auxdata=lambda static: json.dumps(list(static)).encode(),
        deserialize_auxdata=lambda raw: tuple(json.loads(raw)),
        from_children=from_children,
    )


_register_for_export(ExpertWeights, ())
_register_for_export(PreparedWeights, STATIC_FIELDS)


def implementation_of_device(device: validation.DeviceLike) -> str:
    """What `implementation=None` means on a device: CPU -> cpu, NVIDIA GPU -> sm100, others (ROCm
    GPUs among them) -> xla.
    """
    if validation.is_cuda(device):
        return "sm100"
    return "cpu" if device.platform == "cpu" else "xla"


def prepare_weights(weights: ExpertWeights, implementation: str | None = None) -> PreparedWeights:
    """Rearranges checkpoint weights into the layout of an implementation, once, before serving.

    Jittable; under jit with sharded experts each device prepares its own. Input and result exist at
    the same time; `MegaMoe.prepare` works expert by expert.

    Args:
      weights: as a checkpoint holds them.
      implementation: "cpu", "sm100" or "xla"; None takes the platform of the arrays' devices,
        inside a trace that of the mesh in context, else of the default backend.

    Raises:
      ValueError: prepared already; mismatched shapes; float32 scales that are not powers of two.
      TypeError, NotImplementedError: as in `jax_megamoe.validation`.
    """
    validation.check_implementation(implementation)
    validation.check_preparable(weights, ExpertWeights, PreparedWeights)
    if implementation is None:
        implementation = implementation_for(weights)
    _check_buildable(implementation)
    check_weights(weights)
    return _prepare_jitted(weights, implementation)


def prepare_expert(weights: ExpertWeights, implementation: str) -> PreparedWeights:
    """Prepares ONE expert: as `prepare_weights`, on arrays without the leading E axis.

    What `prepare_weights`, `MegaMoe.prepare` and checkpoint loaders share. NumPy arrays stay on the
    host and give NumPy arrays.

    Args:
      weights: gate_up_proj [2I, H/2], gate_up_proj_scale_inv [2I, H/32], down_proj [H, I/2], ... of
        one expert.
      implementation: "cpu", "sm100" or "xla".
    """
    validation.check_implementation(implementation)
    validation.check_preparable(weights, ExpertWeights, PreparedWeights)
    _check_buildable(implementation)
    check_weights(weights, lead=0)
    if all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(weights)):
        return _prepare(weights, implementation)
    return _prepare_jitted(weights, implementation)


def unprepare_weights(prepared: PreparedWeights) -> ExpertWeights:
    """The checkpoint weights that `prepare_weights` was given, bit for bit (scales as
    float8_e8m0fnu).

    Raises:
      ValueError: the weights are of another layout version.
      TypeError: not PreparedWeights.
    """
    if not isinstance(prepared, PreparedWeights):
        raise TypeError(
            f"weights is {validation.a_type(prepared)}; a PreparedWeights is accepted (what "
            "prepare_weights returns)."
        )
    validation.check_weight_arrays(prepared)
    check_layout(prepared, None)
    check_prepared_arrays(prepared)
    return _unprepare_jitted(prepared)


def check_weights(weights: ExpertWeights, *, lead: int = 1) -> tuple[int, int]:
    """Every check on checkpoint weights, values too where they are concrete; returns (H, I)."""
    validation.check_weight_types(weights)
    sizes = validation.check_weight_shapes(weights, lead=lead)
    check_scale_values(weights)
    return sizes


def check_scale_values(weights: ExpertWeights) -> None:
    """Refuses concrete float32 scales that are no powers of two; reads no other form."""
    for name in ("gate_up_proj_scale_inv", "down_proj_scale_inv"):
        validation.check_scale_values(name, getattr(weights, name))


def check_layout(prepared: PreparedWeights, implementation: str | None) -> None:
    """Refuses weights prepared for another implementation, or in another layout version."""
    validation.check_implementation(prepared.implementation)
    current = layouts.get(prepared.implementation).VERSION
    validation.check_prepared(
        prepared.implementation, prepared.layout_version, current, implementation
    )


def check_prepared_arrays(prepared: PreparedWeights) -> None:
    """Refuses prepared weights whose arrays do not have the shapes and dtypes of their layout."""
    sizes = (prepared.hidden_size, prepared.intermediate_size)
    validation.check_sizes(*sizes, " in PreparedWeights")
    experts = prepared.gate_up_proj.shape[0] if prepared.gate_up_proj.ndim else 0
    expected = _layout_arrays(prepared.implementation, experts, *sizes)
    validation.check_prepared_arrays(prepared, expected)


@functools.cache
def _layout_arrays(
    implementation: str, experts: int, hidden: int, intermediate: int
) -> PreparedWeights:
    """The shapes and dtypes that a layout has, biases included."""

    def array(dtype: DTypeLike, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((experts, *shape), dtype)

    weights = ExpertWeights(
        array(jnp.int8, 2 * intermediate, hidden // 2),
        array(jnp.uint8, 2 * intermediate, hidden // formats.GROUP),
        array(jnp.int8, hidden, intermediate // 2),
        array(jnp.uint8, hidden, intermediate // formats.GROUP),
        array(jnp.float32, 2 * intermediate),
        array(jnp.float32, hidden),
    )
    shapes: PreparedWeights = jax.eval_shape(lambda w: _prepare(w, implementation), weights)
    return shapes


def canonical(weights: ExpertWeights) -> ExpertWeights:
    """The same weights with scales as uint8 bytes, whatever form they came in."""
    return dataclasses.replace(
        weights,
        gate_up_proj_scale_inv=_bytes_of(weights.gate_up_proj, weights.gate_up_proj_scale_inv),
        down_proj_scale_inv=_bytes_of(weights.down_proj, weights.down_proj_scale_inv),
    )


def prepare_in_trace(weights: ExpertWeights, implementation: str) -> PreparedWeights:
    """Preparation as a part of a traced call: right, but repeated at every execution."""
    with jax.named_scope("jax_megamoe.prepare"):
        return _prepare(weights, implementation)


def _prepare(weights: ExpertWeights, implementation: str) -> PreparedWeights:
    layout = layouts.get(implementation)
    weights = canonical(weights)
    return PreparedWeights(
        layout.prepare_codes(weights.gate_up_proj, "gate_up_proj"),
        layout.prepare_scales(weights.gate_up_proj_scale_inv, "gate_up_proj"),
        layout.prepare_codes(weights.down_proj, "down_proj"),
        layout.prepare_scales(weights.down_proj_scale_inv, "down_proj"),
        weights.gate_up_proj_bias,
        weights.down_proj_bias,
        implementation=implementation,
        layout_version=layout.VERSION,
        hidden_size=2 * weights.gate_up_proj.shape[-1],
        intermediate_size=weights.gate_up_proj.shape[-2] // 2,
    )


def _unprepare(prepared: PreparedWeights) -> ExpertWeights:
    layout = layouts.get(prepared.implementation)
    hidden, intermediate = prepared.hidden_size, prepared.intermediate_size
    gate_up: tuple[layouts.Matrix, int, int] = ("gate_up_proj", 2 * intermediate, hidden)
    down: tuple[layouts.Matrix, int, int] = ("down_proj", hidden, intermediate)
    return ExpertWeights(
        layout.unprepare_codes(prepared.gate_up_proj, *gate_up),
        _as_e8m0(layout.unprepare_scales(prepared.gate_up_proj_scale_inv, *gate_up)),
        layout.unprepare_codes(prepared.down_proj, *down),
        _as_e8m0(layout.unprepare_scales(prepared.down_proj_scale_inv, *down)),
        prepared.gate_up_proj_bias,
        prepared.down_proj_bias,
    )


def _check_buildable(implementation: str) -> None:
    if implementation == "sm100":
        validation.check_sm100_built(targets.sm100_built())


@functools.partial(jax.jit, static_argnames="implementation")
def _prepare_jitted(weights: ExpertWeights, implementation: str) -> PreparedWeights:
    prepared: PreparedWeights = _on_any_mesh(
        lambda weights: _prepare(weights, implementation), weights, weights.gate_up_proj.ndim - 2
    )
    return prepared


@jax.jit
def _unprepare_jitted(prepared: PreparedWeights) -> ExpertWeights:
    weights: ExpertWeights = _on_any_mesh(_unprepare, prepared, 1)
    return weights


def _on_any_mesh(function: Callable[[Any], Any], weights: Any, lead: int) -> Any:
    """function(weights), its `lead` leading axes sharded as before; on Explicit axes too, where
    each reshape of a layout would have to say how its result is sharded.
    """
    sharding = jax.typeof(weights.gate_up_proj).sharding
    kinds = zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True)
    explicit = tuple(name for name, kind in kinds if kind == AxisType.Explicit)
    if not explicit:
        return function(weights)
    kept = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:lead]))
    return jax.sharding.auto_axes(function, axes=explicit, out_sharding=kept)(weights)


def _bytes_of(codes: Any, scale: Any) -> Any:
    groups = 2 * codes.shape[-1] // formats.GROUP
    if not isinstance(scale, np.ndarray):
        return formats.scale_bytes(scale, groups)
    if scale.dtype == np.int32:
        return np.ascontiguousarray(scale).view(np.uint8)[..., :groups]
    if scale.dtype == np.float32:  # powers of two, as checked: the exponent's bits
        return (scale.view(np.int32) >> 23).astype(np.uint8)
    return scale.view(np.uint8)


def _as_e8m0(scale: Any) -> Any:
    if isinstance(scale, np.ndarray):
        return scale.view(jnp.float8_e8m0fnu)
    return jax.lax.bitcast_convert_type(scale, jnp.float8_e8m0fnu)


def implementation_for(weights: ExpertWeights) -> str:
    """What `prepare_weights(weights, None)` prepares for."""
    leaf = weights.gate_up_proj
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        return implementation_of_device(next(iter(leaf.devices())))
    kind = jax.sharding.get_abstract_mesh().abstract_device
    if kind is None:
        return implementation_of_device(jax.devices()[0])
    # An abstract device calls every GPU "gpu"; a device of its kind tells whose it is.
    alike = (device for device in jax.devices() if device.device_kind == kind.device_kind)
    return implementation_of_device(next(alike, kind))

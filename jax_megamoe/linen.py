"""`jax_megamoe.linen.MegaMoe`, the Linen twin of the nnx module, and functions of its variables.

It shares everything but the holding of arrays with `jax_megamoe.modules`. The arrays are
variables of the collection "quantized", under the names of `ExpertWeights` or, prepared, under
names that contain the layout; they are boxed with the names of their mesh axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn
from flax.core import meta
from jax import Array

from jax_megamoe import validation
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.expert_parallel import AnyMesh
from jax_megamoe.modules import forms, layer, making, preparing
from jax_megamoe.modules.forms import check_restore
from jax_megamoe.weights import ExpertWeights, PreparedWeights

__all__ = ["COLLECTION", "MegaMoe", "check_restore", "collection", "prepare"]

COLLECTION = "quantized"


class ExpertAxisNames(nn.Partitioned[Any]):
    """The mesh axis over which an array's experts are split; `nn.get_partition_spec` reads it.

    Unboxing adds no sharding constraint, as `nn.Partitioned` would: where the axis is manual or
    Explicit that is an error, and the layer places its arrays itself.
    """

    def unbox(self, apply_constraint: bool = False) -> Any:
        return self.value


class MegaMoe(nn.Module):
    """Mixture-of-experts layer with FP4 expert weights, expert-parallel, for inference.

    `init` makes random FP4 weights from the "params" stream. Weights of a checkpoint need no
    `init`: {"quantized": collection(ExpertWeights(...))} are a layer's variables.

    >>> import jax, jax.numpy as jnp, jax_megamoe
    >>> from jax_megamoe import linen
    >>> config = jax_megamoe.MegaMoeConfig(
    ...     num_experts=8, hidden_size=64, intermediate_size=32, num_experts_per_tok=2)
    >>> moe = linen.MegaMoe(config, mesh=jax.make_mesh((1,), ("ep",)))
    >>> x = jnp.ones((2, 5, 64), jnp.bfloat16)                    # [..., H]
    >>> router_weights, expert_ids = jax.lax.top_k(jnp.ones((2, 5, 8)) / 8, 2)
    >>> variables = moe.init(jax.random.key(0), x, expert_ids, router_weights)
    >>> variables = linen.prepare(variables)
    >>> jax.jit(moe.apply)(variables, x, expert_ids, router_weights).shape
    (2, 5, 64)

    Attributes:
      config: sizes and activation.
      axis_name: the expert-parallel mesh axis; it stands in for the process group of the PyTorch
        layer.
      mesh: a mesh that has the axis; None: the mesh in context (`jax.set_mesh`).
      implementation: "sm100", "cpu", "xla"; None: what the weights are prepared for, else by
        platform.
    """

    config: MegaMoeConfig
    axis_name: validation.AxisName = "ep"
    mesh: AnyMesh | None = None
    implementation: str | None = None

    @nn.compact
    def __call__(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Array:
        """The layer, complete over the ranks; shapes and types as for `jax_megamoe.MegaMoe`."""
        if self.is_initializing() and not self._held():
            layer.check_layer(self.config, None, self.axis_name, self.mesh, self.implementation)
            key = self.make_rng("params")
            made = making.random_weights(key, self.config, self.axis_name, self.mesh)
            for name, box in collection(made, self.axis_name).items():
                self.put_variable(COLLECTION, name, box)
        return layer.call(
            self.config,
            self._weights(),
            hidden_states,
            top_k_index,
            top_k_weights,
            self.axis_name,
            self.mesh,
            self.implementation,
        )

    def expert_weights(self) -> ExpertWeights:
        """The weights in the checkpoint layout: `moe.apply(variables, method="expert_weights")`."""
        return preparing.unprepare(self._weights(), self.axis_name, self.mesh)

    def _weights(self) -> ExpertWeights | PreparedWeights:
        sizes = (self.config.hidden_size, self.config.intermediate_size)
        return forms.weights_of(self._held(), sizes)

    def _held(self) -> dict[str, Any]:
        variables = self.variables.get(COLLECTION, {})
        return {name: meta.unbox(variables[name]) for name in variables}


def collection(
    weights: ExpertWeights | PreparedWeights, axis_name: validation.AxisName = "ep"
) -> dict[str, Any]:
    """The variables of one MegaMoe that hold the weights: its part of "quantized"."""
    return _boxed(making.standard_form(weights), (_axis_entry(axis_name),))


def prepare(
    variables: Mapping[str, Any],
    implementation: str | None = None,
    axis_name: validation.AxisName = "ep",
) -> dict[str, Any]:
    """The same variables, the weights of every MegaMoe in them rearranged for an implementation.

    The variables given stay valid; drop them to free their memory.

    Args:
      variables: all variables of a model, or at least {"quantized": ...}.
      implementation: "sm100", "cpu" or "xla"; None: by the platform of the arrays.
      axis_name: the layers' expert-parallel axis, where the variables are no longer in the boxes
        (`nn.Partitioned`) that name it.
    """
    validation.check_implementation(implementation)
    validation.check_collection(COLLECTION, variables)
    layers = _prepare_layers(variables[COLLECTION], implementation, _axis_entry(axis_name))
    return {**variables, COLLECTION: layers}


def _prepare_layers(
    tree: Mapping[str, Any], implementation: str | None, axis: Any
) -> dict[str, Any]:
    boxes = {name: box for name, box in tree.items() if forms.is_weight_name(name)}
    rest = {
        name: _prepare_layers(branch, implementation, axis)
        if isinstance(branch, Mapping)
        else branch  # another module's
        for name, branch in tree.items()
        if name not in boxes
    }
    if not boxes:
        return rest
    no_sizes = (0, 0)  # only prepared weights have them, and those are refused
    weights = forms.weights_of({name: meta.unbox(box) for name, box in boxes.items()}, no_sizes)
    validation.check_preparable(weights, ExpertWeights, PreparedWeights)
    assert isinstance(weights, ExpertWeights)
    target = preparing.preparation_target(implementation, None, weights)
    layers = weights.gate_up_proj.ndim - 3  # leading axes, of nn.scan or nn.vmap
    box = next(iter(boxes.values()))
    names = box.names if isinstance(box, nn.Partitioned) else (*[None] * layers, axis)

    def prepare_one(weights: ExpertWeights) -> PreparedWeights:
        return preparing.prepare(weights, target, names[layers] or axis, None)

    for _ in range(layers):
        prepare_one = jax.vmap(prepare_one)
    return {**rest, **_boxed(prepare_one(weights), names[: layers + 1])}


def _boxed(weights: ExpertWeights | PreparedWeights, names: tuple[Any, ...]) -> dict[str, Any]:
    """The arrays in boxes; `names` are the mesh axes of the leading axes, up to the experts'."""
    return {
        name: ExpertAxisNames(array, names=(*names, *[None] * (array.ndim - len(names))))
        for name, array in forms.named_arrays(weights).items()
    }


def _axis_entry(axis_name: validation.AxisName) -> Any:
    names = validation.axis_names(axis_name)
    return names[0] if len(names) == 1 else names

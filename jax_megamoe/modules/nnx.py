"""`MegaMoe`, the layer as a `flax.nnx.Module`.

It holds the weights, in one form at a time, as variables that gradients and optimizers pass by;
what is done with them is in its neighbours, shared with the Linen twin. Constructing inside a
trace (`nnx.eval_shape`) or without a mesh must work, so nothing here reads a value or needs a
device.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
from flax import nnx
from jax import Array

from jax_megamoe import targets, validation
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.expert_parallel import AnyMesh
from jax_megamoe.modules import forms, layer, making, preparing
from jax_megamoe.modules.mesh_handle import MeshHandle
from jax_megamoe.weights import ExpertWeights, PreparedWeights


class QuantizedWeight(nnx.Variable[Any]):
    """An array of all experts: integers that have no gradient, so it is no `nnx.Param`.

    It is shown by shape and type: showing values would fetch gigabytes from the devices.
    """

    def __nnx_repr__(self) -> Any:
        return nnx.Variable.__nnx_repr__(self._described())

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return nnx.Variable.__treescope_repr__(self._described(), path, subtree_renderer)

    def _described(self) -> nnx.Variable[Any]:
        value = self.get_raw_value()
        if not isinstance(value, jax.Array):
            return self
        return self.replace(jax.ShapeDtypeStruct(value.shape, value.dtype))


class MegaMoe(nnx.Module):
    """Mixture-of-experts layer with FP4 expert weights, expert-parallel, for inference.

    E experts, H hidden size, I intermediate size, K slots a token.

    >>> import jax, jax.numpy as jnp, jax_megamoe
    >>> from flax import nnx
    >>> config = jax_megamoe.MegaMoeConfig(
    ...     num_experts=8, hidden_size=64, intermediate_size=32, num_experts_per_tok=2)
    >>> mesh = jax.make_mesh((1,), ("ep",))
    >>> moe = jax_megamoe.MegaMoe(config, mesh=mesh, rngs=nnx.Rngs(0))
    >>> moe.prepare()
    >>> x = jnp.ones((2, 5, 64), jnp.bfloat16)                    # [..., H]
    >>> router_weights, expert_ids = jax.lax.top_k(jnp.ones((2, 5, 8)) / 8, 2)
    >>> nnx.jit(lambda moe, *tokens: moe(*tokens))(moe, x, expert_ids, router_weights).shape
    (2, 5, 64)

    It holds one form of the weights: the checkpoint layout, in attributes with the names of
    `ExpertWeights`; or, after `prepare`, arrays whose names end in the implementation and its
    layout version (`gate_up_proj_cpu_v1`), so that a checkpoint of another layout does not fit.

    Args:
      config: sizes and activation.
      axis_name: the expert-parallel mesh axis; it stands in for the process group of the PyTorch
        layer.
      mesh: a mesh that has the axis: the weights are split over it when they are made, and calls
        run on it. None: the mesh in context (`jax.set_mesh`), now and at each call.
      implementation: "sm100", "cpu", "xla"; None: what the weights are prepared for, else by
        platform.
      weights: all E experts, ExpertWeights or PreparedWeights; may be ShapeDtypeStructs.
      rngs: makes random FP4 weights from its "params" stream where no weights are given.

    Raises:
      ValueError, TypeError, NotImplementedError: see `jax_megamoe.validation`.
    """

    def __init__(
        self,
        config: MegaMoeConfig,
        *,
        axis_name: validation.AxisName = "ep",
        mesh: AnyMesh | None = None,
        implementation: str | None = None,
        weights: ExpertWeights | PreparedWeights | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        layer.check_layer(config, weights, axis_name, mesh, implementation)
        validation.check_weights_or_rngs(weights, rngs)
        self.config = config
        self.axis_name = axis_name
        self.implementation = implementation
        self._mesh = MeshHandle(mesh)
        if weights is None:
            assert rngs is not None
            weights = making.random_weights(rngs.params(), config, axis_name, mesh)
        else:
            weights = making.given_weights(weights, axis_name, mesh)
        self._hold(weights)

    @classmethod
    def from_dense(
        cls,
        config: MegaMoeConfig,
        gate_up: Any,
        down: Any,
        gate_up_bias: Any = None,
        down_bias: Any = None,
        *,
        axis_name: validation.AxisName = "ep",
        mesh: AnyMesh | None = None,
        implementation: str | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> MegaMoe:
        """The layer with experts quantised from floating point, by `quantize_fp4`.

        Args:
          config: sizes and activation.
          gate_up: [E, 2I, H], gate rows, then up rows.
          down: [E, H, I].
          gate_up_bias, down_bias: float32 or bfloat16 [E, 2I] and [E, H], if the config has
            biases.
          axis_name, mesh, implementation: as for the class; rngs is not used.
        """
        layer.check_layer(config, None, axis_name, mesh, implementation)
        layer.check_dense(config, gate_up, down, gate_up_bias, down_bias)
        weights = making.quantize_dense(gate_up, down, gate_up_bias, down_bias, axis_name, mesh)
        return cls(
            config, axis_name=axis_name, mesh=mesh, implementation=implementation, weights=weights
        )

    def __call__(self, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Array:
        """The layer; the result is complete over the ranks, do not reduce it.

        Args:
          hidden_states: bfloat16 [..., H].
          top_k_index: int32 or int64 [..., K], expert ids; an id outside 0..E-1 (-1 by custom)
            skips the slot.
          top_k_weights: float32, bfloat16 or float16 [..., K].

        Returns:
          bfloat16 [..., H].
        """
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

    def prepare(self, implementation: str | None = None) -> None:
        """Rearranges the weights, in place, into the layout of an implementation.

        To be done once, before serving. It works expert by expert, inside the memory of the old
        arrays: no more than one expert of a device exists twice. Where somebody else still holds
        an old array (the `weights` given, an `nnx.state`), that array stays as it is, and the new
        one is made next to it.

        Args:
          implementation: "sm100", "cpu" or "xla"; None: the module's, else by the platform of
            the mesh or arrays.

        Raises:
          ValueError: prepared already, or the module is for another implementation.
        """
        weights = self._weights()
        validation.check_implementation(implementation)
        validation.check_preparable(weights, ExpertWeights, PreparedWeights)
        assert isinstance(weights, ExpertWeights)
        validation.check_prepare_target(implementation, self.implementation)
        target = preparing.preparation_target(
            implementation or self.implementation, self.mesh, weights
        )
        layer.check_layer(self.config, weights, self.axis_name, self.mesh, target)
        del weights
        ours = frozenset(name for name in self._weight_names() if _is_only_holder(vars(self)[name]))
        weights = self._weights()
        assert isinstance(weights, ExpertWeights)
        self._hold(preparing.prepare(weights, target, self.axis_name, self.mesh, ours))

    def expert_weights(self) -> ExpertWeights:
        """The weights in the checkpoint layout, bit for bit; after `prepare` a copy."""
        return preparing.unprepare(self._weights(), self.axis_name, self.mesh)

    def setup(self, max_tokens_per_rank: int) -> None:
        """Makes the peer memory that calls of up to `max_tokens_per_rank` tokens need.

        To be called outside of any trace. Only "sm100" will have such memory, and refuses until
        then; for "cpu" and "xla" this does nothing.

        Raises:
          ValueError: max_tokens_per_rank is not positive.
          NotImplementedError: "sm100", whose workspace is not in this version.
        """
        validation.check_capacity(max_tokens_per_rank)
        weights = self._weights()
        if isinstance(weights, PreparedWeights):
            target = weights.implementation
        else:
            target = preparing.preparation_target(self.implementation, self.mesh, weights)
        if target == "sm100":
            validation.check_sm100_built(targets.sm100_built())
            raise NotImplementedError(validation.NO_WORKSPACE_MESSAGE)

    @property
    def mesh(self) -> AnyMesh | None:
        """The mesh given; None: the one in context at each call."""
        return self._mesh.mesh

    def _hold(self, weights: ExpertWeights | PreparedWeights) -> None:
        for name in self._weight_names():
            delattr(self, name)
        names = validation.axis_names(self.axis_name)
        axis = names[0] if len(names) == 1 else names
        for name, array in forms.named_arrays(weights).items():
            # Placed already; eager sharding would need a mesh.
            spec = (axis, *[None] * (len(array.shape) - 1))
            variable = QuantizedWeight(array, out_sharding=spec, eager_sharding=False)
            setattr(self, name, variable)

    def _weight_names(self) -> list[str]:
        return [name for name in vars(self) if forms.is_weight_name(name)]

    def _weights(self) -> ExpertWeights | PreparedWeights:
        held = {name: vars(self)[name].get_value() for name in self._weight_names()}
        sizes = (self.config.hidden_size, self.config.intermediate_size)
        return forms.weights_of(held, sizes)

    def __setattr__(self, name: str, value: Any) -> None:
        # nnx.update adds what a module lacks; arrays of another form would be held and not used.
        if forms.is_weight_name(name) and name not in vars(self):
            forms.check_name_fits(name, self._weight_names())
        super().__setattr__(name, value)


def _is_only_holder(variable: nnx.Variable[Any]) -> bool:
    """Whether only the variable refers to its array, so that donating it surprises nobody."""
    return _references(variable) <= _references(QuantizedWeight(object()))


def _references(variable: nnx.Variable[Any]) -> int:
    return sys.getrefcount(variable.get_raw_value())

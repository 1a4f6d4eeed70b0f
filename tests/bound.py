"""Binds the shared test base to `jax_megamoe.mega_moe`, as a user calls it: jitted, inside
`shard_map` over a mesh axis of one device. Which implementation runs is the subclass's choice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import Contract
from oracle import Array


@functools.cache
def _layer(
    implementation: str, activation: tuple[tuple[str, Any], ...]
) -> Callable[..., jax.Array]:
    mesh = jax.make_mesh((1,), ("ep",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:1])
    call = functools.partial(
        jax_megamoe.mega_moe, axis_name="ep", implementation=implementation, **dict(activation)
    )
    return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("ep"), out_specs=P("ep")))


class BoundContract(Contract):
    implementation: str

    def weights(self, weights: dict[str, Array]) -> Any:
        """The weights as the layer takes them; `PreparedWeights` in a subclass."""
        return jax_megamoe.ExpertWeights(**weights)

    def run(
        self,
        x: Array,
        topk_idx: Array,
        topk_weights: Array,
        weights: dict[str, Array],
        **activation: Any,
    ) -> Array:
        layer = _layer(self.implementation, tuple(sorted(activation.items())))
        return np.asarray(layer(x, topk_idx, topk_weights, self.weights(weights)))

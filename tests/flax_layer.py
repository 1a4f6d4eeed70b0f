"""The nnx layer as its tests make and compare it; `layer.py` has the cases, meshes and refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_megamoe import ExpertWeights, MegaMoe, MegaMoeConfig, layouts
from layer import (
    small_case,
    tokens_of,
    weights_of,
)

CONFIG = MegaMoeConfig(8, 64, 32, 3)
NAMES = ["down_proj", "down_proj_scale_inv", "gate_up_proj", "gate_up_proj_scale_inv"]
kinds = pytest.mark.parametrize("kind", ["Auto", "Explicit"])


def loaded(mesh: Any = None, **keywords: Any) -> MegaMoe:
    """A layer with the weights of `small_case`."""
    return MegaMoe(CONFIG, mesh=mesh, weights=weights_of(small_case()), **keywords)


def zeros(experts: int, hidden: int, intermediate: int) -> ExpertWeights:
    codes, scales = jnp.zeros, jnp.ones
    return ExpertWeights(
        codes((experts, 2 * intermediate, hidden // 2), jnp.int8),
        scales((experts, 2 * intermediate, hidden // 32), jnp.float8_e8m0fnu),
        codes((experts, hidden, intermediate // 2), jnp.int8),
        scales((experts, hidden, intermediate // 32), jnp.float8_e8m0fnu),
    )


def random(mesh: Any = None, **keywords: Any) -> MegaMoe:
    return MegaMoe(CONFIG, mesh=mesh, rngs=nnx.Rngs(7), **keywords)


def tokens() -> tuple[jax.Array, jax.Array, jax.Array]:
    return tokens_of(small_case())


def held(moe: MegaMoe) -> list[str]:
    return sorted(name for name, value in vars(moe).items() if isinstance(value, nnx.Variable))


def value_bytes(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf).view(np.uint8) for leaf in jax.tree.leaves(tree)]


def assert_same_bytes(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(value_bytes(got), value_bytes(want), strict=True):
        np.testing.assert_array_equal(one, other)


def names_in(implementation: str) -> list[str]:
    version = layouts.get(implementation).VERSION
    return sorted(f"{name}_{implementation}_v{version}" for name in NAMES)


def run(moe: MegaMoe, *tokens: jax.Array) -> jax.Array:
    return moe(*tokens)

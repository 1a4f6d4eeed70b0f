"""The layer as tests of the JAX side call it: cases as JAX arrays, meshes, refusals.

`data.py` makes the cases and `contract.py` compares bits; nothing here computes an expectation.
Shapes stay tiny, since every call compiles.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import jax_megamoe
from contract import bits
from data import Case, random_case

IMPLEMENTATIONS = ("cpu", "xla")


@functools.cache
def small_case(**keywords: Any) -> Case:
    """16 tokens, H 64, I 32, 8 experts, 3 slots, some of them skipped."""
    sizes = {"tokens": 16, "hidden": 64, "intermediate": 32, "experts": 8, **keywords}
    return random_case(5, **sizes)


def tokens_of(case: Case) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(case.x), jnp.asarray(case.topk_idx), jnp.asarray(case.topk_weights)


def weights_of(case: Case) -> jax_megamoe.ExpertWeights:
    return jax_megamoe.ExpertWeights(**jax.tree.map(jnp.asarray, case.weights))


def mesh_of(kind: str = "Auto", **axes: int) -> Mesh:
    """A mesh of the first host devices; axes by name and size, all of one kind."""
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    kinds = (getattr(AxisType, kind),) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices)


@functools.cache
def _one_device_bits(implementation: str, keywords: tuple[tuple[str, Any], ...]) -> np.ndarray:
    case = small_case(**dict(keywords))
    y = jax_megamoe.expert_parallel(
        *tokens_of(case),
        weights_of(case),
        axis_name="ep",
        mesh=mesh_of(ep=1),
        implementation=implementation,
    )
    return bits(np.asarray(y))


def assert_as_on_one_device(y: jax.Array, implementation: str, **keywords: Any) -> None:
    """Equal to `small_case(**keywords)` on one device, bit for bit; leading axes may differ."""
    want = _one_device_bits(implementation, tuple(sorted(keywords.items())))
    assert want.any(), "the case is meant to have a result"
    got = np.asarray(y)
    np.testing.assert_array_equal(bits(got).reshape(-1, got.shape[-1]), want)


@contextlib.contextmanager
def refused(error: type[Exception], *words: object) -> Iterator[None]:
    """Expects exactly this error, saying all these words, both clashing numbers among them."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error, f"{type(caught.value).__name__} is no {error.__name__}"
    message = str(caught.value)
    for word in map(str, words):
        # A number must not be found as the end of another.
        start = r"(?<![\w.])" if word[:1].isdigit() else ""
        assert re.search(start + re.escape(word), message), f"{word!r} is not in: {message}"

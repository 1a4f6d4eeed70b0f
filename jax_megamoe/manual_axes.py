"""Types of arrays inside shard_map: which manual axes a value varies over.

Under `check_vma` every value carries the set of mesh axes over which it differs between devices,
and loops, branches and custom calls must agree on it. A custom call's result, or a loop's initial
value, made from a bare shape carries none, which fails only later, in a `lax.scan` or `lax.cond` of
the caller.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
from jax.typing import DTypeLike


def varying_axes(*trees: Any) -> frozenset[str]:
    """The union of the manual axes over which the arrays of some pytrees vary."""
    leaves = jax.tree.leaves(trees)
    return frozenset().union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in leaves))


def vary_over(tree: Any, axes: frozenset[str]) -> Any:
    """The same values, marked as varying over at least `axes`."""

    def mark(leaf: Array) -> Array:
        missing = axes - jax.typeof(leaf).manual_axis_type.varying
        return jax.lax.pcast(leaf, tuple(sorted(missing)), to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def result_type(operand: Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    """The type of a custom call's result that varies over the same axes as an operand."""
    return jax.ShapeDtypeStruct.like(operand).update(shape=shape, dtype=dtype)

"""Prepared weight layouts, one module for each implementation that has one.

A layout module has VERSION (raised whenever a byte moves) and four functions: prepare_codes and
prepare_scales, from the checkpoint's arrays to the layout's, and their bitwise inverses. They take
any leading dimensions and use only what NumPy and jax.numpy arrays share, so that they are jittable
and also serve a checkpoint loader on the host; `as_uint8` and `as_int8` are the one place where the
two differ.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

ArrayT = TypeVar("ArrayT", bound=Any)  # a NumPy or a JAX array


class Layout(Protocol):
    """What a layout module offers; shapes in the docstring of `jax_megamoe.layouts`."""

    VERSION: int

    def prepare_codes(self, codes: ArrayT) -> ArrayT: ...
    def unprepare_codes(self, prepared: ArrayT, n: int, k: int) -> ArrayT: ...
    def prepare_scales(self, scales: ArrayT) -> ArrayT: ...
    def unprepare_scales(self, prepared: ArrayT, n: int, k: int) -> ArrayT: ...


def get(implementation: str) -> Layout:
    """The layout module of an implementation."""
    return cast(Layout, importlib.import_module(f"jax_megamoe.layouts.{implementation}"))


def as_uint8(array: ArrayT) -> ArrayT:
    """The same bytes as uint8."""
    return _bitcast(array, np.uint8)


def as_int8(array: ArrayT) -> ArrayT:
    """The same bytes as int8."""
    return _bitcast(array, np.int8)


def _bitcast(array: ArrayT, dtype: Any) -> ArrayT:
    if isinstance(array, np.ndarray):
        return cast(ArrayT, array.view(dtype))
    return cast(ArrayT, jax.lax.bitcast_convert_type(jnp.asarray(array), dtype))

"""Prepared weight layouts, one module for each implementation that has one.

A layout module has VERSION (raised whenever a byte moves) and four functions: prepare_codes and
prepare_scales, from the checkpoint's arrays to the layout's, and their bitwise inverses. They are
told which matrix it is, since a layout may order gate and up rows otherwise than down rows. They
take any leading dimensions, and NumPy arrays as well as JAX's, so that they are jittable and also
serve a checkpoint loader on the host.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, Protocol, TypeVar, cast

ArrayT = TypeVar("ArrayT", bound=Any)  # a NumPy or a JAX array
Matrix = Literal["gate_up_proj", "down_proj"]


class Layout(Protocol):
    """What a layout module offers; shapes in the docstring of `jax_megamoe.layouts`."""

    VERSION: int

    def prepare_codes(self, codes: ArrayT, matrix: Matrix) -> ArrayT: ...
    def unprepare_codes(self, prepared: ArrayT, matrix: Matrix, n: int, k: int) -> ArrayT: ...
    def prepare_scales(self, scales: ArrayT, matrix: Matrix) -> ArrayT: ...
    def unprepare_scales(self, prepared: ArrayT, matrix: Matrix, n: int, k: int) -> ArrayT: ...


def get(implementation: str) -> Layout:
    """The layout module of an implementation."""
    return cast(Layout, importlib.import_module(f"jax_megamoe.layouts.{implementation}"))

"""The layout of `implementation="xla"`: the checkpoint's own, with scales as uint8 bytes.

Nothing moves; it exists so that all implementations are prepared and undone by the same calls.
"""

from __future__ import annotations

from jax_megamoe.layouts import ArrayT, Matrix

VERSION = 1


def prepare_codes(codes: ArrayT, matrix: Matrix) -> ArrayT:
    """int8 [..., N, K/2], unchanged."""
    return codes


def unprepare_codes(prepared: ArrayT, matrix: Matrix, n: int, k: int) -> ArrayT:
    """int8 [..., N, K/2], unchanged."""
    return prepared


def prepare_scales(scales: ArrayT, matrix: Matrix) -> ArrayT:
    """uint8 [..., N, K/32], unchanged."""
    return scales


def unprepare_scales(prepared: ArrayT, matrix: Matrix, n: int, k: int) -> ArrayT:
    """uint8 [..., N, K/32], unchanged."""
    return prepared

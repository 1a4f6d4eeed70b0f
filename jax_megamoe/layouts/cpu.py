"""The weight layout of the CPU kernel, version 1.

What a byte means is decided here; `xla_ffi/cpu/layout.h` computes where it lies. The constraint: a
64-byte vector of codes must become 16 rows' values by one shift and one table lookup, both for
float32 lanes and for pairs of bfloat16.

A weight array has N rows of K values (two FP4 codes a byte, even k in the low nibble) and a UE8M0
scale for each row and group of 32 k. Prepared, 16 rows form a panel:

* codes  int8  [..., N/16, K/32, 256]: a panel's group is four vectors of 64 bytes. Vector v holds
  k = 8v .. 8v+7 as 16 little-endian dwords; dword n belongs to row n of the panel. Its low 16-bit
  word holds the nibbles of k = 8v + 0, 2, 4, 6, lowest nibble first; its high word those of 8v + 1,
  3, 5, 7.
* scales uint8 [..., N/16, K/32, 16]: the 16 rows' scale bytes.

Both matrices are laid out alike. Rows keep their order, so the gate panels come first, then the up
panels. Nothing is padded: N is a multiple of 16 and K one of 32.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_megamoe.layouts import Matrix

VERSION: int = 1
"""Bumped whenever a byte moves, together with kLayoutVersion in `xla_ffi/cpu/layout.h`."""

_PANEL = 16
_GROUP = 32

# Checkpoint and prepared bytes of 8 consecutive k of a row, by (byte, nibble):
#   checkpoint: (k0 k1) (k2 k3) (k4 k5) (k6 k7)        prepared: (k0 k2) (k4 k6) (k1 k3) (k5 k7)
# low nibble first. So of the pair of bytes (a, b), (c, d) the low nibbles form the first two
# prepared bytes and the high nibbles the last two, and the way back is the same step on bytes taken
# in another order.


def _merge(first: Any, second: Any) -> tuple[Any, Any]:
    """The byte of the two low nibbles and the byte of the two high nibbles."""
    return (first & 15) | ((second & 15) << 4), ((first >> 4) & 15) | (second & -16)


def _stack(parts: list[Any]) -> Any:
    """Stacks arrays along a new last axis, with their own library."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.stack(parts, axis=-1)
    return jnp.stack(parts, axis=-1)


def prepare_codes(codes: Any, matrix: Matrix) -> Any:
    """Checkpoint codes int8 [..., N, K/2] -> prepared int8 [..., N/16, K/32, 256]."""
    *lead, n, half = codes.shape
    # [..., panel, row, group, vector, byte of 8 k]
    split = codes.reshape(*lead, n // _PANEL, _PANEL, half // 16, 4, 4)
    a, b, c, d = (split[..., i] for i in range(4))
    low_ab, high_ab = _merge(a, b)
    low_cd, high_cd = _merge(c, d)
    dwords = _stack([low_ab, low_cd, high_ab, high_cd])
    # -> [..., panel, group, vector, row, byte]
    rank = len(lead)
    order = (*range(rank + 1), rank + 2, rank + 3, rank + 1, rank + 4)
    return dwords.transpose(order).reshape(*lead, n // _PANEL, half // 16, 256)


def unprepare_codes(prepared: Any, matrix: Matrix, n: int, k: int) -> Any:
    """The inverse of `prepare_codes`: prepared int8 -> [..., n, k/2], bit for bit."""
    *lead, panels, groups, block = prepared.shape
    if (panels * _PANEL, groups * _GROUP, block) != (n, k, 256):
        raise ValueError(
            f"prepared: found shape {tuple(prepared.shape)}, accepted is [..., {n // _PANEL}, "
            f"{k // _GROUP}, 256] for n = {n}, k = {k}; pass the shape of the weights as they "
            "were before preparation"
        )
    dwords = prepared.reshape(*lead, panels, groups, 4, _PANEL, 4)
    rank = len(lead)
    # [..., panel, group, vector, row, byte] -> [..., panel, row, group, vector, byte]
    split = dwords.transpose(*range(rank + 1), rank + 3, rank + 1, rank + 2, rank + 4)
    low_ab, low_cd, high_ab, high_cd = (split[..., i] for i in range(4))
    a, b = _merge(low_ab, high_ab)
    c, d = _merge(low_cd, high_cd)
    return _stack([a, b, c, d]).reshape(*lead, n, k // 2)


def prepare_scales(scales: Any, matrix: Matrix) -> Any:
    """Scale bytes uint8 [..., N, K/32] -> prepared uint8 [..., N/16, K/32, 16]."""
    *lead, n, groups = scales.shape
    return scales.reshape(*lead, n // _PANEL, _PANEL, groups).swapaxes(-1, -2)


def unprepare_scales(prepared: Any, matrix: Matrix, n: int, k: int) -> Any:
    """The inverse of `prepare_scales`: prepared uint8 -> [..., n, k/32], bit for bit."""
    *lead, panels, groups, rows = prepared.shape
    if (panels * _PANEL, groups * _GROUP, rows) != (n, k, _PANEL):
        raise ValueError(
            f"prepared: found shape {tuple(prepared.shape)}, accepted is [..., {n // _PANEL}, "
            f"{k // _GROUP}, 16] for n = {n}, k = {k}; pass the shape of the weights as they were "
            "before preparation"
        )
    return prepared.swapaxes(-1, -2).reshape(*lead, n, groups)

"""The weight layout of the SM100 kernel, version 1.

What a byte means is decided here; the order of the 128 rows of a tile is the kernel's, stated in
`xla_ffi/sm100/weights.h` and repeated in `_interleave`. Two constraints shaped it: a tile must be
one box of a tensor map, so nothing is permuted along k, and a CTA's epilogue must find gate and up
of a channel in its own tensor memory, so gate and up rows alternate.

A matrix has N rows of K values (two FP4 codes a byte, even k in the low nibble) and a UE8M0 scale
for each row and group of 32 k. Kp is K rounded up to 128. Padding is codes 0 with scale byte 127
(1.0), so that it adds +0 to a sum. M is the number of prepared rows:

* gate_up_proj: I channels, padded to Ip, a multiple of 128, with N = 2I and M = 2Ip. Rows 256j ..
  256j + 255 are tile j of the pair of CTAs and hold gate and up of channels 128j .. 128j + 127:
  the 128 rows of CTA c those of channels 128j + 64c .. 128j + 64c + 63. Inside these 128 rows,
  32 rows (a warp's lanes of tensor memory) have the gate rows of 16 channels, then their up rows.
* down_proj: rows in order, padded to M = H rounded up to 256 (a tile of the pair).

* codes  int8  [..., M, Kp/2]: the row's bytes as in the checkpoint.
* scales uint8 [..., M/128, Kp/128, 512]: what one `tcgen05.cp.32x128b.warpx4` copies for 128 rows
  and 128 k: the byte of row m (0..127) and group j (0..3) is 4 * ((m % 32) * 4 + m / 32) + j.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_megamoe.layouts import Matrix

VERSION: int = 1
"""Bumped whenever a byte moves, together with kWeightsVersion in `xla_ffi/sm100/weights.h`."""

_TILE_ROWS = 128  # of one CTA; a pair has twice as many
_TILE_K = 128
_GROUP = 32
_LANES = 32  # of tensor memory that one warp reads
_ONE = 127  # the UE8M0 byte of 1.0


def prepare_codes(codes: Any, matrix: Matrix) -> Any:
    """Checkpoint codes int8 [..., N, K/2] -> prepared int8 [..., M, Kp/2]."""
    return _prepare_rows(codes, matrix, _TILE_K // 2, 0)


def unprepare_codes(prepared: Any, matrix: Matrix, n: int, k: int) -> Any:
    """The inverse of `prepare_codes`: prepared int8 -> [..., n, k/2], bit for bit."""
    wanted = (_prepared_rows(matrix, n), _round_up(k, _TILE_K) // 2)
    _check_shape(prepared, wanted, n, k)
    return _unprepare_rows(prepared, matrix, n, k // 2)


def prepare_scales(scales: Any, matrix: Matrix) -> Any:
    """Scale bytes uint8 [..., N, K/32] -> prepared uint8 [..., M/128, Kp/128, 512]."""
    rows = _prepare_rows(scales, matrix, _TILE_K // _GROUP, _ONE)
    *lead, m, groups = rows.shape
    # [..., tile, m / 32, m % 32, k / 128, j] -> [..., tile, k / 128, m % 32, m / 32, j]
    split = rows.reshape(*lead, m // _TILE_ROWS, _TILE_ROWS // _LANES, _LANES, groups // 4, 4)
    return _permute(split, 5, (0, 3, 2, 1, 4)).reshape(*lead, m // _TILE_ROWS, groups // 4, 512)


def unprepare_scales(prepared: Any, matrix: Matrix, n: int, k: int) -> Any:
    """The inverse of `prepare_scales`: prepared uint8 -> [..., n, k/32], bit for bit."""
    m, tiles = _prepared_rows(matrix, n), _round_up(k, _TILE_K) // _TILE_K
    _check_shape(prepared, (m // _TILE_ROWS, tiles, 512), n, k)
    lead = prepared.shape[:-3]
    split = prepared.reshape(*lead, m // _TILE_ROWS, tiles, _LANES, _TILE_ROWS // _LANES, 4)
    rows = _permute(split, 5, (0, 3, 2, 1, 4)).reshape(*lead, m, 4 * tiles)
    return _unprepare_rows(rows, matrix, n, k // _GROUP)


def _interleave(parts: Any) -> Any:
    """Gate and up rows [..., 2, Ip, bytes] -> the order of the prepared rows [..., 2 Ip, bytes]."""
    *lead, _, channels, width = parts.shape
    half = _LANES // 2
    split = parts.reshape(*lead, 2, channels // half, half, width)
    return _permute(split, 4, (1, 0, 2, 3)).reshape(*lead, 2 * channels, width)


def _separate(rows: Any) -> Any:
    """The inverse of `_interleave`."""
    *lead, m, width = rows.shape
    half = _LANES // 2
    split = rows.reshape(*lead, m // _LANES, 2, half, width)
    return _permute(split, 4, (1, 0, 2, 3)).reshape(*lead, 2, m // 2, width)


def _prepare_rows(rows: Any, matrix: Matrix, tile_width: int, padding: int) -> Any:
    """Rows [..., N, width] padded and in the prepared order, [..., M, padded width]."""
    *lead, n, width = rows.shape
    wide = _round_up(width, tile_width)
    if matrix == "down_proj":
        return _pad(rows, _prepared_rows(matrix, n), wide, padding)
    parts = rows.reshape(*lead, 2, n // 2, width)
    return _interleave(_pad(parts, _round_up(n // 2, _TILE_ROWS), wide, padding))


def _unprepare_rows(rows: Any, matrix: Matrix, n: int, width: int) -> Any:
    if matrix == "down_proj":
        return rows[..., :n, :width]
    parts = _separate(rows)[..., : n // 2, :width]
    return parts.reshape(*rows.shape[:-2], n, width)


def _prepared_rows(matrix: Matrix, n: int) -> int:
    if matrix == "down_proj":
        return _round_up(n, 2 * _TILE_ROWS)
    return 2 * _round_up(n // 2, _TILE_ROWS)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _permute(array: Any, rank: int, order: tuple[int, ...]) -> Any:
    """Transposes the last `rank` axes."""
    lead = array.ndim - rank
    return array.transpose(*range(lead), *(lead + axis for axis in order))


def _pad(array: Any, rows: int, width: int, value: int) -> Any:
    """Pads the last two axes at their ends, with the array's own library."""
    ends = [(0, 0)] * (array.ndim - 2)
    ends += [(0, rows - array.shape[-2]), (0, width - array.shape[-1])]
    if not any(end for _, end in ends):
        return array
    pad: Any = np.pad if isinstance(array, np.ndarray) else jnp.pad
    return pad(array, ends, constant_values=value)


def _check_shape(prepared: Any, wanted: tuple[int, ...], n: int, k: int) -> None:
    if tuple(prepared.shape[-len(wanted) :]) != wanted:
        raise ValueError(
            f"prepared: found shape {tuple(prepared.shape)}, accepted is [..., "
            f"{', '.join(map(str, wanted))}] for n = {n}, k = {k}; pass the shape of the weights "
            "as they were before preparation"
        )

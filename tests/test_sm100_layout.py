"""The SM100 kernel's weight layout: every byte where its documentation says, by a slow definition
of one element at a time, and back again, with NumPy and JAX arrays alike.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_megamoe.layouts import Matrix
from jax_megamoe.layouts import sm100 as layout
from oracle import Array

GATE_UP: Matrix = "gate_up_proj"
DOWN: Matrix = "down_proj"


def up_to(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def place_of_row(matrix: Matrix, n: int, row: int) -> int:
    """Where a row of the checkpoint stands among the prepared rows, as documented."""
    if matrix == DOWN:
        return row
    is_up, channel = divmod(row, n // 2)
    tile, in_tile = divmod(channel, 128)
    cta, in_cta = divmod(in_tile, 64)
    warp, lane = divmod(in_cta, 16)
    return 256 * tile + 128 * cta + 32 * warp + 16 * is_up + lane


def prepared_rows(matrix: Matrix, n: int) -> int:
    return up_to(n, 256) if matrix == DOWN else 2 * up_to(n // 2, 128)


def slow_codes(codes: Array, matrix: Matrix) -> Array:
    n, half = codes.shape
    out = np.zeros((prepared_rows(matrix, n), up_to(2 * half, 128) // 2), np.int8)
    for row in range(n):
        for byte in range(half):
            out[place_of_row(matrix, n, row), byte] = codes[row, byte]
    return out


def slow_scales(scales: Array, matrix: Matrix) -> Array:
    n, groups = scales.shape
    shape = (prepared_rows(matrix, n) // 128, up_to(32 * groups, 128) // 128, 512)
    out = np.full(shape, 127, np.uint8)
    for row in range(n):
        for group in range(groups):
            tile, m = divmod(place_of_row(matrix, n, row), 128)
            k_tile, j = divmod(group, 4)
            out[tile, k_tile, 4 * ((m % 32) * 4 + m // 32) + j] = scales[row, group]
    return out


def sizes_of(matrix: Matrix, hidden: int, intermediate: int) -> tuple[int, int]:
    return (2 * intermediate, hidden) if matrix == GATE_UP else (hidden, intermediate)


def random_bytes(*shape: int) -> tuple[Array, Array]:
    """Codes and scale bytes of a matrix [..., n, k], all values among them."""
    *lead, n, k = shape
    rng = np.random.default_rng(n + k)
    codes = rng.integers(-128, 128, (*lead, n, k // 2)).astype(np.int8)
    return codes, rng.integers(0, 256, (*lead, n, k // 32)).astype(np.uint8)


matrices = pytest.mark.parametrize("matrix", [GATE_UP, DOWN])


@matrices
@pytest.mark.parametrize(
    ("hidden", "intermediate"), [(128, 128), (96, 160), (160, 96), (288, 32), (512, 384)]
)
def test_every_byte_stands_where_the_documentation_says(
    matrix: Matrix, hidden: int, intermediate: int
) -> None:
    n, k = sizes_of(matrix, hidden, intermediate)
    codes, scales = random_bytes(n, k)
    np.testing.assert_array_equal(layout.prepare_codes(codes, matrix), slow_codes(codes, matrix))
    np.testing.assert_array_equal(
        layout.prepare_scales(scales, matrix), slow_scales(scales, matrix)
    )


@matrices
@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2)])
@pytest.mark.parametrize(("hidden", "intermediate"), [(32, 32), (96, 160), (288, 288), (256, 128)])
def test_layout_inverts_bitwise_and_numpy_and_jax_agree(
    matrix: Matrix, lead: tuple[int, ...], hidden: int, intermediate: int
) -> None:
    n, k = sizes_of(matrix, hidden, intermediate)
    codes, scales = random_bytes(*lead, n, k)
    pairs: list[tuple[Array, Any, Any]] = [
        (codes, layout.prepare_codes, layout.unprepare_codes),
        (scales, layout.prepare_scales, layout.unprepare_scales),
    ]
    for array, prepare, unprepare in pairs:
        prepared = prepare(array, matrix)
        assert isinstance(prepared, np.ndarray) and prepared.dtype == array.dtype
        np.testing.assert_array_equal(unprepare(prepared, matrix, n, k), array)
        traced = jax.jit(lambda a, f=prepare: f(a, matrix))(array)
        assert traced.dtype == array.dtype
        np.testing.assert_array_equal(traced, prepared)
        back = jax.jit(lambda p, f=unprepare: f(p, matrix, n, k))(traced)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@matrices
def test_padding_multiplies_to_plus_zero(matrix: Matrix) -> None:
    n, k = sizes_of(matrix, 160, 96)
    codes = np.full((n, k // 2), 0x77, np.int8)
    scales = np.full((n, k // 32), 200, np.uint8)
    rows = layout.prepare_codes(codes, matrix)
    assert set(np.unique(rows)) == {0, 0x77}
    assert np.count_nonzero(rows) == codes.size
    packed = layout.prepare_scales(scales, matrix)
    assert set(np.unique(packed)) == {127, 200}
    assert np.count_nonzero(packed == 200) == scales.size


def test_multiples_of_the_tile_are_not_copied_larger() -> None:
    # So that a MegaMoe's experts can be prepared inside their own memory.
    for matrix, n, k in ((GATE_UP, 256, 512), (DOWN, 512, 128)):
        codes, scales = random_bytes(n, k)
        assert layout.prepare_codes(jnp.asarray(codes), matrix).size == codes.size
        assert layout.prepare_scales(jnp.asarray(scales), matrix).size == scales.size


def test_layout_refuses_another_shape_in_words() -> None:
    with pytest.raises(ValueError, match=r"\(256, 32\).*, 512, 64\] for n = 288, k = 96"):
        layout.unprepare_codes(np.zeros((256, 32), np.int8), GATE_UP, 288, 96)
    with pytest.raises(ValueError, match=r"\(2, 2, 512\).*, 2, 1, 512\] for n = 96, k = 96"):
        layout.unprepare_scales(np.zeros((2, 2, 512), np.uint8), DOWN, 96, 96)

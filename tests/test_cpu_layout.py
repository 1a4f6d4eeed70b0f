"""The CPU kernel's weight layout: every bit where its documentation says, and back again, with
NumPy and JAX arrays alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jax_megamoe import _native
from jax_megamoe.layouts import cpu as layout
from oracle import Array


def test_layout_puts_every_code_where_its_documentation_says() -> None:
    rng = np.random.default_rng(0)
    n, k = 48, 96
    nibbles = rng.integers(0, 16, (2, n, k)).astype(np.uint8)
    codes = (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).view(np.int8)
    prepared = layout.prepare_codes(codes, "down_proj")
    assert prepared.dtype == np.int8 and prepared.shape == (2, n // 16, k // 32, 256)
    dwords = np.ascontiguousarray(prepared).view("<u4").reshape(2, n // 16, k // 32, 4, 16)
    for j in range(8):
        found = dwords >> ((j % 2) * 16 + (j // 2) * 4) & 15
        expected = nibbles.reshape(2, n // 16, 16, k // 32, 4, 8)[..., j].transpose(0, 1, 3, 4, 2)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize(("n", "k"), [(16, 32), (32, 96), (96, 2880)])
def test_layout_inverts_bitwise_and_numpy_and_jax_agree(
    lead: tuple[int, ...], n: int, k: int
) -> None:
    rng = np.random.default_rng(n)
    codes = rng.integers(-128, 128, (*lead, n, k // 2)).astype(np.int8)
    scales = rng.integers(0, 256, (*lead, n, k // 32)).astype(np.uint8)
    pairs: list[tuple[Array, Callable[[Any], Any], Callable[..., Any]]] = [
        (codes, layout.prepare_codes, layout.unprepare_codes),
        (scales, layout.prepare_scales, layout.unprepare_scales),
    ]
    for array, prepare, unprepare in pairs:
        prepared = prepare(array, "down_proj")
        assert isinstance(prepared, np.ndarray) and prepared.dtype == array.dtype
        np.testing.assert_array_equal(unprepare(prepared, "down_proj", n, k), array)
        traced = jax.jit(prepare, static_argnums=1)(array, "down_proj")
        assert traced.dtype == array.dtype
        np.testing.assert_array_equal(traced, prepared)
        back = jax.jit(lambda p, u=unprepare: u(p, "down_proj", n, k))(traced)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_layout_refuses_another_shape_in_words() -> None:
    with pytest.raises(ValueError, match=r"\(1, 1, 256\).*, 2, 1, 256\] for n = 32, k = 32"):
        layout.unprepare_codes(np.zeros((1, 1, 256), np.int8), "down_proj", 32, 32)
    with pytest.raises(ValueError, match=r"\(1, 2, 16\).*, 1, 1, 16\] for n = 16, k = 32"):
        layout.unprepare_scales(np.zeros((1, 2, 16), np.uint8), "down_proj", 16, 32)


def test_layout_version_is_the_extensions() -> None:
    assert _native.build_info()["cpu_layout_version"] == layout.VERSION

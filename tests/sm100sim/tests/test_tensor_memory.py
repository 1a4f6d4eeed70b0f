"""tcgen05.cp, ld, st, shift and the allocation of tensor memory, against NumPy indexing.

Which thread holds which cell is compared with CuTe in test_cute_layouts.py; here the bytes move.
"""

from __future__ import annotations

import _sm100sim_parts as parts
import numpy as np
import pytest
from mma_harness import descriptor


@pytest.mark.parametrize(
    "shape,rows,chunks",
    [
        ("128x256b", 128, 2),
        ("4x256b", 4, 2),
        ("128x128b", 128, 1),
        ("64x128b.warpx2::02_13", 64, 1),
        ("64x128b.warpx2::01_23", 64, 1),
        ("32x128b.warpx4", 32, 1),
    ],
)
@pytest.mark.parametrize(
    "source,data,move", [("", 16, None), ("b4x16_p64", 8, 4), ("b6x16_p32", 12, 6)]
)
def test_copies_to_tensor_memory(shape, rows, chunks, source, data, move):
    rng = np.random.default_rng(18)
    shared = rng.integers(0, 256, (1, 8192), dtype=np.uint8)
    bad = np.ones((1, 8192), np.uint8)
    tmem, tmem_bad, touched = (
        np.zeros((1, 128, 512), np.uint32),
        np.full((1, 128, 512), 15, np.uint8),
        np.zeros((1, 8192), np.uint8),
    )
    stride, leading = 128 * chunks, 128
    want = {}
    for row in range(rows):
        for chunk in range(chunks):
            at = row // 8 * stride + row % 8 * 16 + chunk * leading
            bad[0, at : at + data] = 0
            raw = shared[0, at : at + data]
            if move:
                number = int.from_bytes(raw.tobytes(), "little")
                raw = np.array(
                    [
                        (number >> move * i & ((1 << move) - 1)) << (2 if move == 4 else 0)
                        for i in range(16)
                    ],
                    np.uint8,
                )
            want[row, chunk] = raw.view("<u4")
    address = 40 | (31 << 16 if shape == "4x256b" else 0)
    assert (
        parts.tmem_copy(
            shape,
            source,
            address,
            descriptor(0, 0, leading=leading, stride=stride),
            shared,
            bad,
            tmem,
            tmem_bad,
            touched,
        )
        == []
    )
    warps = {
        "128x256b": lambda r: [r],
        "128x128b": lambda r: [r],
        "4x256b": lambda r: [32 * r + 31],
        "32x128b.warpx4": lambda r: [r, r + 32, r + 64, r + 96],
        "64x128b.warpx2::02_13": lambda r: [r, r + 64],
        "64x128b.warpx2::01_23": lambda r: [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32],
    }[shape]
    written = np.zeros((128, 512), bool)
    for (row, chunk), words in want.items():
        for lane in warps(row):
            np.testing.assert_array_equal(tmem[0, lane, 40 + 4 * chunk : 44 + 4 * chunk], words)
            written[lane, 40 + 4 * chunk : 44 + 4 * chunk] = True
    np.testing.assert_array_equal(tmem_bad[0] == 0, written)
    assert not (touched & bad).any(), "padding was read"


def test_scale_tile_of_128_rows_arrives_where_the_mma_reads_it():
    scales = np.arange(512, dtype=np.uint32).reshape(128, 4).astype(np.uint8)
    tile = np.zeros(512, np.uint8)
    for m in range(128):
        tile[16 * (m % 32) + 4 * (m // 32) :][:4] = scales[m]
    shared = np.zeros((1, 1024), np.uint8)
    shared[0, :512] = tile
    tmem, bad = np.zeros((1, 128, 512), np.uint32), np.zeros((1, 128, 512), np.uint8)
    assert (
        parts.tmem_copy(
            "32x128b.warpx4",
            "",
            8,
            descriptor(0, 0, stride=128),
            shared,
            shared * 0,
            tmem,
            bad,
            shared * 0,
        )
        == []
    )
    for m in range(128):
        for block in range(4):
            for partition in range(4):
                lane, column, byte = parts.scale_cell(m, block, 0, partition)
                assert int(tmem[0, lane, 8 + column]) >> 8 * byte & 0xFF == scales[m, block]


@pytest.mark.parametrize(
    "shape,repeat", [("32x32b", 8), ("16x64b", 4), ("16x128b", 2), ("16x256b", 4), ("16x32bx2", 4)]
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("warp,lane", [(0, 0), (2, 0), (7, 96), (1, 16)])
def test_loads_and_stores_move_the_cells_of_their_map(shape, repeat, packed, warp, lane):
    if shape == "32x32b" and lane % 32:
        tmem, bad = np.zeros((1, 128, 512), np.uint32), np.zeros((1, 128, 512), np.uint8)
        assert (
            "lane 16" in parts.tmem_load(shape, repeat, packed, 0, lane << 16, warp, tmem, bad)[0]
        )
        return
    rng = np.random.default_rng(19)
    tmem, bad = (
        rng.integers(0, 1 << 32, (1, 128, 512), dtype=np.uint32),
        rng.integers(0, 16, (1, 128, 512), dtype=np.uint8),
    )
    split = 64
    wrong, values, poison = parts.tmem_load(
        shape, repeat, packed, split, lane << 16 | 100, warp, tmem, bad
    )
    assert wrong == ""
    cells = parts.fragment(shape, repeat, packed, split)
    lanes, columns = warp % 4 * 32 + lane % 32 + cells[..., 0].T, 100 + cells[..., 1].T
    want, want_bad = tmem[0, lanes, columns], bad[0, lanes, columns]
    if packed:
        want = want & 0xFFFF | tmem[0, lanes, columns + 1] << np.uint32(16)
        want_bad = want_bad & 3 | (bad[0, lanes, columns + 1] & 3) << 2
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(poison, want_bad)
    other, other_bad = np.zeros_like(tmem), np.full_like(bad, 7)
    assert (
        parts.tmem_store(
            shape, repeat, packed, split, lane << 16 | 100, warp, other, other_bad, values, poison
        )
        == ""
    )
    again = parts.tmem_load(shape, repeat, packed, split, lane << 16 | 100, warp, other, other_bad)
    np.testing.assert_array_equal(again[1], values)
    np.testing.assert_array_equal(again[2], poison)
    touched = (other != 0).sum()
    assert touched <= values.size * (2 if packed else 1)


def test_fragments_that_ptx_lacks_are_refused():
    for shape, repeat in [("16x256b", 64), ("16x128b", 128), ("32x32b", 3), ("16x64b", 256)]:
        with pytest.raises(ValueError, match="power of two"):
            parts.fragment(shape, repeat, False, 0)
    tmem, bad = np.zeros((1, 128, 512), np.uint32), np.zeros((1, 128, 512), np.uint8)
    assert "512" in parts.tmem_load("32x32b", 16, False, 0, 500, 0, tmem, bad)[0]


def test_shift_moves_the_lanes_of_one_warp_but_the_last():
    tmem = np.arange(128 * 512, dtype=np.uint32).reshape(1, 128, 512)
    before, bad = tmem.copy(), np.zeros((1, 128, 512), np.uint8)
    assert parts.tmem_shift(32 << 16 | 16, tmem, bad) == []
    want = before.copy()
    want[0, 32:63, 16:24] = before[0, 33:64, 16:24]
    np.testing.assert_array_equal(tmem, want)
    assert "multiple of 32" in parts.tmem_shift(5 << 16, tmem, bad)[0]


def test_allocation_gives_aligned_free_columns_and_takes_them_back():
    tmem = parts.Tmem()
    assert [tmem.allocate(128, 1), tmem.allocate(64, 2), tmem.allocate(256, 3)] == [0, 128, 256]
    assert tmem.allocate(128, 4) == -1 and tmem.allocate(64, 4) == 192
    assert tmem.allocated_columns(1) == 128 and tmem.owner(130) == 2
    assert (
        "64 columns found" in tmem.deallocate(0, 64, 1)
        and "does not start" in tmem.deallocate(0, 128, 9)
        and "does not start" in tmem.deallocate(32, 32, 1)
    )
    assert tmem.deallocate(0, 128, 1) == "" and tmem.allocate(128, 5) == 0
    assert [parts.check_allocation_size(n) == "" for n in (32, 512, 16, 48, 1024)] == [
        True,
        True,
        False,
        False,
        False,
    ]

"""The simulator's layouts against CuTe itself: swizzles, operand layouts with their descriptors,
instruction descriptors, register fragments of tcgen05.ld, rows of tcgen05.cp, accumulators and
scale factors in tensor memory.

The left side of every comparison is printed by programs compiled from the CUTLASS headers
(tests/sm100sim/cute).
"""

from __future__ import annotations

import _sm100sim_parts as parts
import cute_programs
import numpy as np
import pytest

LAYOUT_NAMES = [
    f"{t}.K.{mode}" for t in ("u8", "f16", "tf32") for mode in ("none", "32", "64", "128")
]
LAYOUT_NAMES += [f"{t}.MN.{mode}" for t in ("u8", "f16") for mode in ("none", "32", "64", "128")]
LAYOUT_NAMES += ["tf32.MN.none", "tf32.MN.128atom32"]
FRAGMENTS = {
    "16dp256b": "16x256b",
    "16dp128b": "16x128b",
    "16dp64b": "16x64b",
    "16dp32b": "16x32bx2",
    "32dp32b": "32x32b",
}


@pytest.fixture(scope="module")
def smem():
    return cute_programs.output("swizzles_and_layouts")


@pytest.fixture(scope="module")
def tmem():
    return cute_programs.output("tensor_memory")


def lines(program, kind, name=None):
    found = [line for line in program if line[0] == kind and (name is None or line[1] == name)]
    assert found, f"the CuTe program printed no {kind} {name or ''}"
    return found


def cells(words):
    return np.array([[int(x) for x in word.split(":")] for word in words])


@pytest.mark.parametrize(
    "name,mode", [("none", 0), ("32", 1), ("64", 2), ("128", 3), ("128atom32", 4)]
)
def test_tma_swizzles_are_cutes(smem, name, mode):
    want = [int(x) for x in lines(smem, "swizzle", name)[0][2:]]
    np.testing.assert_array_equal(parts.swizzle(mode, np.arange(0, 4096, 8, dtype=np.uint32)), want)


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_operand_layouts_follow_from_cutes_descriptor(smem, name):
    _, _, size, mn_major, descriptor, rows, k, _, *addresses = lines(smem, "layout", name)[0]
    unit = 16 // int(size)
    shape = (int(rows) // unit, int(k)) if int(mn_major) else (int(rows), int(k) // unit)
    start, _, _, base_offset, _, errors = parts.matrix_descriptor(int(descriptor))
    assert (start, base_offset, errors) == (0, 0, [])
    got = parts.operand_chunks(int(descriptor), bool(int(mn_major)), *shape)
    np.testing.assert_array_equal(got, np.array([int(a) for a in addresses]).reshape(shape))


def test_every_layout_is_covered(smem):
    assert {line[1] for line in lines(smem, "layout")} == set(LAYOUT_NAMES)


def test_instruction_descriptors_decode_to_what_cute_encoded(smem):
    for _, kind, bits, a, b, d, m, n, am, bm, an, bn in lines(smem, "idesc"):
        got, errors = parts.instruction_descriptor(int(bits), kind, 1, "", False, True)
        assert errors == [], (kind, errors)
        assert (got["a"], got["b"], got["d"], got["m"], got["n"]) == (a, b, d, int(m), int(n))
        assert got["transpose"] == (bool(int(am)), bool(int(bm))) and got["negate"] == (
            bool(int(an)),
            bool(int(bn)),
        )


def test_block_scaled_descriptors_decode_to_what_cute_encoded(smem):
    vector = {"mxf8f6f4": "", "mxf4": "", "mxf4nvf4": "4X"}
    for _, kind, bits, a, b, scale, m, n, ida, idb in lines(smem, "idesc_scaled"):
        got, errors = parts.instruction_descriptor(
            int(bits), kind, 2 if int(m) == 256 else 1, vector[kind], False, True
        )
        legal = {
            "mxf8f6f4": True,
            "mxf4": int(ida) % 2 == 0 and int(idb) % 2 == 0,
            "mxf4nvf4": ida == idb == "0",
        }[kind]
        assert legal == (errors == []), (kind, ida, idb, errors)
        assert (got["a"], got["b"], got["scale"], got["m"], got["n"]) == (
            a,
            b,
            scale,
            int(m),
            int(n),
        )
        assert got["ids"] == (int(ida), int(idb)) and got["k"] == (32 if kind == "mxf8f6f4" else 64)


def test_the_worked_examples_of_descriptors():
    for id_, bits in enumerate((0x10A00280, 0x30A00290, 0x50A002A0, 0x70A002B0)):
        got, errors = parts.instruction_descriptor(bits, "mxf8f6f4", 2, "block32", False, False)
        assert errors == [] and (got["a"], got["b"], got["m"], got["n"], got["ids"]) == (
            "e2m1",
            "e4m3",
            256,
            128,
            (id_, id_),
        )
    assert parts.matrix_descriptor(0x4000404000000040) == (0x400, 0, 1024, 0, 2, [])
    assert parts.matrix_descriptor(0x0000400800000200) == (0x2000, 0, 128, 0, 0, [])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", FRAGMENTS)
def test_load_fragments_are_cutes_for_every_repetition(tmem, shape, packed):
    found = [
        line
        for line in lines(tmem, "ld")
        if line[1].startswith(shape + ".") and line[1].endswith(".pack") == packed
    ]
    assert len(found) == {"16dp256b": 6, "16dp128b": 7}.get(shape, 8)
    for _, name, registers, _, *words in found:
        repeat = int(name.split(".x")[1].split(".")[0])
        split = repeat * (2 if packed else 1)  # CuTe's immediate for 16x32bx2
        got = parts.fragment(FRAGMENTS[shape], repeat, packed, split)
        assert got.shape[1] == int(registers)
        halves = cells(words).reshape(32, int(registers), 2, 2)
        np.testing.assert_array_equal(got, halves[:, :, 0])
        want = got + np.array([0, 1]) if packed else got
        np.testing.assert_array_equal(want, halves[:, :, 1])


@pytest.mark.parametrize(
    "shape", ["32x128b.warpx4", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23"]
)
def test_copies_reach_the_lanes_that_cute_says(tmem, shape):
    want: dict[int, set[int]] = {}
    for _, _, row, lane in lines(tmem, "cp", shape):
        want.setdefault(int(row), set()).add(int(lane))
    assert [want[row] for row in sorted(want)] == [
        set(lanes) for lanes in parts.tmem_copy_lanes(shape)
    ]


def idesc_f16(m, n):
    return 1 << 4 | (n // 8) << 17 | (m // 16) << 24


@pytest.mark.parametrize(
    "name,cta_group,m,ws",
    [
        ("1.128", 1, 128, False),
        ("1.64", 1, 64, False),
        ("2.256", 2, 256, False),
        ("2.128", 2, 128, False),
        ("ws.64", 1, 64, True),
        ("ws.32", 1, 32, True),
    ],
)
def test_accumulators_lie_where_cute_puts_them(tmem, name, cta_group, m, ws):
    _, _, rows, n, _, *words = lines(tmem, "d", name)[0]
    got = parts.d_cells("f16", cta_group, ws, idesc_f16(m, int(n)), 0)
    assert got.shape == (int(rows), int(n), 2)
    np.testing.assert_array_equal(
        got, cells(words).reshape(int(n), int(rows), 2).transpose(1, 0, 2)
    )


def test_the_other_half_of_a_64_row_accumulator_is_sixteen_lanes_on():
    np.testing.assert_array_equal(
        parts.d_cells("f16", 1, False, idesc_f16(64, 8), 16 << 16),
        parts.d_cells("f16", 1, False, idesc_f16(64, 8), 0) + np.array([16, 0]),
    )


@pytest.mark.parametrize(
    "name", ["sfa.1X", "sfb.1X", "sfa.2X", "sfb.4X", "sfa.2sm128.1X", "sfb.2sm128.1X"]
)
def test_scale_factors_lie_where_cute_puts_them(tmem, name):
    _, _, rows, blocks, _, *words = lines(tmem, "sf", name)[0]
    rows, blocks = int(rows), int(blocks)
    found = {(row, block): set() for row in range(rows) for block in range(blocks)}
    printed = cells(words).reshape(-1, rows, blocks, 3)
    for copy in printed:
        for row in range(rows):
            for block in range(blocks):
                found[row, block].add(tuple(int(x) for x in copy[row, block]))
    halves = name == "sfb.2sm128.1X"
    for (row, block), cute in found.items():
        if halves:  # partitions 0-1 hold the first half of the columns, 2-3 the second
            here = range(2) if row < rows // 2 else range(2, 4)
            got = {parts.scale_cell(row % (rows // 2), block, 0, partition) for partition in here}
        else:
            got = {parts.scale_cell(row, block, 0, partition) for partition in range(4)}
        assert got == cute, (row, block)

"""Tensor maps and the bytes of a copy.

The oracle is NumPy slicing of a padded tensor, and for swizzles the tables of PTX ISA 5.5.7 written
out (which 16-byte piece stands where in each 128-byte line), not the address formulas of the
simulator.
"""

from __future__ import annotations

import itertools

import _sm100sim_parts as parts
import ml_dtypes
import numpy as np
import pytest

U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ, U4_8, U4_16, U6_16 = (
    range(16)
)
BITS = [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6]
LOAD, STORE, REDUCE, PREFETCH = range(4)
TILE, GATHER4, SCATTER4, IM2COL = range(4)
COPY, ZERO, NAN, CLIPPED, UNDEFINED, PACK6 = range(6)
NONE, SW32, SW64, SW128, SW128_ATOM32, SW128_FLIP, SW128_ATOM64 = range(7)
BASE = 0x10000

# Which 16-byte piece of the source line stands at each place of a 128-byte line of shared memory;
# one line of the table each.
PATTERNS = {
    NONE: ["01234567"],
    SW32: ["01234567", "10325476"],
    SW64: ["01234567", "10325476", "23016745", "32107654"],
    SW128: [
        "01234567",
        "10325476",
        "23016745",
        "32107654",
        "45670123",
        "54761032",
        "67452301",
        "76543210",
    ],
    SW128_ATOM32: ["01234567", "23016745", "45670123", "67452301"],
    SW128_FLIP: ["01234567", "23016745", "45670123", "67452301"],
    SW128_ATOM64: ["01234567", "45670123"],
}


def make_map(
    type_,
    dim,
    box,
    stride=None,
    element_stride=None,
    interleave=0,
    swizzle=0,
    l2=0,
    fill=0,
    address=BASE,
    misalign=0,
):
    rank = len(dim)
    if stride is None:
        stride, pitch = [], dim[0] * BITS[type_] // 8
        for extent in dim[1:]:
            stride.append(-(-pitch // 32) * 32)
            pitch = stride[-1] * extent
    return parts.tensor_map(
        type_,
        rank,
        address,
        dim,
        stride,
        box,
        element_stride or [1] * rank,
        interleave,
        swizzle,
        l2,
        fill,
        misalign,
    )


def ok_map(*args, **kwargs):
    code, why, raw = make_map(*args, **kwargs)
    assert code == 0, why
    return raw


def swizzled(linear: np.ndarray, mode: int) -> np.ndarray:
    """A linear image of shared memory (from a 1024-byte boundary), permuted by the tables."""
    lines = linear.reshape(-1, 8, 16)
    out = np.empty_like(lines)
    table = PATTERNS[mode]
    for i, line in enumerate(lines):
        for place, piece in enumerate(table[i % len(table)]):
            data = line[int(piece)]
            out[i, place] = (
                np.concatenate([data[8:], data[:8]]) if mode == SW128_FLIP and i % 2 else data
            )
    return out.reshape(-1)


def apply_load(plan, memory: np.ndarray, shared: np.ndarray):
    """Returns the image, and which bytes are left undefined."""
    undefined = np.zeros(shared.size, bool)
    written = np.zeros(shared.size, int)
    for at, source, count, kind in plan["runs"]:
        written[at : at + count] += 1
        if kind == COPY:
            shared[at : at + count] = memory[source - BASE : source - BASE + count]
        elif kind == ZERO:
            shared[at : at + count] = 0
        elif kind == UNDEFINED:
            undefined[at : at + count] = True
        else:
            raise AssertionError(kind)
    assert written.max() == 1, "a byte is written twice"
    return shared, undefined


def expected_box(tensor: np.ndarray, coordinates, counts, steps):
    """tensor is indexed [dN .. d1][bytes of d0]; coordinates innermost first, in elements of one
    byte.
    """
    out = np.zeros([*reversed(counts)], np.uint8)
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        position = [
            c + i * s for c, i, s in zip(reversed(coordinates), index, reversed(steps), strict=True)
        ]
        if all(0 <= p < n for p, n in zip(position, tensor.shape, strict=True)):
            out[index] = tensor[tuple(position)]
    return out


@pytest.mark.parametrize(
    "dims,box,coordinates",
    [
        ([64], [48], [0]),
        ([64], [32], [48]),
        ([64], [32], [-16]),
        ([64], [16], [80]),
        ([64, 9], [32, 4], [16, 7]),
        ([64, 9], [64, 4], [-3, -2]),
        ([48, 5, 4], [32, 3, 2], [32, 3, 3]),
        ([32, 3, 3, 3], [16, 2, 2, 2], [8, 2, -1, 2]),
        ([32, 2, 3, 2, 3], [32, 2, 2, 2, 2], [0, 1, 2, 0, 2]),
    ],
)
def test_load_is_the_zero_padded_slice(dims, box, coordinates):
    rng = np.random.default_rng(0)
    raw = ok_map(U8, dims, box)
    pitch = [1]
    for extent in dims[:-1]:
        pitch.append(-(-pitch[-1] * extent // 32) * 32)
    memory = rng.integers(1, 256, pitch[-1] * dims[-1], dtype=np.uint8)
    tensor = np.lib.stride_tricks.as_strided(memory, [*reversed(dims)], [*reversed(pitch)])
    plan = parts.plan(raw, LOAD, TILE, coordinates, 0x800)
    assert plan["errors"] == []
    size = int(np.prod(box))
    shared, _ = apply_load(plan, memory, np.full(0x800 + size, 0xEE, np.uint8))
    np.testing.assert_array_equal(
        shared[0x800:], expected_box(tensor, coordinates, box, [1] * len(box)).reshape(-1)
    )
    assert plan["tx"] == size, "out-of-range bytes count"
    assert plan["range"] == (0x800, 0x800 + size)


def test_element_strides_skip_lines_and_count_what_they_load():
    rng = np.random.default_rng(1)
    raw = ok_map(U8, [32, 20], [32, 9], element_stride=[1, 4])
    memory = rng.integers(1, 256, 640, dtype=np.uint8)
    plan = parts.plan(raw, LOAD, TILE, [0, 6], 0)
    shared, _ = apply_load(plan, memory, np.zeros(96, np.uint8))
    np.testing.assert_array_equal(shared.reshape(3, 32), [*memory.reshape(20, 32)[[6, 10, 14]]])
    assert plan["tx"] == 96


@pytest.mark.parametrize("mode", PATTERNS)
def test_swizzles_follow_the_tables_of_the_manual(mode):
    rng = np.random.default_rng(2)
    inner = {NONE: 128, SW32: 32, SW64: 64}.get(mode, 128)
    raw = ok_map(U8, [inner, 64], [inner, 64], swizzle=mode)
    memory = rng.integers(0, 256, inner * 64, dtype=np.uint8)
    for base in (0, 1024):
        plan = parts.plan(raw, LOAD, TILE, [0, 0], base)
        shared, _ = apply_load(plan, memory, np.zeros(base + inner * 64, np.uint8))
        np.testing.assert_array_equal(shared[base:], swizzled(memory, mode))
    # The phase comes from the absolute address: a destination in the middle of the pattern.
    plan = parts.plan(raw, LOAD, TILE, [0, 0], 256)
    shared, _ = apply_load(plan, memory, np.zeros(1024 + inner * 64, np.uint8))
    linear = np.zeros(1024 + inner * 64, np.uint8)
    linear[256 : 256 + inner * 64] = memory
    np.testing.assert_array_equal(shared, swizzled(linear, mode))


@pytest.mark.parametrize("type_", [U16, U32, U64, BF16])
def test_coordinates_and_boxes_count_elements(type_):
    size = BITS[type_] // 8
    raw = ok_map(type_, [64, 4], [16, 2])
    memory = np.arange(64 * 4 * size, dtype=np.uint64).astype(np.uint8)
    plan = parts.plan(raw, LOAD, TILE, [8, 1], 0)
    shared, _ = apply_load(plan, memory, np.zeros(32 * size, np.uint8))
    np.testing.assert_array_equal(
        shared.reshape(2, -1), memory.reshape(4, -1)[1:3, 8 * size : 24 * size]
    )
    assert plan["tx"] == 32 * size


@pytest.mark.parametrize("mode", [NONE, SW128, SW128_ATOM32])
@pytest.mark.parametrize("type_,data", [(U4_16, 8), (U6_16, 12)])
def test_padded_types_leave_gaps_and_count_packed_bytes(mode, type_, data):
    rng = np.random.default_rng(3)
    line = 256 * BITS[type_] // 8
    raw = ok_map(type_, [256, 8], [128, 8], swizzle=mode)
    memory = rng.integers(0, 256, line * 8, dtype=np.uint8)
    plan = parts.plan(raw, LOAD, TILE, [128, 0], 0)
    shared, undefined = apply_load(plan, memory, np.zeros(1024, np.uint8))
    image, gap = np.zeros((8, 8, 16), np.uint8), np.ones((8, 8, 16), bool)
    image[:, :, :data] = memory.reshape(8, 2, 8, data)[:, 1]
    gap[:, :, :data] = False
    np.testing.assert_array_equal(undefined, swizzled(gap.reshape(-1), mode))
    np.testing.assert_array_equal(shared, swizzled(image.reshape(-1), mode))
    assert plan["tx"] == 8 * 128 * BITS[type_] // 8
    outside = parts.plan(raw, LOAD, TILE, [256, 0], 0)
    assert outside["tx"] == plan["tx"] and {k for *_, k in outside["runs"]} == {ZERO, UNDEFINED}


def test_the_facts_example_of_a_padded_fp4_box():
    raw = ok_map(U4_16, [4096, 512], [128, 128], swizzle=SW128)
    plan = parts.plan(raw, LOAD, TILE, [128, 256], 0)
    assert plan["tx"] == 8192 and plan["range"] == (0, 16384)
    # Element (row 5, k 77): chunk 4 XOR 5 = 1, byte 6 of it.
    at, source, *_ = next(r for r in plan["runs"] if r[0] <= 662 < r[0] + r[2] and r[3] == COPY)
    assert source + 662 - at == BASE + (256 + 5) * 2048 + (128 + 77) // 2


def test_packed_fp4_without_gaps():
    raw = ok_map(U4_8, [256, 4], [64, 4])
    memory = np.random.default_rng(4).integers(0, 256, 512, dtype=np.uint8)
    plan = parts.plan(raw, LOAD, TILE, [32, 0], 0)
    shared, undefined = apply_load(plan, memory, np.zeros(128, np.uint8))
    np.testing.assert_array_equal(shared.reshape(4, 32), memory.reshape(4, 128)[:, 16:48])
    assert plan["tx"] == 128 and not undefined.any()


def test_gather4_takes_four_rows_anywhere():
    memory = np.random.default_rng(5).integers(1, 256, 256 * 16, dtype=np.uint8)
    raw = ok_map(U8, [256, 16], [128, 1], swizzle=SW128)
    plan = parts.plan(raw, LOAD, GATHER4, [128, 9, -1, 3, 9], 512)
    shared, _ = apply_load(plan, memory, np.zeros(1024, np.uint8))
    linear = np.zeros((8, 128), np.uint8)
    rows = memory.reshape(16, 256)[:, 128:]
    linear[4:] = [rows[9], np.zeros(128), rows[3], rows[9]]
    np.testing.assert_array_equal(shared, swizzled(linear.reshape(-1), SW128))
    assert plan["tx"] == 512


def test_stores_clip_and_scatter():
    raw = ok_map(U8, [40, 3], [32, 2], stride=[48])
    plan = parts.plan(raw, STORE, TILE, [16, 2], 0)
    moved = [(s, g - BASE, n) for s, g, n, k in plan["runs"] if k == COPY]
    assert moved == [(0, 2 * 48 + 16, 24)] and plan["tx"] == 64
    assert sum(n for *_, n, k in plan["runs"] if k == CLIPPED) == 40
    four = ok_map(U8, [64, 8], [64, 1])
    plan = parts.plan(four, STORE, SCATTER4, [0, 5, 2, 100, 0], 128)
    moved = [(s, g - BASE) for s, g, n, k in plan["runs"] if k == COPY]
    assert moved == [(128, 320), (192, 128), (320, 0)]


def test_six_bit_stores_gather_low_bits():
    raw = ok_map(U6_16, [128, 2], [128, 1])
    plan = parts.plan(raw, STORE, TILE, [0, 1], 0)
    assert [tuple(r) for r in plan["runs"][:2]] == [
        (0, BASE + 96, 12, PACK6),
        (16, BASE + 108, 12, PACK6),
    ]


def test_nan_fill_is_named_with_its_pattern():
    raw = ok_map(BF16, [64], [64], fill=1)
    plan = parts.plan(raw, LOAD, TILE, [32], 0)
    assert [tuple(r)[2:] for r in plan["runs"]] == [(64, COPY), (64, NAN)] and plan[
        "fill"
    ] == 0x7FFF


GOOD = dict(type_=U8, dim=[128, 64], box=[64, 32], stride=[128])


@pytest.mark.parametrize(
    "change,word",
    [
        (dict(misalign=32), "tensorMap"),
        (dict(type_=16), "tensorDataType"),
        (dict(dim=[], box=[], stride=[]), "tensorRank"),
        (dict(dim=[16] * 6, box=[16] * 6, stride=[16] * 5), "tensorRank"),
        (dict(address=BASE + 8), "globalAddress"),
        (dict(dim=[0, 64]), "globalDim[0]"),
        (dict(dim=[128, 2**32 + 1]), "globalDim[1]"),
        (dict(stride=[120]), "globalStrides[0]"),
        (dict(stride=[1 << 40]), "globalStrides[0]"),
        (dict(box=[0, 32]), "boxDim[0]"),
        (dict(box=[64, 257]), "boxDim[1]"),
        (dict(box=[40, 32]), "boxDim[0]"),
        (dict(element_stride=[1, 9]), "elementStrides[1]"),
        (dict(element_stride=[1, 0]), "elementStrides[1]"),
        (dict(swizzle=SW32), "boxDim[0]"),
        (dict(swizzle=7), "swizzle"),
        (dict(interleave=1), "tensorRank"),
        (dict(interleave=3), "interleave"),
        (dict(fill=1), "oobFill"),
        (dict(fill=2), "oobFill"),
        (dict(l2=4), "l2Promotion"),
        (dict(type_=U4_16, box=[64, 32], stride=[64]), "boxDim[0]"),
        (dict(type_=U4_16, box=[128, 32], dim=[192, 64], stride=[96]), "globalDim[0]"),
        (dict(type_=U4_16, box=[128, 32], stride=[80]), "globalStrides[0]"),
        (dict(type_=U4_16, box=[128, 32], stride=[64], address=BASE + 16), "globalAddress"),
        (dict(type_=U4_16, box=[128, 32], stride=[64], swizzle=SW64), "swizzle"),
        (dict(type_=U4_16, box=[128, 32], stride=[64], fill=1), "oobFill"),
        (dict(type_=U4_8, dim=[127, 64], stride=[64]), "globalDim[0]"),
        (
            dict(dim=[128, 8, 8], box=[32, 2, 2], stride=[128, 1024], interleave=2, swizzle=SW64),
            "swizzle",
        ),
    ],
)
def test_the_driver_refuses_bad_arguments_and_names_them(change, word):
    code, why, _ = make_map(**(GOOD | change))
    assert code == 1 and why.startswith(word), why


def test_the_driver_accepts_the_good_arguments_that_those_vary():
    assert make_map(**GOOD)[0] == 0
    assert make_map(**(GOOD | dict(element_stride=[9, 1])))[0] == 0, (
        "elementStrides[0] is ignored without interleave"
    )


@pytest.mark.parametrize(
    "map_args,direction,mode,coordinates,shared,word",
    [
        (dict(GOOD), LOAD, TILE, [0], 0, "coordinates"),
        (dict(GOOD), LOAD, TILE, [0, 0], 64, "128"),
        (dict(GOOD), STORE, TILE, [0, -1], 0, "non-negative"),
        (dict(GOOD), LOAD, IM2COL, [0, 0], 0, "im2col"),
        (dict(GOOD), LOAD, GATHER4, [0, 0, 0, 0, 0], 0, "boxDim[1]"),
        (dict(type_=U8, dim=[64, 8], box=[64, 1]), STORE, GATHER4, [0, 0, 0, 0, 0], 0, "scatter4"),
        (dict(type_=U4_16, dim=[256, 8], box=[128, 8]), LOAD, TILE, [64, 0], 0, "multiple of 128"),
        (dict(type_=U4_16, dim=[256, 8], box=[128, 8]), STORE, TILE, [0, 0], 0, "loads only"),
        (
            dict(type_=U8, dim=[128, 8], box=[128, 8], swizzle=SW128_FLIP),
            STORE,
            TILE,
            [0, 0],
            0,
            "8-byte flip",
        ),
        (dict(type_=U4_8, dim=[128, 8], box=[128, 8]), REDUCE, TILE, [0, 0], 0, "packed types"),
        (
            dict(type_=U8, dim=[64, 8, 8], box=[32, 2, 2], interleave=1),
            LOAD,
            TILE,
            [0, 0, 0],
            0,
            "interleave",
        ),
    ],
)
def test_the_instruction_refuses_what_it_cannot_copy(
    map_args, direction, mode, coordinates, shared, word
):
    plan = parts.plan(ok_map(**map_args), direction, mode, coordinates, shared)
    assert plan["errors"] and word in " ".join(plan["errors"]) and len(plan["runs"]) == 0


def test_bytes_that_are_no_map_are_refused():
    raw = bytearray(ok_map(**GOOD))
    raw[20] ^= 1
    with pytest.raises(ValueError, match="not a tensor map"):
        parts.plan(bytes(raw), LOAD, TILE, [0, 0], 0)


ADDRESS, RANK, BOX, DIM, STRIDE, ELEMENT_STRIDE, TYPE, INTERLEAVE, MODE, ATOMICITY, FILL = range(11)


def test_kernels_may_replace_fields_of_a_map():
    raw = ok_map(U8, [128, 64], [64, 4], stride=[128])
    memory = np.random.default_rng(7).integers(1, 256, 4096, dtype=np.uint8)
    for field, ordinal, value in [(ADDRESS, 0, BASE + 512), (DIM, 1, 3), (STRIDE, 0, 256)]:
        raw, why = parts.replace_field(raw, field, ordinal, value)
        assert why == ""
    plan = parts.plan(raw, LOAD, TILE, [64, 0], 0)
    shared, _ = apply_load(plan, memory, np.ones(256, np.uint8))
    rows = [memory[512 + 256 * i + 64 :][:64] for i in range(3)]
    np.testing.assert_array_equal(shared.reshape(4, 64), [*rows, np.zeros(64)])
    swizzled_map, why = parts.replace_field(raw, MODE, 0, 3)
    assert why == "" and parts.plan(swizzled_map, LOAD, TILE, [0, 0], 0)["errors"] == []
    # PTX's codes of element types are not the driver's: 9 is f64 there.
    double, why = parts.replace_field(ok_map(U64, [64], [32]), TYPE, 0, 9)
    assert why == "" and parts.plan(double, LOAD, TILE, [0], 0)["tx"] == 256


def test_replaced_fields_are_judged_when_the_map_is_used():
    raw = ok_map(U8, [128, 64], [64, 4], stride=[128])
    for field, ordinal, value, word in [(STRIDE, 0, 120, "globalStrides"), (BOX, 1, 300, "boxDim")]:
        changed, why = parts.replace_field(raw, field, ordinal, value)
        assert why == ""
        with pytest.raises(ValueError, match=word):
            parts.plan(changed, LOAD, TILE, [0, 0], 0)
    for field, ordinal, value in [
        (RANK, 0, 5),
        (MODE, 0, 4),
        (ATOMICITY, 0, 1),
        (STRIDE, 4, 16),
        (TYPE, 0, 16),
    ]:
        assert parts.replace_field(raw, field, ordinal, value)[1].startswith("tensormap.replace")
    assert "not a tensor map" in parts.replace_field(bytes(128), DIM, 0, 1)[1]


def test_bulk_copies_need_sixteen_byte_granularity():
    assert parts.plan_bulk(32, 64, 48)["tx"] == 48
    for arguments in [(8, 64, 48), (32, 68, 48), (32, 64, 40)]:
        assert len(parts.plan_bulk(*arguments)["errors"]) == 1


@pytest.mark.parametrize(
    "op,type_,dtype,function",
    [
        ("add", "u32", np.uint32, np.add),
        ("min", "s32", np.int32, np.minimum),
        ("max", "u64", np.uint64, np.maximum),
        ("xor", "b64", np.uint64, np.bitwise_xor),
        ("and", "b32", np.uint32, np.bitwise_and),
        ("or", "b32", np.uint32, np.bitwise_or),
        ("add", "f32", np.float32, np.add),
        ("add", "f64", np.float64, np.add),
        ("add", "f16", np.float16, np.add),
        ("max", "f16", np.float16, np.fmax),
        ("add", "bf16", ml_dtypes.bfloat16, np.add),
    ],
)
def test_reductions_are_elementwise(op, type_, dtype, function):
    rng = np.random.default_rng(6)
    if np.dtype(dtype).kind in "ui":
        old, new = (rng.integers(0, np.iinfo(dtype).max, 64, dtype=dtype) for _ in range(2))
    else:
        old, new = (rng.standard_normal(64).astype(dtype) for _ in range(2))
    out = old.copy()
    parts.reduce(op, type_, out.view(np.uint8), new.view(np.uint8))
    np.testing.assert_array_equal(out, function(old, new))
    assert parts.reduce_legal(op, type_)


def test_wrapping_counters_and_illegal_reductions():
    out = np.array([5, 9, 0, 3], np.uint32)
    parts.reduce("inc", "u32", out.view(np.uint8), np.array([9, 9, 9, 2], np.uint32).view(np.uint8))
    assert list(out) == [6, 0, 1, 0]
    parts.reduce("dec", "u32", out.view(np.uint8), np.array([9, 9, 9, 9], np.uint32).view(np.uint8))
    assert list(out) == [5, 9, 0, 9]
    for op, type_ in [
        ("min", "f32"),
        ("inc", "s32"),
        ("and", "u32"),
        ("add", "s64"),
        ("max", "f64"),
    ]:
        assert not parts.reduce_legal(op, type_)

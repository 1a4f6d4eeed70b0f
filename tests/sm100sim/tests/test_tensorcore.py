"""tcgen05.mma against a slow model in exact fractions, float64 and NumPy.

mma_model.py holds the published arithmetic, mma_harness.py places operands by its own formulas.
"""

from __future__ import annotations

import _sm100sim_parts as parts
import mma_model
import numpy as np
import pytest
from mma_harness import (
    A_BASE,
    B_BASE,
    BITS,
    SFA,
    SFB,
    Case,
    Machine,
    as_float,
    random_codes,
)

CASES = [
    Case("f16", "f16", "f16", 128, 64),
    Case("f16", "bf16", "bf16", 64, 24),
    Case("f16", "f16", "f16", 128, 16, result="f16"),
    Case("f16", "bf16", "bf16", 256, 32, cta_group=2),
    Case("f16", "bf16", "bf16", 128, 48, cta_group=2, swizzle=0),
    Case("tf32", "tf32", "tf32", 128, 8),
    Case("f8f6f4", "e4m3", "e5m2", 128, 40),
    Case("f8f6f4", "e2m1", "e3m2", 64, 16),
    Case("f8f6f4", "e2m3", "e4m3", 256, 16, cta_group=2),
    Case("f8f6f4", "e4m3", "e4m3", 128, 16, result="f16"),
    Case("f16", "bf16", "bf16", 64, 64, ws=True),
    Case("f16", "bf16", "bf16", 32, 64, ws=True),
    Case("mxf8f6f4", "e2m1", "e4m3", 256, 48, cta_group=2, vector="block32", ids=(1, 3)),
    Case("mxf8f6f4", "e4m3", "e2m1", 128, 40, vector="1X", ids=(2, 0)),
    Case("mxf8f6f4", "e5m2", "e2m3", 128, 96, cta_group=2, ids=(3, 1)),
    Case("mxf8f6f4", "e4m3", "e3m2", 128, 8),
    Case("mxf4", "e2m1", "e2m1", 128, 24, ids=(2, 0)),
    Case("mxf4", "e2m1", "e2m1", 256, 16, cta_group=2, vector="2X", ids=(0, 2)),
    Case("mxf4nvf4", "e2m1", "e2m1", 128, 16, vector="4X", scale="ue4m3"),
    Case("mxf4nvf4", "e2m1", "e2m1", 128, 32, cta_group=2, vector="block16", scale="ue4m3"),
    Case("mxf4nvf4", "e2m1", "e2m1", 128, 8, vector="block32"),
]


def ident(case: Case) -> str:
    shape = f"{case.m}x{case.n}-cg{case.cta_group}{'-ws' if case.ws else ''}"
    return f"{case.kind}-{case.fa}x{case.fb}-{shape}-{case.result}"


def scale_codes(rng, case: Case, rows: int) -> np.ndarray:
    if case.scale == "ue4m3":
        return rng.integers(0, 0x7F, (rows, case.scales))
    return rng.integers(118, 137, (rows, case.scales))


def operands(case: Case, seed: int):
    rng = np.random.default_rng(seed)
    a, b = (
        random_codes(rng, case.fa, (case.m, case.k)),
        random_codes(rng, case.fb, (case.n, case.k)),
    )
    a[rng.random(a.shape) < 0.1] = 0
    sa = scale_codes(rng, case, case.m) if case.scaled else None
    sb = scale_codes(rng, case, case.n) if case.scaled else None
    spread = np.exp2(rng.integers(-12, 14, (case.m, case.n)))
    c = (rng.standard_normal((case.m, case.n)) * spread).astype(np.float32)
    c[rng.random(c.shape) < 0.1] = 0
    if case.result == "f16":
        return (
            a,
            b,
            sa,
            sb,
            np.clip(c, -900, 900).astype(np.float16).view(np.uint16).astype(np.uint32),
        )
    return a, b, sa, sb, c.view(np.uint32)


def signed(case: Case, a, b):
    return mma_model.values(case.fa, a) * (-1) ** case.negate[0], mma_model.values(case.fb, b) * (
        -1
    ) ** case.negate[1]


def expected(case: Case, a, b, sa, sb, c, places, scale_input_d=0):
    x, y = signed(case, a, b)
    cf = as_float(c, case.result)
    va, vb = (mma_model.values(case.scale, s) if s is not None else None for s in (sa, sb))
    out = []
    for m, n in places:
        out.append(
            mma_model.dot(
                x[m],
                y[n],
                cf[m, n],
                case.fa,
                case.fb,
                result=case.result,
                scale_format=case.scale,
                grouped=case.kind.startswith("mxf4"),
                scale_input_d=scale_input_d,
                scales_a=tuple(va[m]) if va is not None else (),
                scales_b=tuple(vb[n]) if vb is not None else (),
            )
        )
    return np.array(out)


def places_of(case: Case, rng, count=120):
    return [(int(rng.integers(case.m)), int(rng.integers(case.n))) for _ in range(count)]


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_mma_equals_the_model_in_exact_fractions(case):
    a, b, sa, sb, c = operands(case, 1)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    assert machine.run() == []
    codes, poison = machine.d()
    assert (poison == (12 if case.result == "f16" else 0)).all(), (
        "defined inputs give defined results"
    )
    places = places_of(case, np.random.default_rng(2))
    want = expected(case, a, b, sa, sb, c, places)
    got = np.array([as_float(codes, case.result)[p] for p in places])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_exact_mode_is_float64_for_every_element(case):
    a, b, sa, sb, c = operands(case, 3)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    machine.request["exact"] = 1
    assert machine.run() == []
    x, y = signed(case, a, b)
    if case.scaled:
        x = x * np.repeat(mma_model.values(case.scale, sa), case.k // case.scales, axis=1)
        y = y * np.repeat(mma_model.values(case.scale, sb), case.k // case.scales, axis=1)
    want = x @ y.T + as_float(c, case.result)
    got = as_float(machine.d()[0], case.result)
    if case.result == "f16":
        assert (np.isinf(got) >= (np.abs(want) > 65520)).all()
        got, want = (np.where(np.abs(want) >= 65500, 0, v) for v in (got, want))
    bound = np.abs(x) @ np.abs(y).T + np.abs(as_float(c, case.result))
    assert (
        np.abs(got - want)
        <= np.abs(want) * 2.0 ** (-24 if case.result == "f32" else -11) + bound * 2.0**-50
    ).all()


@pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[12], CASES[16], CASES[18]], ids=ident)
def test_chains_of_instructions_accumulate(case):
    machine = Machine(case)
    want = None
    places = places_of(case, np.random.default_rng(4), 30)
    for step in range(4):
        a, b, sa, sb, c = operands(case, 10 + step)
        c = c if step == 0 else machine.d()[0]
        machine.place(a, b, sa, sb, c)
        want = expected(case, a, b, sa, sb, c, places)
        assert machine.run() == []
        got = np.array([as_float(machine.d()[0], case.result)[p] for p in places])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", [c for c in CASES if not c.ws], ids=ident)
def test_shortcuts_change_no_bit_on_wild_data(case):
    """Any codes (NaN and infinities among them), any scales, accumulators of any exponent."""
    rng = np.random.default_rng(20)
    for round_ in range(6):
        a = random_codes(rng, case.fa, (case.m, case.k), finite=False)
        b = random_codes(rng, case.fb, (case.n, case.k), finite=False)
        if BITS[case.fa] > 8:
            a, b = (rng.integers(0, 1 << BITS[case.fa], x.shape, dtype=np.uint32) for x in (a, b))
        for x in (a, b):
            x[rng.random(x.shape) < 0.15 * round_] = 0
        spread = 3 + 25 * round_
        sa, sb = (
            np.clip(rng.normal(127, spread, (rows, case.scales)), 0, 255 - (round_ < 4)).astype(int)
            if case.scaled
            else None
            for rows in (case.m, case.n)
        )
        c = rng.integers(0, 1 << 32, (case.m, case.n), dtype=np.uint32)
        if case.result == "f16":
            c &= 0xFFFF
        c[rng.random(c.shape) < 0.2] = 0
        results = []
        for arithmetic in (0, 2):
            machine = Machine(case)
            machine.place(a, b, sa, sb, c)
            machine.request["exact"] = arithmetic
            assert machine.run() == []
            results.append(machine.d()[0])
        np.testing.assert_array_equal(*results)


def test_disabled_input_ignores_the_accumulator():
    case = CASES[0]
    a, b, sa, sb, c = operands(case, 5)
    machine = Machine(case)
    machine.place(a, b)
    assert machine.run() == []
    codes, poison = machine.d()
    assert not poison.any(), "poison in the old accumulator does not matter"
    places = places_of(case, np.random.default_rng(6), 40)
    np.testing.assert_array_equal(
        [as_float(codes, "f32")[p] for p in places],
        expected(case, a, b, sa, sb, np.zeros_like(c), places),
    )


@pytest.mark.parametrize("shift", [1, 7, 15])
def test_scale_input_d_divides_the_accumulator(shift):
    case = CASES[0]
    a, b, sa, sb, c = operands(case, 7)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    machine.request["scale_input_d"] = shift
    assert machine.run() == []
    places = places_of(case, np.random.default_rng(8), 60)
    np.testing.assert_array_equal(
        [as_float(machine.d()[0], "f32")[p] for p in places],
        expected(case, a, b, sa, sb, c, places, shift),
    )


@pytest.mark.parametrize(
    "case",
    [
        Case("f16", "bf16", "f16", 128, 64, transpose=(1, 1)),
        Case("f16", "f16", "f16", 128, 64, transpose=(0, 1), swizzle=4),
        Case("f16", "bf16", "bf16", 128, 64, transpose=(1, 0), swizzle=0),
        Case("f8f6f4", "e4m3", "e5m2", 128, 64, transpose=(1, 1), negate=(1, 0)),
        Case("tf32", "tf32", "tf32", 128, 32, transpose=(1, 1), swizzle=1),
        Case("mxf8f6f4", "e4m3", "e4m3", 256, 64, cta_group=2, transpose=(0, 1), negate=(1, 1)),
    ],
    ids=ident,
)
def test_transposed_and_negated_operands(case):
    a, b, sa, sb, c = operands(case, 9)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    assert machine.run() == []
    places = places_of(case, np.random.default_rng(10), 60)
    np.testing.assert_array_equal(
        [as_float(machine.d()[0], "f32")[p] for p in places],
        expected(case, a, b, sa, sb, c, places),
    )


@pytest.mark.parametrize(
    "case",
    [
        Case("f16", "f16", "f16", 128, 16, a_in_tmem=True),
        Case("f16", "f16", "f16", 64, 16, a_in_tmem=True, d=16 << 16),
        Case("f16", "bf16", "bf16", 128, 32, cta_group=2, a_in_tmem=True),
        Case("tf32", "tf32", "tf32", 128, 16, a_in_tmem=True),
        Case("f8f6f4", "e2m1", "e4m3", 128, 16, a_in_tmem=True),
        Case("f8f6f4", "e3m2", "e4m3", 256, 16, cta_group=2, a_in_tmem=True),
        Case("mxf8f6f4", "e2m1", "e4m3", 128, 16, a_in_tmem=True),
        Case("mxf4", "e2m1", "e2m1", 128, 16, a_in_tmem=True),
        Case("f16", "bf16", "bf16", 32, 64, ws=True, a_in_tmem=True),
    ],
    ids=ident,
)
def test_a_from_tensor_memory(case):
    a, b, sa, sb, c = operands(case, 11)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    assert machine.run() == []
    places = places_of(case, np.random.default_rng(12), 60)
    np.testing.assert_array_equal(
        [as_float(machine.d()[0], "f32")[p] for p in places],
        expected(case, a, b, sa, sb, c, places),
    )


@pytest.mark.parametrize("fa,fb", [("s8", "s8"), ("u8", "s8"), ("u8", "u8")])
def test_integers_wrap_or_saturate(fa, fb):
    case = Case("i8", fa, fb, 128, 16, result="s32")
    rng = np.random.default_rng(13)
    a, b = random_codes(rng, fa, (128, 32)), random_codes(rng, fb, (16, 32))
    c = rng.integers(0, 1 << 32, (128, 16), dtype=np.uint32)

    def value(f, x):
        return x.astype(np.uint8).view(np.int8 if f == "s8" else np.uint8).astype(np.int64)

    exact = value(fa, a) @ value(fb, b).T + c.view(np.int32)
    for saturate in (0, 1):
        machine = Machine(case)
        machine.place(a, b, c=c)
        machine.request["idesc"] |= saturate << 3
        assert machine.run() == []
        want = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact
        np.testing.assert_array_equal(machine.d()[0], want.astype(np.uint64).astype(np.uint32))


def test_special_values_follow_the_model():
    case = Case("mxf8f6f4", "e5m2", "e4m3", 128, 16)
    a, b, sa, sb, c = operands(case, 14)
    a[3, 5], a[4, 2], a[5, 0], b[2, 7] = 0x7E, 0x7C, 0xFC, 0x7F  # NaN, inf, -inf; NaN
    sa[6, 0], sb[4, 0] = 0xFF, 0xFF
    a[7] = 0
    c[8, :] = 0x7F800000
    c[9, :] = 0x7FC00001
    sa[10, 0], sb[5, 0], sa[11, 0], sb[6, 0] = 254, 254, 0, 0
    c[11, 6] = 0
    a[12], c[12, :] = 0, 0
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    assert machine.run() == []
    codes = machine.d()[0]
    places = [(m, n) for m in range(13) for n in range(16)]
    want = expected(case, a, b, sa, sb, c, places)
    got = np.array([as_float(codes, "f32")[p] for p in places])
    np.testing.assert_array_equal(got, want)
    nan = np.isnan(as_float(codes, "f32"))
    assert (
        nan[3].all()
        and nan[:, 2].all()
        and nan[6].all()
        and nan[:, 4].all()
        and (codes[nan] == 0x7FFFFFFF).all()
    )
    assert np.isinf(as_float(codes, "f32")[10, 5]) and codes[12, 3] == 0


def code_of(fmt: str, value: float) -> int:
    """The code of an exactly representable value."""
    codes = np.arange(1 << BITS[fmt], dtype=np.uint32)
    return int(codes[mma_model.values(fmt, codes) == value][0])


def one_product(case: Case, x, y, c: float, scale_exponent: int = 0, second=None) -> np.ndarray:
    """D when every row holds x and every column y at k = 0 (a second pair at k = 1), else 0."""
    a, b = np.zeros((case.m, case.k), np.uint32), np.zeros((case.n, case.k), np.uint32)
    for k, (u, v) in enumerate([(x, y), *([second] if second else [])]):
        a[:, k], b[:, k] = code_of(case.fa, u), code_of(case.fb, v)
    sa, sb = np.zeros((case.m, case.scales), int), np.zeros((case.n, case.scales), int)
    for codes, part in ((sa, scale_exponent // 2), (sb, scale_exponent - scale_exponent // 2)):
        codes[:] = part + 127
    machine = Machine(case)
    accumulator = np.full((case.m, case.n), c, np.float32).view(np.uint32)
    machine.place(a, b, sa, sb, accumulator)
    assert machine.run() == []
    return machine.d()[0]


@pytest.mark.parametrize(
    "case,bits",
    [
        (Case("f16", "f16", "f16", 128, 8), 25),
        (Case("f8f6f4", "e5m2", "e5m2", 128, 8), 25),
        (Case("mxf8f6f4", "e4m3", "e4m3", 128, 8), 25),
        (Case("mxf4", "e2m1", "e2m1", 128, 8), 35),
    ],
    ids=["f16", "f8f6f4", "mxf8f6f4", "mxf4"],
)
def test_the_cut_falls_after_exactly_so_many_bits(case, bits):
    """1 - 2^-bits rounds toward zero below 1; a product one bit smaller is cut away whole."""
    for extra, want in ((0, 0x3F7FFFFF), (1, 0x3F800000)):
        if case.scaled:  # powers in the scales
            codes = one_product(case, -1.0, 1.0, 1.0, -bits - extra)
        else:
            codes = one_product(case, -(2.0**-13), 2.0 ** (13 - bits - extra), 1.0)
        assert (codes == want).all()


def test_zero_terms_set_the_cut_of_tiny_sums():
    """2^-149 - 2^-160: a zero term of exponent -133 cuts at 2^-158, so the second term is lost."""
    case = Case("mxf8f6f4", "e4m3", "e4m3", 128, 8)
    codes = one_product(case, 1.0, 1.0, 0.0, -149, second=(-(2.0**-6), 2.0**-5))
    assert (codes == 1).all()


def test_a_subnormal_accumulator_keeps_the_smallest_exponent():
    """2^-140 has exponent -126, so the cut is at 2^-151 and -2^-152 is lost."""
    case = Case("mxf8f6f4", "e4m3", "e4m3", 128, 8)
    codes = one_product(case, -1.0, 1.0, 2.0**-140, -152)
    assert (codes == 1 << 9).all()


def test_lanes_can_be_left_alone():
    case = CASES[3]
    a, b, sa, sb, c = operands(case, 15)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    machine.request["disable"] = [0x0000FF00, 0, 0, 0, 0, 0, 0, 0x80000000]
    assert machine.run() == []
    changed = (machine.d()[0] != c).any(axis=1)
    want = np.ones(256, bool)
    want[8:16] = False
    want[128 + 127] = False
    np.testing.assert_array_equal(changed, want)


@pytest.mark.parametrize("case", [CASES[0], CASES[12], CASES[14], CASES[16]], ids=ident)
def test_poison_reaches_exactly_the_outputs_of_its_row_and_column(case):
    a, b, sa, sb, c = operands(case, 16)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    want = np.zeros((case.m, case.n), bool)
    group = case.cta_group
    last = group - 1
    machine.shared_poison[last, A_BASE + 5 * 128 + ((0 ^ 5) * 16) + 3] = 1
    want[last * case.m // group + 5] = True
    machine.shared_poison[0, B_BASE + 2 * 128 + ((1 ^ 2) * 16) + 1] = 1
    want[:, 2] = True
    at = machine.cells()[7, 3]
    machine.tmem_poison[0, at[0], at[1]] = 4
    want[7, 3] = True
    if case.scaled:
        machine.tmem_poison[0, 9, SFA] |= 1 << case.ids[0]  # partition 0: row 9
        halves = (
            case.m // group == 64
        )  # lanes 0-63 hold the first half of the columns, 64-127 the second
        want[9, : case.n // 2 if halves else case.n] = True
        other_byte = (case.ids[0] + case.scales) % 4
        machine.tmem_poison[0, 11, SFA] |= 1 << other_byte
        machine.tmem_poison[0, 32 + 4, SFB] |= (
            1 << case.ids[1]
        )  # partition 1 of CTA 0: its rows, column 4
        want[32:64, 4] = True
    assert machine.run() == []
    np.testing.assert_array_equal(machine.d()[1] == 15, want)


@pytest.mark.parametrize("case", [CASES[12], CASES[7], CASES[8]], ids=ident)
def test_padding_is_never_read_and_the_footprint_covers_every_byte(case):
    a, b, sa, sb, c = operands(case, 17)
    machine = Machine(case)
    machine.place(a, b, sa, sb, c)
    assert machine.run() == []
    assert not (machine.touched & machine.shared_poison).any(), "padding or foreign bytes were read"
    shared, tmem = parts.mma_footprint(case.kind, case.cta_group, case.vector, machine.request)
    covered = np.zeros_like(machine.touched)
    for cta, address, count in shared:
        covered[cta, address : address + count] = 1
    assert (covered >= machine.touched).all() and covered.sum() <= 4 * machine.touched.sum()
    at = machine.cells()
    written = np.zeros((128, 512), bool)
    for cta, lane, lanes, column, columns, write in tmem:
        if cta == 0 and write:
            written[lane : lane + lanes, column : column + columns] = True
    exact = np.zeros((128, 512), bool)
    exact[at[..., 0], at[..., 1]] = True
    np.testing.assert_array_equal(written, exact)

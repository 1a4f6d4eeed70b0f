# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Scalar instructions, one form a case: hand-written PTX over random and special values, expectations from NumPy and Python integers."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from sm100sim import PtxError, Sim

BITS = {"b16": "b16", "b32": "b32", "b64": "b64", "f32": "f32", "f64": "f64"}
NUMPY = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
N = 256


def kernel(instruction: str, types: list[str], result: str) -> str:
    """d = instruction(a, b, ...) for each thread."""
    names = "abce"[: len(types)]
    loads = "\n".join(
        f"ld.param.u64 %p, [{n}]; mul.wide.u32 %o, %t, {np.dtype(NUMPY[t]).itemsize}; add.u64 %p, %p, %o; ld.global.{t} %{n}, [%p];"
        for n, t in zip(names, types, strict=True)
    )
    regs = "\n".join(f".reg .{t} %{n};" for n, t in zip(names, types, strict=True))
    params = ", ".join(f".param .u64 {n}" for n in [*names, "d"])
    return f"""
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k({params})
{{
  .reg .b32 %t, %n, %s; .reg .b64 %p, %o; .reg .pred %q, %r; .reg .b8 %h;
  {regs}
  .reg .{result} %d;
  mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %s, %ctaid.x; mad.lo.u32 %t, %n, %s, %t;
  {loads}
  {instruction}
  ld.param.u64 %p, [d]; mul.wide.u32 %o, %t, {np.dtype(NUMPY[result]).itemsize}; add.u64 %p, %p, %o;
  st.global.{result} [%p], %d;
  ret;
}}
"""


def values(t: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(NUMPY[t])
    if dtype.kind == "f":
        v = (rng.standard_normal(N) * np.exp2(rng.integers(-30, 31, N))).astype(dtype)
        v[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 2.5, -3.5]
        rng.shuffle(v)
        return v
    info = np.iinfo(dtype)
    v = rng.integers(info.min, info.max, N, dtype=dtype, endpoint=True)
    v[:6] = [0, 1, info.max, info.min, 2, info.max // 3]
    rng.shuffle(v)
    return v


def execute(
    instruction: str, types: list[str], result: str, inputs: list[np.ndarray]
) -> np.ndarray:
    sim = Sim(policy="eager")
    out = sim.empty(N, NUMPY[result])
    sim.load(kernel(instruction, types, result))(
        "k", 2, N // 2, *[sim.array(v) for v in inputs], out
    )
    return out.get()


def wrap(v: list[int], t: str) -> np.ndarray:
    bits = np.dtype(NUMPY[t]).itemsize * 8
    return np.array([x & ((1 << bits) - 1) for x in v], dtype=f"u{bits // 8}").view(NUMPY[t])


def ints(f: Callable[..., int]) -> Callable[..., list[int]]:
    return lambda *arrays: [f(*[int(x) for x in row]) for row in zip(*arrays, strict=True)]


def tdiv(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def trem(a: int, b: int) -> int:
    return a - b * tdiv(a, b) if b else -1


def fns(mask: int, base: int, offset: int) -> int:
    base &= 31
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    step = 1 if offset > 0 else -1
    left = abs(offset)
    at = base
    while 0 <= at < 32:
        left -= mask >> at & 1
        if left == 0:
            return at
        at += step
    return 0xFFFFFFFF


def prmt(a: int, b: int, c: int) -> int:
    pool = [(a | b << 32) >> 8 * i & 255 for i in range(8)]
    out = 0
    for i in range(4):
        s = c >> 4 * i & 15
        byte = pool[s & 7]
        out |= ((255 if byte & 128 else 0) if s & 8 else byte) << 8 * i
    return out


def lop3(lut: int) -> Callable[[int, int, int], int]:
    return lambda a, b, c: sum(
        (lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
    )


# instruction with operands, types of a, b, c, result type, function on Python integers
INTEGER = [
    *[(f"add.{t} %d, %a, %b;", [t, t], t, lambda a, b: a + b) for t in ("s32", "u64", "s16")],
    *[(f"sub.{t} %d, %a, %b;", [t, t], t, lambda a, b: a - b) for t in ("u32", "s64")],
    *[(f"mul.lo.{t} %d, %a, %b;", [t, t], t, lambda a, b: a * b) for t in ("s32", "u64", "u16")],
    *[(f"mul.hi.{t} %d, %a, %b;", [t, t], t, lambda a, b, s=s: a * b >> s) for t, s in (("s32", 32), ("u32", 32), ("u64", 64), ("s64", 64))],
    ("mul.wide.s32 %d, %a, %b;", ["s32", "s32"], "s64", lambda a, b: a * b),
    ("mul.wide.u16 %d, %a, %b;", ["u16", "u16"], "u32", lambda a, b: a * b),
    ("mad.lo.s32 %d, %a, %b, %c;", ["s32"] * 3, "s32", lambda a, b, c: a * b + c),
    ("mad.hi.u32 %d, %a, %b, %c;", ["u32"] * 3, "u32", lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.u32 %d, %a, %b, %c;", ["u32", "u32", "u64"], "u64", lambda a, b, c: a * b + c),
    *[(f"div.{t} %d, %a, %b;", [t, t], t, tdiv) for t in ("s32", "u32", "s64")],
    *[(f"rem.{t} %d, %a, %b;", [t, t], t, trem) for t in ("s32", "u64")],
    *[(f"{f.__name__}.{t} %d, %a, %b;", [t, t], t, f) for f in (min, max) for t in ("s32", "u32", "s16", "u64")],
    ("neg.s32 %d, %a;", ["s32"], "s32", lambda a: -a),
    ("abs.s64 %d, %a;", ["s64"], "s64", abs),
    ("sad.s32 %d, %a, %b, %c;", ["s32"] * 3, "u32", lambda a, b, c: c + abs(a - b)),
    ("add.cc.u32 %d, %a, %b; addc.u32 %d, %a, %b;", ["u32", "u32"], "u32", lambda a, b: a + b + (a + b >> 32)),
    ("sub.cc.u32 %d, %a, %b; subc.u32 %d, %a, 0;", ["u32", "u32"], "u32", lambda a, b: a - (a < b)),
    ("add.sat.s32 %d, %a, %b;", ["s32", "s32"], "s32", lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("dp4a.s32.s32 %d, %a, %b, %c;", ["s32"] * 3, "s32", lambda a, b, c: c + sum(((a >> 8 * i & 255) ^ 128) * ((b >> 8 * i & 255) ^ 128) - 128 * (((a >> 8 * i & 255) ^ 128) + ((b >> 8 * i & 255) ^ 128)) + 16384 for i in range(4))),
    ("and.b32 %d, %a, %b;", ["b32", "b32"], "b32", lambda a, b: a & b),
    ("or.b64 %d, %a, %b;", ["b64", "b64"], "b64", lambda a, b: a | b),
    ("xor.b16 %d, %a, %b;", ["b16", "b16"], "b16", lambda a, b: a ^ b),
    ("not.b32 %d, %a;", ["b32"], "b32", lambda a: ~a),
    ("shl.b32 %d, %a, %b;", ["b32", "b32"], "b32", lambda a, b: a << b if b < 32 else 0),
    ("and.b32 %b, %b, 63; shl.b64 %d, %a, %b;", ["b64", "b32"], "b64", lambda a, b: a << (b & 63)),
    ("and.b32 %b, %b, 63; shr.s32 %d, %a, %b;", ["s32", "b32"], "s32", lambda a, b: a >> (b & 63)),
    ("and.b32 %b, %b, 63; shr.u32 %d, %a, %b;", ["u32", "b32"], "u32", lambda a, b: a >> (b & 63)),
    ("shf.l.wrap.b32 %d, %a, %b, %c;", ["b32"] * 3, "b32", lambda a, b, c: (a | b << 32) << (c & 31) >> 32),
    ("shf.r.clamp.b32 %d, %a, %b, %c;", ["b32"] * 3, "b32", lambda a, b, c: (a | b << 32) >> min(c, 32)),
    ("lop3.b32 %d, %a, %b, %c, 0x96;", ["b32"] * 3, "b32", lop3(0x96)),
    ("lop3.b32 %d, %a, %b, %c, 0xca;", ["b32"] * 3, "b32", lop3(0xCA)),
    ("prmt.b32 %d, %a, %b, %c;", ["b32"] * 3, "b32", prmt),
    ("popc.b64 %d, %a;", ["b64"], "u32", lambda a: a.bit_count()),
    ("clz.b32 %d, %a;", ["b32"], "u32", lambda a: 32 - a.bit_length()),
    ("brev.b32 %d, %a;", ["b32"], "b32", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 %d, %a;", ["u32"], "u32", lambda a: a.bit_length() - 1),
    ("bfind.shiftamt.u32 %d, %a;", ["u32"], "u32", lambda a: 32 - a.bit_length() if a else -1),
    ("bfind.s32 %d, %a;", ["s32"], "u32", lambda a: (a if a >= 0 else ~a).bit_length() - 1),
    ("and.b32 %b, %b, 31; rem.s32 %c, %c, 6; fns.b32 %d, %a, %b, %c;", ["b32", "b32", "s32"], "u32", lambda a, b, c: fns(a, b & 31, trem(c, 6))),
    ("bfe.u32 %d, %a, 5, 9;", ["u32"], "u32", lambda a: a >> 5 & 511),
    ("bfe.s32 %d, %a, 20, 20;", ["s32"], "s32", lambda a: a >> 20),
    ("bfi.b32 %d, %a, %b, 7, 10;", ["b32", "b32"], "b32", lambda a, b: (b & ~(1023 << 7)) | (a & 1023) << 7),
    ("setp.lt.s32 %q, %a, %b; selp.s32 %d, %a, %b, %q;", ["s32", "s32"], "s32", min),
    ("setp.hi.u32 %q|%r, %a, %b; selp.u32 %d, 7, 9, %r;", ["u32", "u32"], "u32", lambda a, b: 9 if a > b else 7),
    ("set.ge.u32.s32 %d, %a, %b;", ["s32", "s32"], "u32", lambda a, b: -1 if a >= b else 0),
    ("slct.s32.s32 %d, %a, %b, %c;", ["s32"] * 3, "s32", lambda a, b, c: a if c >= 0 else b),
    ("cvt.s32.s16 %d, %a;", ["s16"], "s32", lambda a: a),
    ("cvt.u16.u32 %d, %a;", ["u32"], "u16", lambda a: a),
    ("cvt.s64.s32 %d, %a;", ["s32"], "s64", lambda a: a),
    ("cvt.sat.u16.s32 %d, %a;", ["s32"], "u16", lambda a: max(0, min(65535, a))),
    ("mov.b64 %d, {%a, %b};", ["b32", "b32"], "b64", lambda a, b: a | b << 32),
    ("{ .reg .b16 x, y; mov.b32 {x, y}, %a; mov.b32 %d, {y, x}; }", ["b32"], "b32", lambda a: a >> 16 | a << 16),
]  # fmt: skip


@pytest.mark.parametrize(
    ("instruction", "types", "result", "function"), INTEGER, ids=[c[0] for c in INTEGER]
)
def test_integer(
    instruction: str, types: list[str], result: str, function: Callable[..., int]
) -> None:
    inputs = [values(t, i + 1) for i, t in enumerate(types)]
    got = execute(instruction, types, result, inputs)
    np.testing.assert_array_equal(got, wrap(ints(function)(*inputs), result))


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    # A float32 product is exact in float64; the sum's double rounding is excluded by comparing only where it is exact.
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


FLOAT = [
    ("add.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.add),
    ("sub.rn.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.subtract),
    ("mul.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.multiply),
    ("fma.rn.f32 %d, %a, %b, %c;", ["f32"] * 3, "f32", fma32),
    ("div.rn.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.divide),
    ("sqrt.rn.f32 %d, %a;", ["f32"], "f32", np.sqrt),
    ("rcp.rn.f32 %d, %a;", ["f32"], "f32", lambda a: (np.float32(1) / a)),
    ("add.f64 %d, %a, %b;", ["f64"] * 2, "f64", np.add),
    ("div.rn.f64 %d, %a, %b;", ["f64"] * 2, "f64", np.divide),
    ("neg.f32 %d, %a;", ["f32"], "f32", np.negative),
    ("abs.f32 %d, %a;", ["f32"], "f32", np.abs),
    ("min.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.fmin),
    ("max.NaN.f32 %d, %a, %b;", ["f32"] * 2, "f32", np.maximum),
    ("max.f32 %d, %a, %b, %c;", ["f32"] * 3, "f32", lambda a, b, c: np.fmax(np.fmax(a, b), c)),
    ("cvt.rzi.s32.f32 %d, %a;", ["f32"], "s32", lambda a: np.where(np.isnan(a), 0, np.clip(np.trunc(a.astype(np.float64)), -(2.0**31), 2.0**31 - 1)).astype(np.int32)),
    ("cvt.rn.f32.s32 %d, %a;", ["s32"], "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.f32.u64 %d, %a;", ["u64"], "f32", lambda a: a.astype(np.float32)),
    ("cvt.f64.f32 %d, %a;", ["f32"], "f64", lambda a: a.astype(np.float64)),
    ("cvt.rn.f32.f64 %d, %a;", ["f64"], "f32", lambda a: a.astype(np.float32)),
    ("cvt.rn.bf16.f32 %d, %a;", ["f32"], "b16", lambda a: a.astype(ml_dtypes.bfloat16).view(np.uint16)),
    ("cvt.rn.f16.f32 %d, %a;", ["f32"], "b16", lambda a: a.astype(np.float16).view(np.uint16)),
    ("cvt.rni.f32.f32 %d, %a;", ["f32"], "f32", np.rint),
    ("add.rn.f32x2 %d, %a, %b;", ["b64"] * 2, "b64", lambda a, b: (a.view(np.float32) + b.view(np.float32)).view(np.uint64)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("instruction", "types", "result", "function"), FLOAT, ids=[c[0] for c in FLOAT]
)
def test_float(
    instruction: str, types: list[str], result: str, function: Callable[..., np.ndarray]
) -> None:
    inputs = [values(t, i + 1) for i, t in enumerate(types)]
    if "f32x2" in instruction:
        inputs = [np.repeat(values("f32", i), 2).view(np.uint64) for i in (4, 5)]
    got = execute(instruction, types, result, inputs)
    with np.errstate(all="ignore"):
        want = function(*inputs)
    if np.dtype(NUMPY[result]).kind == "f":
        nan = np.isnan(want)
        assert np.array_equal(np.isnan(got), nan)
        np.testing.assert_array_equal(
            got[~nan].view(f"u{got.itemsize}"), want[~nan].view(f"u{got.itemsize}")
        )
    elif "bf16" in instruction or "f16" in instruction:
        nan = np.isnan(inputs[0])
        np.testing.assert_array_equal(got[~nan], want[~nan])
        assert np.all(got[nan] == 0x7FFF)
    elif "f32x2" in instruction:
        a, b = got.view(np.float32), want.view(np.float32)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_array_equal(a[~np.isnan(a)], b[~np.isnan(b)])
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("frobnicate.u32 %d, %a;", "unknown instruction"),
        ("add.s32.turbo %d, %a, %b;", "unknown qualifier .turbo"),
        ("add.s32 %d, %a;", "operands found"),
        ("add.s64 %d, %a, %b;", "narrower than"),
        ("bra nowhere;", "not defined"),
        ("mov.u32 %d, %nosuch;", "unknown special register"),
    ],
)
def test_unknown_ptx_is_refused_with_its_line(line: str, words: str) -> None:
    with pytest.raises(PtxError) as error:
        Sim().load(kernel(line, ["u32", "u32"], "u32"))
    assert (
        words in str(error.value)
        and line.rstrip(";") in str(error.value)
        and "PTX line 14" in str(error.value)
    )

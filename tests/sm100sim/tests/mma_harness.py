"""Places operands in shared and tensor memory for one tcgen05.mma, runs it, and reads D back: by
formulas of its own (128-byte swizzle and no swizzle, K-major), or through chunk addresses that
test_cute_layouts.py holds against CuTe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import _sm100sim_parts as parts
import mma_model
import numpy as np

A_BASE, B_BASE, SHARED = 0x1000, 0x12000, 0x20000
SFA, SFB, A_TMEM = 400, 420, 440
FORMAT_CODE = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "i8": {"u8": 0, "s8": 1},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
WIDTH = {"f16": 16, "tf32": 32, "f8f6f4": 8, "i8": 8, "mxf8f6f4": 8, "mxf4": 4, "mxf4nvf4": 4}
BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e2m3": 6,
    "e3m2": 6,
    "e2m1": 4,
    "s8": 8,
    "u8": 8,
}


@dataclass
class Case:
    kind: str
    fa: str
    fb: str
    m: int
    n: int
    cta_group: int = 1
    vector: str = ""
    result: str = "f32"
    ws: bool = False
    negate: tuple[int, int] = (0, 0)
    transpose: tuple[int, int] = (0, 0)
    swizzle: int = 2
    scale: str = "ue8m0"
    ids: tuple[int, int] = (0, 0)
    a_in_tmem: bool = False
    d: int = 0
    extra: dict = field(default_factory=dict)

    @property
    def k(self) -> int:
        return 256 // WIDTH[self.kind]

    @property
    def scaled(self) -> bool:
        return self.kind.startswith("mx")

    @property
    def scales(self) -> int:
        return {
            "": {"mxf8f6f4": 1, "mxf4": 2}.get(self.kind, 0),
            "1X": 1,
            "2X": 2,
            "4X": 4,
            "block32": 1 if self.kind == "mxf8f6f4" else 2,
            "block16": 4,
        }[self.vector]

    @property
    def idesc(self) -> int:
        code = FORMAT_CODE[self.kind]
        bits = (
            code[self.fa] << 7
            | code[self.fb] << 10
            | self.negate[0] << 13
            | self.negate[1] << 14
            | self.transpose[0] << 15
            | self.transpose[1] << 16
        )
        bits |= (self.n // 8) << 17 | (self.m // 16) << 24
        if self.scaled:
            return bits | self.ids[1] << 4 | (self.scale == "ue8m0") << 23 | self.ids[0] << 29
        return bits | {"f16": 0, "f32": 1, "s32": 2}[self.result] << 4


def pack_row(codes: np.ndarray, bits: int, width: int) -> np.ndarray:
    """Bytes of one K-major row; unused bytes of padded chunks are 0xEE."""
    if width == 4:
        return (codes[0::2] | codes[1::2] << 4).astype(np.uint8)
    if bits == 32:
        return codes.astype("<u4").view(np.uint8)
    if bits == 16:
        return codes.astype("<u2").view(np.uint8)
    if bits == 8:
        return codes.astype(np.uint8)
    out = np.full((len(codes) // 16, 16), 0xEE, np.uint8)
    for chunk, group in enumerate(codes.reshape(-1, 16)):
        number = sum(int(c) << (bits * i) for i, c in enumerate(group))
        out[chunk, : 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    return out.reshape(-1)


def k_major_address(row: int, byte: int, swizzle: int) -> int:
    chunk = byte // 16
    if swizzle == 0:
        return row // 8 * 256 + chunk * 128 + row % 8 * 16 + byte % 16  # SBO 256, LBO 128
    if swizzle == 4:  # 64-byte lines, two of them share a phase
        return row // 8 * 1024 + row % 8 * 64 + ((chunk ^ (row % 8 // 2)) * 16) + byte % 16
    return row // 8 * 1024 + row % 8 * 128 + ((chunk ^ (row % 8)) * 16) + byte % 16


def descriptor(
    base: int, swizzle: int, mn_major: bool = False, leading: int = 128, stride: int | None = None
) -> int:
    stride = stride if stride is not None else (256 if swizzle == 0 else 1024)
    return base >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | swizzle << 61


class Machine:
    def __init__(self, case: Case, seed: int = 0):
        self.case = case
        rng = np.random.default_rng(seed)
        self.shared = np.full((2, SHARED), 0xEE, np.uint8)
        self.shared_poison = np.ones((2, SHARED), np.uint8)
        self.tmem = rng.integers(0, 1 << 32, (2, 128, 512), dtype=np.uint32)
        self.tmem_poison = np.full((2, 128, 512), 15, np.uint8)
        self.touched = np.zeros((2, SHARED), np.uint8)
        self.request = (
            dict(
                d=case.d,
                a=descriptor(A_BASE, case.swizzle),
                b=descriptor(B_BASE, case.swizzle),
                idesc=case.idesc,
                sfa=SFA,
                sfb=SFB,
                enable=0,
            )
            | case.extra
        )

    def put_shared(self, cta: int, base: int, codes: np.ndarray, fmt: str, mn_major: bool) -> None:
        case = self.case
        if mn_major:
            self.put_mn_major(cta, base, codes, fmt)
            return
        for row, line in enumerate(codes):
            data = pack_row(line, BITS[fmt], WIDTH[case.kind])
            real = np.arange(len(data)) % 16 < (2 * BITS[fmt] if WIDTH[case.kind] == 8 else 16)
            for byte, value in enumerate(data):
                at = base + k_major_address(row, byte, case.swizzle)
                self.shared[cta, at] = value
                self.shared_poison[cta, at] = not real[byte]

    def put_mn_major(self, cta: int, base: int, codes: np.ndarray, fmt: str) -> None:
        size = BITS[fmt] // 8
        per = 16 // size
        mode = self.case.swizzle
        # Atoms of 64 or 128 bytes of MN by 8 (4) columns of K, K blocks first: LBO between MN
        # atoms, SBO between K blocks.
        leading, stride = (4096, 1024) if mode else (128 * (len(codes) // per), 128)
        name = "a" if base == A_BASE else "b"
        self.request[name] = descriptor(base, mode, True, leading, stride)
        chunks = parts.operand_chunks(self.request[name], True, len(codes) // per, codes.shape[1])
        raw = codes.astype({1: np.uint8, 2: "<u2", 4: "<u4"}[size])
        for c in range(len(codes) // per):
            for k in range(codes.shape[1]):
                at = chunks[c, k]
                self.shared[cta, at : at + 16] = np.ascontiguousarray(
                    raw[c * per : (c + 1) * per, k]
                ).view(np.uint8)
                self.shared_poison[cta, at : at + 16] = 0

    def put_scales(self, cta: int, column: int, codes: np.ndarray, id_: int, halves: bool) -> None:
        """codes[row, block]; all other bytes keep poison."""
        rows = len(codes)
        for row in range(rows):
            for partition in range(4):
                inside = row
                if halves:
                    if row // (rows // 2) != partition // 2:
                        continue
                    inside = row % (rows // 2)
                lane, col = partition * 32 + inside % 32, column + inside // 32
                for block, code in enumerate(codes[row]):
                    byte = id_ + block
                    word = int(self.tmem[cta, lane, col]) & ~(0xFF << 8 * byte)
                    self.tmem[cta, lane, col] = word | int(code) << 8 * byte
                    self.tmem_poison[cta, lane, col] &= ~(1 << byte) & 15

    def put_a_tmem(self, cta: int, codes: np.ndarray, fmt: str) -> None:
        width = WIDTH[self.case.kind]
        rows = len(codes)
        for lane in range(128):
            if self.case.m == 64 and self.case.cta_group == 1 and not self.case.ws:
                offset = self.case.d >> 16
                if lane % 32 // 16 != offset // 16:
                    continue
                row = lane // 32 * 16 + lane % 16
            else:
                row = lane % rows
            line = codes[row].astype(np.int64)
            if width == 8:
                line = line << 2 if BITS[fmt] == 4 else line
            number = sum(int(c) << (width * i) for i, c in enumerate(line))
            words = np.frombuffer(number.to_bytes(32, "little"), "<u4")
            self.tmem[cta, lane, A_TMEM : A_TMEM + 8] = words
            self.tmem_poison[cta, lane, A_TMEM : A_TMEM + 8] = 0

    def place(self, a, b, scales_a=None, scales_b=None, c=None) -> None:
        case = self.case
        group = case.cta_group
        rows, columns = case.m // group, case.n // group
        for cta in range(group):
            mine = a[cta * rows : (cta + 1) * rows]
            if case.a_in_tmem:
                self.put_a_tmem(cta, mine, case.fa)
                self.request |= dict(a=A_TMEM | (case.d >> 16) << 16, a_in_tmem=1)
            else:
                self.put_shared(cta, A_BASE, mine, case.fa, bool(case.transpose[0]))
            self.put_shared(
                cta,
                B_BASE,
                b[cta * columns : (cta + 1) * columns],
                case.fb,
                bool(case.transpose[1]),
            )
            if case.scaled:
                self.put_scales(
                    cta, SFA, scales_a[cta * rows : (cta + 1) * rows], case.ids[0], False
                )
                self.put_scales(cta, SFB, scales_b, case.ids[1], rows == 64)
            if c is not None:
                self.put_d(cta, c[cta * rows : (cta + 1) * rows])
                self.request["enable"] = 1

    def cells(self) -> np.ndarray:
        return parts.d_cells(
            self.case.kind,
            self.case.cta_group,
            self.case.ws,
            self.case.idesc & ~(3 << 15),
            self.case.d,
        )

    def put_d(self, cta: int, codes: np.ndarray) -> None:
        at = self.cells()
        column = self.case.d & 0xFFFF
        self.tmem[cta, at[..., 0], column + at[..., 1]] = codes
        self.tmem_poison[cta, at[..., 0], column + at[..., 1]] = (
            12 if self.case.result == "f16" else 0
        )

    def run(self) -> list[str]:
        case = self.case
        return parts.mma(
            case.kind,
            case.cta_group,
            case.vector,
            case.ws,
            self.request,
            self.shared,
            self.shared_poison,
            self.tmem,
            self.tmem_poison,
            self.touched,
        )

    def d(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes and poison of D, all rows of the pair."""
        at = self.cells()
        column = self.case.d & 0xFFFF
        parts_ = [
            (
                self.tmem[cta, at[..., 0], column + at[..., 1]],
                self.tmem_poison[cta, at[..., 0], column + at[..., 1]],
            )
            for cta in range(self.case.cta_group)
        ]
        return np.concatenate([p[0] for p in parts_]), np.concatenate([p[1] for p in parts_])


def as_float(codes: np.ndarray, result: str) -> np.ndarray:
    if result == "f16":
        return (codes & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return codes.view(np.float32).astype(np.float64)


def random_codes(rng, fmt: str, shape, finite: bool = True) -> np.ndarray:
    """All codes alike for narrow formats, several magnitudes of normal numbers for wide ones."""
    bits = BITS[fmt]
    if bits <= 8:
        codes = rng.integers(0, 1 << bits, shape, dtype=np.uint32)
        if finite:
            bad = (
                ~np.isfinite(mma_model.values(fmt, codes))
                if fmt not in ("s8", "u8")
                else np.zeros(shape, bool)
            )
            codes = np.where(bad, 0, codes)
        return codes.astype(np.uint32)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-4, 5, shape))).astype(np.float32)
    if fmt == "tf32":
        return x.view(np.uint32)
    return x.astype(mma_model.DTYPE[fmt]).view(np.uint16).astype(np.uint32)

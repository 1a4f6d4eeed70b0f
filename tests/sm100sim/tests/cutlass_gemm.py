"""Runs one of CUTLASS's own GEMMs (cutlass/gemm.cu) in the simulator: CUTLASS's host code makes the
parameters, NumPy the expectation.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib

import ml_dtypes
import numpy as np

from sm100sim import Sim, native, nvcc

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "cutlass" / "gemm.cu"
ARCH = "sm_100a"
NAMES = [
    "bf16 1-SM",
    "bf16 2-SM",
    "e4m3 2-SM",
    "mxf8 x mxf4 1-SM",
    "mxf8 x mxf4 2-SM",
    "mxf4 x mxf4 1-SM",
]


@functools.cache
def compiled(variant: int) -> tuple[str, ctypes.CDLL]:
    include = nvcc.cutlass_include()
    ptx = nvcc.compile_ptx(
        SOURCE, arch=ARCH, include=include, options=["-DDEVICE", f"-DVARIANT={variant}"]
    )
    options = ["-O0", "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1", f"-DVARIANT={variant}"]
    library = nvcc.compile_library(SOURCE, arch=ARCH, include=include, options=options)
    return ptx, ctypes.CDLL(str(library))


def encode_function() -> int:
    """Address of the simulator's cuTensorMapEncodeTiled."""
    symbols = native.driver_symbols()
    table = (ctypes.c_void_p * len(symbols)).from_address(native.driver_table())
    return int(table[symbols.index("cuTensorMapEncodeTiled")])


def e2m1(values: np.ndarray) -> np.ndarray:
    """Packed codes, the even element in the low nibble."""
    codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def scale_tiles(scales: np.ndarray) -> np.ndarray:
    """Scale bytes [rows, blocks] in the order of 128 x 4 tiles, K tiles first."""
    rows, blocks = scales.shape
    tiles = np.full((-(-rows // 128), -(-blocks // 4), 512), 127, np.uint8)
    m, j = np.indices((rows, blocks))
    tiles[m // 128, j // 4, m % 32 * 16 + m % 128 // 32 * 4 + j % 4] = scales
    return tiles.reshape(-1)


def run(variant: int, m: int, n: int, k: int, *, sms: int = 4, beta: float = 0.0, **options):
    """D and its expectation, and the launch."""
    ptx, library = compiled(variant)
    rng = np.random.default_rng(variant)
    sim = Sim(sms=sms, **options)
    a, b = (
        rng.integers(-3, 4, (m, k)).astype(np.float32),
        rng.integers(-3, 4, (n, k)).astype(np.float32),
    )
    c = rng.integers(-9, 10, (m, n)).astype(np.float32)
    scales = []
    if variant <= 1:
        codes = [x.astype(ml_dtypes.bfloat16).view(np.uint16) for x in (a, b)]
    elif variant == 2:
        codes = [x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for x in (a, b)]
    else:
        codes = [
            e2m1(a) if variant == 5 else a.astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
            e2m1(b),
        ]
        scales = [rng.integers(125, 130, (rows, k // 32)).astype(np.uint8) for rows in (m, n)]
    wide = [np.repeat(np.exp2(s.astype(np.float64) - 127), 32, 1) for s in scales] or [1.0, 1.0]
    want = (a * wide[0]) @ (b * wide[1]).T + beta * c
    arrays = [sim.array(x) for x in codes] + [sim.array(c), sim.empty((m, n), np.float32)]
    arrays += [sim.array(scale_tiles(s)) for s in scales]
    pointers = (ctypes.c_void_p * 6)(*[x.address for x in arrays], *([None] * (6 - len(arrays))))
    params, shape = ctypes.create_string_buffer(4096), (ctypes.c_uint * 11)()
    numbers = (ctypes.c_int * 5)(m, n, k, sms, sms // 2 if variant in (1, 2, 4) else sms)
    library.make_params.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_float,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    code = library.make_params(encode_function(), numbers, pointers, beta, params, 4096, shape)
    if code:
        raise RuntimeError(f"CUTLASS refuses the problem: code {code}, {native.driver_refusal()}")
    module = sim.load(ptx)
    launch = module(
        "device_kernel", list(shape[0:3]), list(shape[3:6]), params.raw[: shape[10]],
        cluster=list(shape[6:9]), shared=shape[9],
    )  # fmt: skip
    return arrays[3].get(), want, launch

"""Runs one of CUTLASS's own GEMMs (cutlass/) in the simulator: CUTLASS's host code makes the
parameters, NumPy the expectation. Compiling one takes nvcc a minute of one core, so that `prepare`
starts it in the background when the tests are collected.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import pathlib
from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np

from sm100sim import Sim, native, nvcc

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "cutlass"
ARCH = "sm_100a"
NAMES = [
    "bf16 1-SM",
    "bf16 2-SM",
    "e4m3 2-SM",
    "mxf8 x mxf4 1-SM",
    "mxf8 x mxf4 2-SM",
    "mxf4 x mxf4 1-SM",
    "mxf8 x mxf4 2-SM grouped",
]
GROUPED = 6
_compilers = concurrent.futures.ThreadPoolExecutor(2)


def _ptx(variant: int) -> str:
    include = nvcc.cutlass_include()
    options = [f"-DVARIANT={variant}"]
    return nvcc.compile_ptx(SOURCES / "kernel.cu", arch=ARCH, include=include, options=options)


def _host(variant: int) -> pathlib.Path:
    source = SOURCES / ("grouped_host.cc" if variant == GROUPED else "dense_host.cc")
    options = ["-O0", "-fpermissive", f"-DVARIANT={variant}"]
    options.append("-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1")
    return nvcc.compile_host(source, include=nvcc.cutlass_include(), options=options)


@functools.cache
def _start(
    variant: int,
) -> tuple[concurrent.futures.Future[str], concurrent.futures.Future[pathlib.Path]]:
    return _compilers.submit(_ptx, variant), _compilers.submit(_host, variant)


def prepare(variants: Iterable[int]) -> None:
    """Starts compiling in the background."""
    for variant in variants:
        _start(variant)


@functools.cache
def compiled(variant: int) -> tuple[str, ctypes.CDLL]:
    ptx, library = _start(variant)
    return ptx.result(), ctypes.CDLL(str(library.result()))


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


def operands(variant: int, rng: np.random.Generator, m: int, n: int, k: int, beta: float):
    """Codes of A and B, C, the scales in tiles, and the expectation."""
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float32) for rows in (m, n))
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
    return codes, c, [scale_tiles(s) for s in scales], want.astype(np.float32)


def _launch(sim: Sim, variant: int, code: int, params, shape):
    if code:
        raise RuntimeError(f"CUTLASS refuses the problem: code {code}, {native.driver_refusal()}")
    module = sim.load(compiled(variant)[0])
    return module(
        "device_kernel", list(shape[0:3]), list(shape[3:6]), params.raw[: shape[10]],
        cluster=list(shape[6:9]), shared=shape[9],
    )  # fmt: skip


def run(variant: int, m: int, n: int, k: int, *, sms: int = 4, beta: float = 0.0, **options):
    """D and its expectation, and the launch."""
    library = compiled(variant)[1]
    sim = Sim(sms=sms, **options)
    codes, c, scales, want = operands(variant, np.random.default_rng(variant), m, n, k, beta)
    arrays = [sim.array(x) for x in codes] + [sim.array(c), sim.empty((m, n), np.float32)]
    arrays += [sim.array(s) for s in scales]
    pointers = (ctypes.c_void_p * 6)(*[x.address for x in arrays], *([None] * (6 - len(arrays))))
    params, shape = ctypes.create_string_buffer(4096), (ctypes.c_uint * 11)()
    numbers = (ctypes.c_int * 5)(m, n, k, sms, sms // 2 if variant in (1, 2, 4) else sms)
    code = library.make_params(
        ctypes.c_void_p(encode_function()), numbers, pointers, ctypes.c_float(beta), params, 4096,
        shape,
    )  # fmt: skip
    launch = _launch(sim, variant, code, params, shape)
    return arrays[3].get(), want, launch


def run_grouped(sizes: Sequence[tuple[int, int, int]], *, sms: int = 4, **options):
    """D and its expectation per group, and the launch."""
    library = compiled(GROUPED)[1]
    sim = Sim(sms=sms, **options)
    rng = np.random.default_rng(1)
    pointers, results, wants, kept = [], [], [], []
    for m, n, k in sizes:
        codes, c, scales, want = operands(GROUPED, rng, m, n, k, 0.0)
        arrays = [sim.array(x) for x in (*codes, c)] + [sim.empty((m, n), np.float32)]
        arrays += [sim.array(s) for s in scales]
        kept += arrays
        pointers += [x.address for x in arrays]
        results.append(arrays[3])
        wants.append(want)
    tables = np.zeros(library.table_bytes(), np.uint8)
    device = sim.empty(tables.shape, np.uint8)
    workspace = sim.empty((sms * 8 * 128,), np.uint8)
    params, shape = ctypes.create_string_buffer(4096), (ctypes.c_uint * 11)()
    flat = [x for size in sizes for x in size]
    code = library.make_params(
        ctypes.c_void_p(encode_function()), (ctypes.c_int * 3)(len(sizes), sms, sms // 2),
        (ctypes.c_int * len(flat))(*flat), (ctypes.c_void_p * len(pointers))(*pointers),
        ctypes.c_float(0.0), tables.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_void_p(device.address), ctypes.c_void_p(workspace.address),
        ctypes.c_size_t(workspace.nbytes), params, 4096, shape,
    )  # fmt: skip
    device.set(tables)
    launch = _launch(sim, GROUPED, code, params, shape)
    return [x.get() for x in results], wants, launch

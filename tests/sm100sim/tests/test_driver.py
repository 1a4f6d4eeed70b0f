# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""The driver table: what a host program sees. Called through ctypes by the table's own signatures."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from sm100sim import native, nvcc

SOURCE = r"""
extern "C" __global__ void __launch_bounds__(64) add(const int* x, int* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] + 1; }
extern "C" __global__ void tell(volatile int* flag) { if (threadIdx.x == 0) { __threadfence_system(); *flag = 1; } }
extern "C" __global__ void listen(volatile int* flag, int* y) { if (threadIdx.x == 0) { while (*flag == 0) {} y[0] = 5; } }
extern "C" __global__ void bad(int* y) { y[1 << 20] = 1; }
"""


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")],
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


class Driver:
    """Calls by symbol name; a result other than 0 raises unless `allow` names it."""

    def __init__(self, devices: int = 1, sms: int = 4, **options: Any) -> None:
        native.configure_driver([(sms, 10, 0, 16)] * devices, **options)
        symbols = native.driver_symbols()
        table = (ctypes.c_void_p * len(symbols)).from_address(native.driver_table())
        self.functions = dict(zip(symbols, table, strict=True))

    def __call__(self, name: str, *arguments: Any, allow: tuple[int, ...] = (0,)) -> int:
        types = [
            ctypes.c_void_p if not isinstance(a, (int, ctypes.c_int)) else ctypes.c_uint64
            for a in arguments
        ]
        values = [
            ctypes.cast(a, ctypes.c_void_p)
            if not isinstance(a, (int, ctypes.c_int)) and a is not None
            else a
            for a in arguments
        ]
        code = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self.functions[name])(*values)
        assert code in allow, (name, code, native.driver_refusal())
        return code

    def get(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
        out = kind()
        self(name, ctypes.pointer(out), *arguments)
        return out.value

    def use(self, device: int) -> int:
        context = self.get("cuDevicePrimaryCtxRetain", device)
        self("cuCtxSetCurrent", context)
        return context

    def function(self, name: str) -> int:
        text = ctypes.create_string_buffer(nvcc.compile_ptx(SOURCE).encode())
        module = self.get("cuModuleLoadData", text)
        return self.get("cuModuleGetFunction", module, ctypes.create_string_buffer(name.encode()))

    def launch(
        self,
        function: int,
        grid: int,
        block: int,
        *arguments: Any,
        stream: int | None = None,
        cluster: int = 0,
        allow: tuple[int, ...] = (0,),
    ) -> int:
        config = Config(grid, 1, 1, block, 1, 1, 0, stream, None, 0)
        attribute = Attribute(4, b"", (cluster, 1, 1))
        if cluster:
            config.attributes, config.count = ctypes.pointer(attribute), 1
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        return self(
            "cuLaunchKernelEx", ctypes.pointer(config), function, pointers, None, allow=allow
        )


def test_attributes() -> None:
    driver = Driver(sms=12)
    values = {
        a: driver.get("cuDeviceGetAttribute", a, 0, kind=ctypes.c_int) for a in (16, 75, 76, 97)
    }
    assert values == {16: 12, 75: 10, 76: 0, 97: 232448}
    driver("cuDeviceGetAttribute", ctypes.pointer(ctypes.c_int()), 9999, 0, allow=(1,))


def test_copies_kernels_and_graph_replay_are_in_stream_order() -> None:
    driver = Driver(seed=2)
    driver.use(0)
    n = 100
    x, y = (driver.get("cuMemAlloc_v2", 4 * n) for _ in range(2))
    add, stream = driver.function("add"), driver.get("cuStreamCreate", 0)
    host = np.arange(n, dtype=np.int32)
    driver("cuMemcpyHtoDAsync_v2", x, host.ctypes.data, 4 * n, stream)
    driver("cuStreamBeginCapture_v2", stream, 0)
    driver.launch(
        add, 2, 64, ctypes.c_uint64(x), ctypes.c_uint64(y), ctypes.c_int(n), stream=stream
    )
    driver("cuMemcpyDtoDAsync_v2", x, y, 4 * n, stream)
    out = ctypes.c_uint64()
    driver("cuStreamEndCapture", stream, ctypes.pointer(out))
    graph = driver.get("cuGraphInstantiateWithFlags", out.value, 0)
    for _ in range(3):
        driver("cuGraphLaunch", graph, stream)
    result = np.zeros(n, np.int32)
    driver("cuMemcpyDtoHAsync_v2", result.ctypes.data, y, 4 * n, stream)
    driver("cuStreamSynchronize", stream)
    np.testing.assert_array_equal(result, host + 3)
    assert native.driver_reports() == []


def test_devices_see_each_other_while_running() -> None:
    driver = Driver(devices=2, seed=1)
    contexts = [driver.use(d) for d in range(2)]
    driver.use(0)
    driver("cuCtxEnablePeerAccess", contexts[1], 0)
    flag_code = driver.function("listen")
    flag, y = driver.get("cuMemAlloc_v2", 4), driver.get("cuMemAlloc_v2", 4)
    driver("cuMemsetD32Async", flag, 0, 1, None)
    driver.launch(flag_code, 1, 32, ctypes.c_uint64(flag), ctypes.c_uint64(y))
    driver.use(1)
    driver("cuCtxEnablePeerAccess", contexts[0], 0)
    driver.launch(driver.function("tell"), 1, 32, ctypes.c_uint64(flag))
    driver("cuCtxSynchronize")
    driver.use(0)
    result = np.zeros(1, np.int32)
    driver("cuMemcpyDtoHAsync_v2", result.ctypes.data, y, 4, None)
    driver("cuCtxSynchronize")
    assert result[0] == 5


def test_refusals_have_the_driver_codes() -> None:
    driver = Driver(sms=2)
    driver.use(0)
    add, x = driver.function("add"), driver.get("cuMemAlloc_v2", 400)
    arguments = (ctypes.c_uint64(x), ctypes.c_uint64(x), ctypes.c_int(4))
    driver.launch(add, 1, 128, *arguments, allow=(701,))
    assert "at most 64" in native.driver_refusal()
    driver.launch(add, 3, 64, *arguments, cluster=2, allow=(912,))
    text = ctypes.create_string_buffer(
        b".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n frobnicate.u32 %r1;\n}\n"
    )
    driver("cuModuleLoadData", ctypes.pointer(ctypes.c_uint64()), text, allow=(218,))
    assert "line 6" in native.driver_refusal() and "frobnicate" in native.driver_refusal()


def test_a_fault_is_reported_and_sticks() -> None:
    driver = Driver()
    driver.use(0)
    y = driver.get("cuMemAlloc_v2", 4)
    driver.launch(driver.function("bad"), 1, 32, ctypes.c_uint64(y))
    driver("cuCtxSynchronize", allow=(719,))
    assert [r["kind"] for r in native.driver_reports()] == ["out-of-bounds"]


def test_unknown_symbol_is_not_found() -> None:
    driver = Driver()
    driver.use(0)
    with pytest.raises(AssertionError, match="500"):
        driver.function("nothing")

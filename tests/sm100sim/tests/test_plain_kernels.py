# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Kernels compiled by nvcc from plain CUDA: arithmetic, divergence, shared memory, warp operations, calls, printf. Expectations: NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from sm100sim import Sim, SimulationError, UndefinedOutput, nvcc

SOURCE = r"""
#include <cassert>
#include <cstdio>
__device__ __noinline__ int helper(int a, float* p) { if (a > 3) return a * 7; p[0] = a; return a + 3; }
__constant__ int table[4] = {1, 2, 3, 4};
__device__ int counter;

extern "C" __global__ void axpy(const float* x, float* y, float a, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void collatz(const unsigned* x, unsigned* steps) {
  unsigned v = x[threadIdx.x + blockIdx.x * blockDim.x], n = 0;
  while (v != 1) { v = v % 2 ? 3 * v + 1 : v / 2; ++n; }
  steps[threadIdx.x + blockIdx.x * blockDim.x] = n;
}
extern "C" __global__ void block_sum(const float* x, float* out) {
  __shared__ float part[32];
  float v = x[threadIdx.x + blockIdx.x * blockDim.x];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float s = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) s += part[w];
    out[blockIdx.x] = s;
  }
}
extern "C" __global__ void reversed(const int* x, int* y) {
  extern __shared__ int dyn[];
  dyn[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = dyn[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void calls(int* y, float* scratch) {
  y[threadIdx.x] = helper(threadIdx.x, scratch + threadIdx.x) + table[threadIdx.x & 3];
  atomicAdd(&counter, 1);
}
extern "C" __global__ void speak(int n) { if (threadIdx.x == 5) printf("n=%d x=%.2f %s\n", n, 1.5, "end"); }
extern "C" __global__ void claim(int n) { assert(n == 1); }
extern "C" __global__ void switches(const int* x, int* y) {
  int v = x[threadIdx.x];
  switch (v & 7) {
    case 0: v += 1; break; case 1: v *= 3; break; case 2: v -= 7; break; case 3: v ^= 0x55; break;
    case 4: v <<= 2; break; case 5: v = v / 3; break; default: v = -v;
  }
  float local[8];
  for (int j = 0; j < 8; ++j) local[(j * v) & 7] = v + j;
  y[threadIdx.x] = v;
}
extern "C" __global__ void transcendental(const float* x, float* y) {
  float v = x[threadIdx.x];
  y[threadIdx.x] = sinf(v) + expf(v) * sqrtf(fabsf(v)) - v / 3.0f + logf(fabsf(v) + 1.0f);
}
extern "C" __global__ void out_of_bounds(int* y) { y[threadIdx.x + 1] = 1; }
extern "C" __global__ void uses_undefined(const int* x, int* y) { if (x[threadIdx.x] > 0) y[threadIdx.x] = 1; }
extern "C" __global__ void copies(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void spins(volatile int* flag) { while (*flag == 0) {} }
extern "C" __global__ void ballots(unsigned* y) {
  unsigned m = __ballot_sync(~0u, threadIdx.x % 3 == 0);
  if (threadIdx.x < 16) m += __shfl_down_sync(0xffffu, threadIdx.x, 2);
  y[threadIdx.x] = m + __reduce_add_sync(~0u, threadIdx.x) + __popc(__match_any_sync(~0u, threadIdx.x / 5));
}
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return nvcc.compile_ptx(SOURCE)


@pytest.fixture(params=["random", "eager", "latest"])
def sim(request: pytest.FixtureRequest) -> Sim:
    return Sim(policy=request.param, seed=3)


def test_elementwise_with_a_ragged_end(sim: Sim, ptx: str) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    dx, dy = sim.array(x), sim.array(y)
    sim.load(ptx)("axpy", 8, 128, dx, dy, 2.5, 1000)
    # nvcc contracts to one fused operation.
    want = (2.5 * x.astype(np.float64) + y).astype(np.float32)
    np.testing.assert_array_equal(dy.get(), want)


def test_divergent_loops(sim: Sim, ptx: str) -> None:
    x = np.arange(1, 257, dtype=np.uint32)

    def steps(v: int) -> int:
        n = 0
        while v != 1:
            v, n = (3 * v + 1 if v % 2 else v // 2), n + 1
        return n

    out = sim.empty(256, np.uint32)
    sim.load(ptx)("collatz", 2, 128, sim.array(x), out)
    np.testing.assert_array_equal(out.get(), [steps(int(v)) for v in x])


def test_shuffles_and_barrier(sim: Sim, ptx: str) -> None:
    x = np.random.default_rng(1).integers(-50, 50, 1024).astype(np.float32)
    out = sim.empty(4, np.float32)
    sim.load(ptx)("block_sum", 4, 256, sim.array(x), out)
    np.testing.assert_array_equal(out.get(), x.reshape(4, 256).sum(1))


def test_dynamic_shared_memory(sim: Sim, ptx: str) -> None:
    x = np.arange(96, dtype=np.int32)
    out = sim.empty(96, np.int32)
    sim.load(ptx)("reversed", 1, 96, sim.array(x), out, shared=96 * 4)
    np.testing.assert_array_equal(out.get(), x[::-1])


def test_calls_constants_and_module_variables(sim: Sim, ptx: str) -> None:
    out, scratch = sim.empty(64, np.int32), sim.array(np.zeros(64, np.float32))
    module = sim.load(ptx)
    module("calls", 1, 64, out, scratch)
    t = np.arange(64)
    np.testing.assert_array_equal(out.get(), np.where(t > 3, t * 7, t + 3) + t % 4 + 1)
    np.testing.assert_array_equal(scratch.get()[:4], [0, 1, 2, 3])
    address, _ = module.handle.variable("counter")
    assert int.from_bytes(sim.machine.read(address, 4), "little") == 64


def test_printf_and_assert(sim: Sim, ptx: str) -> None:
    module = sim.load(ptx)
    assert module("speak", 1, 32, 42).output == "n=42 x=1.50 end\n"
    module("claim", 1, 32, 1)
    with pytest.raises(SimulationError, match="n == 1") as error:
        module("claim", 1, 32, 2)
    assert error.value.kind == "assert"


def test_switch(sim: Sim, ptx: str) -> None:
    x = np.random.default_rng(2).integers(-1000, 1000, 128).astype(np.int32)
    out = sim.empty(128, np.int32)
    sim.load(ptx)("switches", 1, 128, sim.array(x), out)
    cases = [x + 1, x * 3, x - 7, x ^ 0x55, x << 2, np.trunc(x / 3).astype(np.int32), -x, -x]
    np.testing.assert_array_equal(out.get(), np.choose(x & 7, cases))


def test_library_functions(sim: Sim, ptx: str) -> None:
    x = np.random.default_rng(3).uniform(-80, 80, 128).astype(np.float32)
    x[:4] = [1e7, 0, -3e9, 0.5]
    out = sim.empty(128, np.float32)
    sim.load(ptx)("transcendental", 1, 128, sim.array(x), out)
    v = x.astype(np.float64)
    with np.errstate(over="ignore"):
        want = np.sin(v) + np.exp(v) * np.sqrt(np.abs(v)) - v / 3 + np.log(np.abs(v) + 1)
    finite = np.abs(want) < 3e38
    # Each library function errs by at most 2 ulp of its own result (CUDA programming guide).
    scale = np.abs(np.exp(np.minimum(v, 80)) * np.sqrt(np.abs(v))) + np.abs(v / 3) + 20
    assert np.all(np.abs(out.get()[finite] - want[finite]) <= 1e-6 * scale[finite])


def test_warp_functions(sim: Sim, ptx: str) -> None:
    out = sim.empty(32, np.uint32)
    sim.load(ptx)("ballots", 1, 32, out)
    t = np.arange(32)
    ballot = sum(1 << int(i) for i in t if i % 3 == 0)
    shuffled = np.where(t < 16, np.where(t + 2 < 32, t + 2, t), 0)
    group = np.array([np.sum(t // 5 == i // 5) for i in t])
    # __shfl_down_sync of lanes 14 and 15 reads lanes outside the member mask: undefined, so compare the others.
    want = ballot + shuffled + 496 + group
    keep = (t < 14) | (t >= 16)
    np.testing.assert_array_equal(out.get(allow_undefined=True)[keep], want[keep].astype(np.uint32))
    assert out.undefined().reshape(32, 4).any(1)[14:16].all()


def test_out_of_bounds_names_the_place(sim: Sim, ptx: str) -> None:
    out = sim.empty(32, np.int32, label="result")
    with pytest.raises(SimulationError, match="result") as error:
        sim.load(ptx)("out_of_bounds", 1, 32, out)
    report = error.value.report
    assert (
        report["kind"] == "out-of-bounds"
        and report["lane"] == 31
        and "st.global" in report["ptx_text"]
    )
    assert report["address"] == out.address + 128


def test_poison_travels_but_must_not_decide(sim: Sim, ptx: str) -> None:
    module = sim.load(ptx)
    x, y = sim.empty(32, np.int32), sim.empty(32, np.int32)
    module("copies", 1, 32, x, y)
    with pytest.raises(UndefinedOutput):
        y.get()
    with pytest.raises(SimulationError) as error:
        module("uses_undefined", 1, 32, x, y)
    assert error.value.kind == "poison"


def test_endless_spinning_is_a_deadlock(sim: Sim, ptx: str) -> None:
    flag = sim.array(np.zeros(1, np.int32))
    with pytest.raises(SimulationError) as error:
        sim.load(ptx)("spins", 1, 32, flag)
    assert error.value.kind == "deadlock" and "polls" in str(error.value)

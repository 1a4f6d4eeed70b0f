# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Barriers and asynchronous copies: right kernels give NumPy's result under every policy; each deleted line is caught."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_ptx import HELPERS

from sm100sim import Sim, SimulationError, UndefinedOutput, native, nvcc

SOURCE = (
    HELPERS
    + r"""
// Two stages of bulk loads feed doubling warps; results leave by bulk stores.
extern "C" __global__ void __launch_bounds__(128) doubling(const float* x, float* y, int tiles) {
  __shared__ alignas(128) float in[2][128], out[128];
  __shared__ alignas(8) u64 bars[2];
  unsigned full = smem(bars);
  if (threadIdx.x == 0) { mbar_init(full, 1); mbar_init(full + 8, 1); fence_init(); }
  __syncthreads();
  if (threadIdx.x == 0) { mbar_expect(full, 512); bulk_load(smem(in[0]), x, 512, full); }
  for (int t = 0; t < tiles; ++t) {
    int s = t & 1;
    if (threadIdx.x == 0 && t + 1 < tiles) { mbar_expect(full + 8 * (s ^ 1), 512); bulk_load(smem(in[s ^ 1]), x + 128 * (t + 1), 512, full + 8 * (s ^ 1)); }
    mbar_wait(full + 8 * s, (t >> 1) & 1);
    out[threadIdx.x] = 2 * in[s][threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) { bulk_store(y + 128 * t, smem(out), 512); bulk_commit(); bulk_wait(); }
    __syncthreads();
  }
}
// A 2-D tile through shared memory, swizzled on the way in and back out.
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void __launch_bounds__(64) tma_copy(const __grid_constant__ Map in, const __grid_constant__ Map out, int x, int y, unsigned bytes) {
  extern __shared__ __align__(1024) char buffer[];
  __shared__ alignas(8) u64 bar;
  if (threadIdx.x == 0) {
    mbar_init(smem(&bar), 1);
    fence_init();
    mbar_expect(smem(&bar), bytes);
    tma_load_2d(smem(buffer), &in, x, y, smem(&bar));
    mbar_wait(smem(&bar), 0);
    tma_store_2d(&out, 0, 0, smem(buffer));
    bulk_commit();
    bulk_wait();
  }
}
// Each CTA of a cluster writes its number into its right neighbour's memory and tells its barrier.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(32) ring(int* y) {
  __shared__ int word;
  __shared__ alignas(8) u64 bar;
  if (threadIdx.x == 0) { mbar_init(smem(&bar), 1); fence_init(); }
  cluster_sync();
  unsigned me = cluster_rank(), next = (me + 1) & 3;
  if (threadIdx.x == 0) {
    asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; st.shared::cluster.u32 [a], %2; }" :: "r"(smem(&word)), "r"(next), "r"(me * 10 + blockIdx.x / 4) : "memory");
    mbar_arrive_remote(smem(&bar), next);
  }
  mbar_wait_cluster(smem(&bar), 0);
  if (threadIdx.x == 0) y[blockIdx.x] = word;
  cluster_sync();
}
extern "C" __global__ void __launch_bounds__(96) named(int* y) {
  __shared__ int slot[2];
  int w = threadIdx.x / 32;
  if (w == 0) {
    if (threadIdx.x == 0) slot[0] = 7;
    asm volatile("bar.arrive 3, 64;" ::: "memory");
  } else if (w == 1) {
    asm volatile("bar.sync 3, 64;" ::: "memory");
    if (threadIdx.x == 32) slot[1] = slot[0] * 6;
    asm volatile("bar.sync 4, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 4, 64;" ::: "memory");
    if (threadIdx.x == 64) y[0] = slot[1];
  }
}
"""
)


@pytest.fixture(scope="module")
def ptx() -> str:
    return nvcc.compile_ptx(SOURCE)


@pytest.fixture(
    params=[("random", 0), ("random", 1), ("random", 2), ("eager", 0), ("latest", 0)], ids=str
)
def sim(request: pytest.FixtureRequest) -> Sim:
    policy, seed = request.param
    return Sim(policy=policy, seed=seed)


def run_doubling(sim: Sim, ptx: str, tiles: int = 5) -> None:
    x = np.random.default_rng(0).standard_normal(128 * tiles).astype(np.float32)
    out = sim.empty(128 * tiles, np.float32)
    sim.load(ptx)("doubling", 1, 128, sim.array(x), out, tiles)
    np.testing.assert_array_equal(out.get(), 2 * x)


def test_bulk_pipeline(sim: Sim, ptx: str) -> None:
    run_doubling(sim, ptx)


def test_ring_through_the_cluster(sim: Sim, ptx: str) -> None:
    out = sim.empty(12, np.int32)
    sim.load(ptx)("ring", 12, 32, out)
    np.testing.assert_array_equal(out.get(), [((i % 4 - 1) % 4) * 10 + i // 4 for i in range(12)])


def test_named_barriers(sim: Sim, ptx: str) -> None:
    out = sim.empty(1, np.int32)
    sim.load(ptx)("named", 1, 96, out)
    assert out.get()[0] == 42


def tensor_map(array, box: tuple[int, ...], *, type_code: int, swizzle: int = 0) -> bytes:
    dims = list(reversed(array.shape))
    strides = [array.dtype.itemsize * int(np.prod(dims[: i + 1])) for i in range(len(dims) - 1)]
    return native.tensor_map(
        type_code, array.address, dims, strides, list(box), [1] * len(dims), 0, swizzle
    )


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (8, 3), (-5, -2), (28, 18)])
def test_tensor_copy_with_out_of_range_parts(ptx: str, swizzle: int, x: int, y: int) -> None:
    sim = Sim(seed=swizzle)
    values = np.arange(20 * 32, dtype=np.float32).reshape(20, 32)
    width = 8 if swizzle == 1 else 16 if swizzle == 2 else 32
    source, out = sim.array(values), sim.empty((8, width), np.float32)
    maps = [tensor_map(a, (width, 8), type_code=7, swizzle=swizzle) for a in (source, out)]
    sim.load(ptx)("tma_copy", 1, 64, *maps, x, y, 8 * width * 4, shared=8 * 128)
    padded = np.zeros((64, 96), np.float32)
    padded[16:36, 32:64] = values
    np.testing.assert_array_equal(out.get(), padded[16 + y : 24 + y, 32 + x : 32 + x + width])


MISTAKES = {
    "no wait for the load": (r"mbarrier\.try_wait[^;]*p,[^;]*;", "setp.eq.u32 p, 0, 0;"),
    "no proxy fence before the store": (r"fence\.proxy\.async\.shared::cta;", ""),
    "expect_tx too small": (r"(expect_tx\.shared::cta\.b64 _, \[%r\d+\], %r\d+;)", r"\1"),
    "no wait for the bulk group": (r"cp\.async\.bulk\.wait_group 0;", ""),
    "initial count too high": (r"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), %r\d+;", r"\1, 2;"),
    "wrong parity": (r"(mbarrier\.try_wait\.parity[^;]*p, \[%r\d+\]), %r\d+;", r"\1, 1;"),
    "no barrier before the store": (r"bar\.sync\s+0;", ""),
}


@pytest.mark.parametrize("name", [k for k in MISTAKES if k != "expect_tx too small"])
def test_planted_mistakes_are_caught(ptx: str, name: str) -> None:
    pattern, replacement = MISTAKES[name]
    wrong, count = re.subn(pattern, replacement, ptx)
    assert count > 0
    caught = []
    for policy, seed in [("latest", 0), *(("random", s) for s in range(6))]:
        try:
            run_doubling(Sim(policy=policy, seed=seed), wrong)
        except (SimulationError, UndefinedOutput, AssertionError) as error:
            caught.append(getattr(error, "kind", type(error).__name__))
            break
    assert caught, name


def test_wrong_transaction_count_never_completes(ptx: str) -> None:
    wrong = re.sub(r"(expect_tx\.shared::cta\.b64 _, \[%r\d+\]), %r\d+;", r"\1, 528;", ptx)
    assert wrong != ptx
    with pytest.raises(SimulationError) as error:
        run_doubling(Sim(seed=0), wrong)
    assert error.value.kind == "deadlock" and "tx-count 16" in str(error.value)

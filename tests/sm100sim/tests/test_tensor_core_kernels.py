# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Tensor memory and the tensor core inside kernels: results against NumPy, and mistakes in the protocol around them."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from cuda_ptx import HELPERS

from sm100sim import Sim, SimulationError, UndefinedOutput, nvcc

SOURCE = (
    HELPERS
    + r"""
// D[128][32] = sum over `steps` of A[128][16] B[32][16]^T: bf16, no swizzle, written to shared memory by ordinary stores.
extern "C" __global__ void __launch_bounds__(128) gemm(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d, int steps) {
  __shared__ alignas(1024) __nv_bfloat16 sa[2][8 * 128], sb[2][8 * 32];
  __shared__ alignas(8) u64 bar;
  __shared__ unsigned tmem_slot;
  int t = threadIdx.x, warp = t / 32;
  if (warp == 0) tmem_alloc(smem(&tmem_slot), 32);
  if (t == 0) { mbar_init(smem(&bar), 1); fence_init(); }
  tc_before();
  __syncthreads();
  tc_after();
  unsigned tmem = tmem_slot;
  for (int s = 0; s < steps; ++s) {
    for (int k = 0; k < 16; ++k) sa[k / 8][t * 8 + k % 8] = a[(s * 128 + t) * 16 + k];
    if (t < 32) for (int k = 0; k < 16; ++k) sb[k / 8][t * 8 + k % 8] = b[(s * 32 + t) * 16 + k];
    fence_async();
    __syncthreads();
    if (t == 0) {
      tc_after();
      u64 da = (u64)((smem(sa) & 0x3ffff) >> 4) | (u64)(2048 >> 4) << 16 | (u64)(128 >> 4) << 32 | 1ull << 46;
      u64 db = (u64)((smem(sb) & 0x3ffff) >> 4) | (u64)(512 >> 4) << 16 | (u64)(128 >> 4) << 32 | 1ull << 46;
      unsigned idesc = 1u << 4 | 1u << 7 | 1u << 10 | (32u >> 3) << 17 | (128u >> 4) << 24;
      mma_f16(tmem, da, db, idesc, s > 0);
      tc_commit(smem(&bar));
    }
    mbar_wait(smem(&bar), s & 1);
  }
  tc_after();
  for (int n = 0; n < 32; ++n) {
    unsigned v = tmem_ld1(tmem + (warp << 21) + n);
    tc_wait_ld();
    d[t * 32 + n] = __uint_as_float(v);
  }
  tc_before();
  __syncthreads();
  if (warp == 0) tmem_free(tmem, 32);
}
// Tensor memory as a scratch pad: st, ld, and a second round through another warp's... own lanes only.
extern "C" __global__ void __launch_bounds__(128) scratch(const unsigned* x, unsigned* y) {
  __shared__ unsigned slot;
  if (threadIdx.x < 32) tmem_alloc(smem(&slot), 64);
  tc_before();
  __syncthreads();
  tc_after();
  unsigned t = slot + ((threadIdx.x / 32) << 21), v;
  asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(t + 5), "r"(x[threadIdx.x]) : "memory");
  tc_wait_st();
  v = tmem_ld1(t + 5);
  tc_wait_ld();
  y[threadIdx.x] = v;
  tc_before();
  __syncthreads();
  if (threadIdx.x < 32) tmem_free(slot, 64);
}
"""
)


@pytest.fixture(scope="module")
def ptx() -> str:
    return nvcc.compile_ptx(SOURCE)


def run_gemm(sim: Sim, ptx: str, steps: int = 3) -> list:
    rng = np.random.default_rng(5)
    a = rng.integers(-4, 5, (steps, 128, 16)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-4, 5, (steps, 32, 16)).astype(ml_dtypes.bfloat16)
    out = sim.empty((128, 32), np.float32)
    launch = sim.load(ptx)(
        "gemm", 1, 128, sim.array(a.view(np.uint16)), sim.array(b.view(np.uint16)), out, steps
    )
    want = np.einsum("smk,snk->mn", a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(out.get(), want)
    return launch.reports


@pytest.mark.parametrize("policy", ["random", "eager", "latest"])
@pytest.mark.parametrize("rules", ["hardware", "strict"])
def test_gemm_is_exact_on_small_integers_and_clean(ptx: str, policy: str, rules: str) -> None:
    for seed in range(3):
        assert run_gemm(Sim(policy=policy, seed=seed, rules=rules), ptx) == []


def test_tensor_memory_round_trip(ptx: str) -> None:
    sim = Sim()
    x = np.arange(128, dtype=np.uint32) * 77
    out = sim.empty(128, np.uint32)
    sim.load(ptx)("scratch", 1, 128, sim.array(x), out)
    np.testing.assert_array_equal(out.get(), x)


MISTAKES = {
    "no proxy fence": (r"fence\.proxy\.async\.shared::cta;", "", "hardware"),
    "no wait for the commit": (
        r"mbarrier\.try_wait[^;]*p,[^;]*;",
        "setp.eq.u32 p, 0, 0;",
        "hardware",
    ),
    "no commit": (r"tcgen05\.commit[^;]*;", "", "hardware"),
    "no wait::ld": (r"tcgen05\.wait::ld[^;]*;", "", "hardware"),
    "no dealloc": (r"tcgen05\.dealloc[^;]*;", "", "hardware"),
    "wrong stride in the descriptor": (r"2305843009213693952|0x2000000000000000", "0", "hardware"),
    "no fence::after_thread_sync": (r"tcgen05\.fence::after_thread_sync;", "", "strict"),
    "no barrier after the stores": (r"bar\.sync\s+0;", "", "hardware"),
}


@pytest.mark.parametrize("name", [k for k in MISTAKES if "stride" not in k])
def test_planted_mistakes_are_caught(ptx: str, name: str) -> None:
    pattern, replacement, rules = MISTAKES[name]
    wrong, count = re.subn(pattern, replacement, ptx)
    assert count > 0
    for policy, seed in [("latest", 0), *(("random", s) for s in range(6))]:
        try:
            run_gemm(Sim(policy=policy, seed=seed, rules=rules), wrong)
        except (SimulationError, UndefinedOutput, AssertionError):
            return
    pytest.fail(f"{name}: not caught")

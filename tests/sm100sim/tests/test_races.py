# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Data races by vector clocks: ordered programs are clean, and one missing fence, acquire, scope or barrier is found whatever the timing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda_ptx import HELPERS

from sm100sim import Sim, SimulationError, nvcc

SOURCE = (
    HELPERS
    + r"""
D unsigned acquire(const unsigned* p) { unsigned v; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
D void relaxed_store(unsigned* p, unsigned v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
D void release_add(unsigned* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(p) : "memory"); }
// Block 0 hands data to block 1 through a fence and a flag.
extern "C" __global__ void message(unsigned* data, unsigned* flag, unsigned* y) {
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    if (threadIdx.x == 0) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); relaxed_store(flag, 1); }
  } else {
    if (threadIdx.x == 0) while (acquire(flag) == 0) {}
    __syncthreads();
    y[threadIdx.x] = data[threadIdx.x];
  }
}
// Both blocks count; the second one to arrive at the counter reads both halves.
extern "C" __global__ void counted(unsigned* data, unsigned* count, unsigned* y) {
  data[blockIdx.x * 64 + threadIdx.x] = blockIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) { release_add(count); while (acquire(count) != gridDim.x) {} }
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = data[(gridDim.x - 1 - blockIdx.x) * 64 + threadIdx.x];
}
extern "C" __global__ void shared_swap(const unsigned* x, unsigned* y) {
  __shared__ unsigned s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x ^ 64];
}
// A peer device's flag needs system scope.
extern "C" __global__ void to_peer(unsigned* data, unsigned* flag) {
  data[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.sys.global.add.u32 [%0], 1;" :: "l"(flag) : "memory");
}
extern "C" __global__ void from_peer(const unsigned* data, const unsigned* flag, unsigned* y) {
  if (threadIdx.x == 0) { unsigned v; do { asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); } while (v == 0); }
  __syncthreads();
  y[threadIdx.x] = data[threadIdx.x];
}
"""
)


@pytest.fixture(scope="module")
def ptx() -> str:
    return nvcc.compile_ptx(SOURCE)


def message(ptx: str, seed: int) -> None:
    sim = Sim(seed=seed, races=True)
    data, y = sim.empty(64, np.uint32), sim.empty(64, np.uint32)
    sim.load(ptx)("message", 2, 64, data, sim.array(np.zeros(1, np.uint32)), y)
    np.testing.assert_array_equal(y.get(), np.arange(64) + 1)


def counted(ptx: str, seed: int) -> None:
    sim = Sim(seed=seed, races=True)
    y = sim.empty(128, np.uint32)
    sim.load(ptx)("counted", 2, 64, sim.empty(128, np.uint32), sim.array(np.zeros(1, np.uint32)), y)
    np.testing.assert_array_equal(y.get(), np.repeat([1, 0], 64))


def shared_swap(ptx: str, seed: int) -> None:
    sim = Sim(seed=seed, races=True)
    x, y = np.arange(128, dtype=np.uint32), sim.empty(128, np.uint32)
    sim.load(ptx)("shared_swap", 1, 128, sim.array(x), y)
    np.testing.assert_array_equal(y.get(), x ^ 64)


def peers(ptx: str, seed: int) -> None:
    sim = Sim(2, seed=seed, races=True)
    data, flag, y = (
        sim.empty(64, np.uint32, device=1),
        sim.array(np.zeros(1, np.uint32), device=1),
        sim.empty(64, np.uint32, device=1),
    )
    writer = sim.load(ptx, 0).start("to_peer", 1, 64, [data, flag])
    reader = sim.load(ptx, 1).start("from_peer", 1, 64, [data, flag, y])
    sim.run(writer, reader)
    np.testing.assert_array_equal(y.get(), np.arange(64))
    assert writer.statistics["peer_written"] >= 256


RUNS = {"message": message, "counted": counted, "shared_swap": shared_swap, "peers": peers}


@pytest.mark.parametrize("name", RUNS)
def test_ordered_programs_are_clean(ptx: str, name: str) -> None:
    for seed in range(3):
        RUNS[name](ptx, seed)


MISTAKES = [
    ("message", r"fence\.acq_rel\.gpu;", ""),
    ("message", r"ld\.acquire\.gpu\.global", "ld.relaxed.gpu.global"),
    ("message", r"fence\.acq_rel\.gpu;", "fence.acq_rel.cta;"),
    ("message", r"bar\.sync\s+0;", ""),
    ("counted", r"red\.release\.gpu", "red.relaxed.gpu"),
    ("counted", r"ld\.acquire\.gpu\.global", "ld.volatile.global"),
    ("counted", r"bar\.sync\s+0;", ""),
    ("shared_swap", r"bar\.sync\s+0;", ""),
    ("peers", r"red\.release\.sys", "red.release.gpu"),
    ("peers", r"ld\.acquire\.sys", "ld.acquire.gpu"),
]


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"),
    MISTAKES,
    ids=[f"{m[0]}: {m[1]} -> {m[2] or 'deleted'}" for m in MISTAKES],
)
def test_planted_mistakes_are_races(ptx: str, name: str, pattern: str, replacement: str) -> None:
    wrong, count = re.subn(pattern, replacement, ptx)
    assert count > 0
    kinds = set()
    for seed in range(4):
        try:
            RUNS[name](wrong, seed)
        except SimulationError as error:
            kinds.add(error.kind)
        except AssertionError:
            kinds.add("wrong result")
    assert "race" in kinds, kinds

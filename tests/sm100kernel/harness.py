"""Runs the compiled kernel on simulated devices: workspaces that live across calls, one launch per
rank and call, results per rank. Compares nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
from typing import Any

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SM100SIM_BUILD", REPOSITORY / "build" / "sm100sim"))
for folder in (REPOSITORY / "tests", REPOSITORY / "tests" / "sm100sim", BUILD):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import ml_dtypes  # noqa: E402
import native_host  # noqa: E402
import prepare  # noqa: E402

from sm100sim import Sim, native, nvcc  # noqa: E402

KERNEL = REPOSITORY / "xla_ffi" / "sm100" / "kernel.cu"
U8, U32, U4_ALIGN16 = 0, 2, 14
SWIZZLE_128 = 3
SECOND = 1_000_000_000


@functools.cache
def ptx() -> str:
    return nvcc.compile_ptx(KERNEL, lineinfo=True)


def tensor_map(kind: int, address: int, dim: list[int], stride: int, box: list[int]) -> bytes:
    swizzle = 0 if kind == U32 else SWIZZLE_128
    return native.tensor_map(kind, address, dim, [stride], box, [1, 1], swizzle=swizzle)


class Ranks:
    """R simulated devices, the experts spread over them, and their workspaces."""

    def __init__(
        self,
        weights: dict[str, np.ndarray],
        *,
        ranks: int = 1,
        slots: int,
        max_tokens: int,
        sms: int = 4,
        clusters: int | None = None,
        tile: int = 128,
        stages: int = 3,
        lag: int | None = None,
        ring_units: int | None = None,
        timeout: int = SECOND,
        first_epoch: int = 0,
        program: str | list[str] | None = None,
        **options: Any,
    ) -> None:
        experts, intermediate2, half = weights["gate_up_proj"].shape
        self.hidden, self.intermediate = 2 * half, intermediate2 // 2
        self.ranks, self.slots, self.local = ranks, slots, experts // ranks
        self.tile, self.stages, self.timeout = tile, stages, timeout
        self.clusters = clusters or sms // 2
        self.shape = (
            ranks, self.local, slots, self.hidden, self.intermediate, max_tokens, self.clusters,
        )  # fmt: skip
        self.layout = native_host.layout(self.shape)
        self.lag = lag or native_host.default_lag(self.shape)
        self.ring_units = ring_units or self.layout["ring_rows"] // tile
        assert self.ring_units > self.lag or self.ring_units >= self.layout["max_units"]
        self.sim = Sim(ranks, sms=sms, **options)
        programs = program if isinstance(program, list) else [program or ptx()] * ranks
        self.modules = [self.sim.load(text, device=r) for r, text in enumerate(programs)]
        self.workspaces = []
        for r in range(ranks):
            space = self.sim.empty(self.layout["bytes"], device=r, label=f"workspace {r}")
            self.workspaces.append(space)
            space.set(np.zeros(space.shape, np.uint8))
            if first_epoch:
                self.start_all_words_at(r, first_epoch)
        self.reports = [
            self.sim.array(np.zeros(1, np.uint64), device=r, label="report") for r in range(ranks)
        ]
        self.weights, self.maps, self.biases = [], [], []
        for r in range(ranks):
            mine = {k: v[r * self.local : (r + 1) * self.local] for k, v in weights.items()}
            self.place_weights(r, mine)

    def start_all_words_at(self, rank: int, epoch: int) -> None:
        """As after `epoch` (32 bits) calls: every flag and tag says so."""
        lay, base = self.layout, self.workspaces[rank].address
        word = epoch.to_bytes(4, "little")
        lines = [lay["epoch"], *(lay["meta_flag"] + 128 * s for s in range(self.ranks))]
        lines += [lay["row_flag"] + 128 * i for i in range(8 * self.ranks)]
        lines += [lay["done_flag"] + 128 * i for i in range(self.ranks)]
        lines += [lay["expert_tag"] + 8 * x for x in range(self.local)]
        for at in lines:
            self.sim.machine.write(base + at, word)

    def place_weights(self, r: int, weights: dict[str, np.ndarray]) -> None:
        arrays = {
            name: self.sim.array(value, device=r, label=name)
            for name, value in prepare.prepare(weights).items()
        }
        h, i = prepare.up_to(self.hidden, 128), prepare.up_to(self.intermediate, 128)
        m, lay, base = prepare.up_to(h, 256), self.layout, self.workspaces[r].address
        tokens = self.ranks * self.shape[5]
        local = self.local
        self.maps.append([
            tensor_map(U8, base + lay["rows"], [h, tokens], lay["row_pitch"], [128, 1]),
            tensor_map(U8, base + lay["ring"], [i, lay["ring_rows"]], lay["ring_pitch"], [128, 1]),
            tensor_map(
                U4_ALIGN16, arrays["gate_up"].address, [h, local * 2 * i], h // 2, [128, 128]
            ),
            tensor_map(U4_ALIGN16, arrays["down"].address, [i, local * m], i // 2, [128, 128]),
            tensor_map(
                U32, arrays["gate_up_scales"].address, [128, local * (2 * i // 128) * (h // 128)],
                512, [128, 1],
            ),
            tensor_map(
                U32, arrays["down_scales"].address, [128, local * (m // 128) * (i // 128)], 512,
                [128, 1],
            ),
        ])  # fmt: skip
        self.weights.append(arrays)
        self.biases.append([
            self.sim.array(weights[name].astype(np.float32), device=r, label=name).address
            if name in weights else 0
            for name in ("gate_up_proj_bias", "down_proj_bias")
        ])  # fmt: skip

    def prepare(
        self, r: int, x: np.ndarray, idx: np.ndarray, routing: np.ndarray, *,
        limit: float | None = None, alpha: float = 1.0, beta: float = 0.0, row_groups: int = 1,
        call_site: int = 0,
    ) -> tuple[bytes, list[Any], Any]:  # fmt: skip
        """The parameter block of a call on rank r, its inputs and its result in device memory."""
        tokens = len(x)
        # XLA's buffers are aligned and never empty; here one more byte stands for "never empty".
        arrays = [
            self.sim.array(a if a.size else np.zeros(16, np.uint8), device=r, label=label)
            for a, label in (
                (x.view(np.uint16), "x"),
                (idx.astype(np.int32), "topk_idx"),
                (routing.astype(np.float32), "topk_weights"),
            )
        ]
        y = self.sim.empty((tokens, self.hidden), np.uint16, device=r, label="y")
        call = native_host.Call(
            shape=(ctypes.c_uint32 * 7)(*self.shape), rank=r, tokens=tokens,
            row_groups=row_groups, call_site=call_site, stages=self.stages, lag=self.lag,
            ring_units=self.ring_units, limit=np.inf if limit is None else limit, alpha=alpha,
            beta=beta, timeout_ns=self.timeout, x=arrays[0].address, topk_idx=arrays[1].address,
            topk_weights=arrays[2].address, y=y.address, gate_up_bias=self.biases[r][0],
            down_bias=self.biases[r][1], report=self.reports[r].address,
        )  # fmt: skip
        for peer in range(self.ranks):
            call.workspace[peer] = self.workspaces[peer].address
        for number, data in enumerate(self.maps[r]):
            ctypes.memmove(call.maps[number], data, 128)
        return native_host.params(call), arrays, y

    def launch(self, r: int, block: bytes) -> Any:
        return self.modules[r].start(
            f"megamoe_n{self.tile}", 2 * self.clusters, 512, [block],
            cluster=2, shared=native_host.shared_size(self.tile, self.stages),
        )  # fmt: skip

    def start(self, r: int, *inputs: np.ndarray, **keywords: Any) -> tuple[Any, Any]:
        block, _, y = self.prepare(r, *inputs, **keywords)
        return self.launch(r, block), y

    def __call__(
        self, x: list[np.ndarray], idx: list[np.ndarray], routing: list[np.ndarray], **keywords: Any
    ) -> list[np.ndarray]:
        """One call on all ranks; bf16 results per rank."""
        started = [self.start(r, x[r], idx[r], routing[r], **keywords) for r in range(self.ranks)]
        self.launches = [launch for launch, _ in started]
        self.sim.run(*self.launches)
        return [
            (y.get() if y.nbytes else np.zeros(y.shape, np.uint16)).view(ml_dtypes.bfloat16)
            for _, y in started
        ]


def split(array: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    return np.split(array, np.cumsum(counts)[:-1])

"""What the machine allows a layer: the rate at which it reads memory and the rate of its dots.

Both are measured with the instructions of the CPU path in use and with as many threads as the layer
has, as two more candidates of the interleaved run. No layer is faster than
max(bytes of the touched experts / read rate, multiply-adds / dot rate).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jax_megamoe import _native

READ_BYTES = 256 << 20  # several times a last-level cache
PROBE_SECONDS = 0.02  # long enough for the clock frequency of wide vectors to settle


@dataclasses.dataclass(frozen=True)
class Limit:
    seconds: float
    bound: str  # "memory" or "dots"


def _rounds(path: str) -> int:
    """Rounds of `probe_dots` that take about PROBE_SECONDS."""
    rounds = 1000
    while True:
        start = time.perf_counter()
        _native.probe_dots(path, rounds)
        if time.perf_counter() - start > PROBE_SECONDS / 2:
            return rounds
        rounds *= 2


class Limits:
    """Candidates for `timing.interleaved`, and what their times mean."""

    def __init__(self, threads: int) -> None:
        self.path = _native.cpu_path()
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)
        memory = np.ones(READ_BYTES, np.uint8)  # written, so that it is there
        self.parts = np.array_split(memory, threads)
        self.bytes_read = sum(part.size // 1024 * 1024 for part in self.parts)
        self.rounds = _rounds(self.path)
        self.multiply_adds = threads * _native.probe_dots(self.path, self.rounds)

    def candidates(self) -> dict[str, Callable[[], None]]:
        return {"read": self._read, "dots": self._dots}

    def _read(self) -> None:
        list(self.pool.map(lambda part: _native.probe_read(self.path, part), self.parts))

    def _dots(self) -> None:
        rounds = [self.rounds] * self.threads
        list(self.pool.map(lambda n: _native.probe_dots(self.path, n), rounds))

    def limit(self, times: dict[str, float], weight_bytes: float, multiply_adds: float) -> Limit:
        """The least time of a layer, from the times of `candidates` in the same run."""
        memory = weight_bytes / self.read_rate(times)
        dots = multiply_adds / self.dot_rate(times)
        return Limit(memory, "memory") if memory >= dots else Limit(dots, "dots")

    def read_rate(self, times: dict[str, float]) -> float:
        """Bytes a second."""
        return self.bytes_read / times["read"]

    def dot_rate(self, times: dict[str, float]) -> float:
        """Multiply-adds a second."""
        return self.multiply_adds / times["dots"]

"""Takes the time of several candidates in one interleaved run.

Machines like those that build this are shared: bandwidth drifts by a third within an hour, and the
hypervisor takes the CPU away in bursts. So candidates take turns, a sample with stolen time is
dropped, and only ratios of one run mean anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

MIN_ROUNDS = 5


def stolen_ticks() -> int:
    """Clock ticks that the hypervisor took from this machine; 0 where Linux does not say."""
    try:
        with open("/proc/stat") as stat:
            return int(stat.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return 0


def interleaved(candidates: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each candidate, taking turns for about `seconds` in all. A candidate
    returns when its work is done; its first call does not count.
    """
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    disturbed: dict[str, list[float]] = {name: [] for name in candidates}
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < MIN_ROUNDS:
        rounds += 1
        for name, call in candidates.items():
            before, start = stolen_ticks(), time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            (times if stolen_ticks() == before else disturbed)[name].append(elapsed)
    return {name: float(np.median(times[name] or disturbed[name])) for name in candidates}

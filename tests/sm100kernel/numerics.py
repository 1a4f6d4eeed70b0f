"""Runs a case of data.py on simulated ranks and compares: what all numerics tests here share."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Ranks, split

from data import Case

POLICIES = ("random", "eager", "latest")
BOUND = 2.0**-5  # per row; the contract's for sm100


def activation(case: Case) -> dict[str, Any]:
    return {name.removeprefix("swiglu_"): value for name, value in case.activation.items()}


def run(case: Case, counts: list[int], calls: int = 1, **keywords: Any) -> np.ndarray:
    call = {name: keywords.pop(name) for name in ("row_groups",) if name in keywords}
    ranks = Ranks(
        case.weights,
        ranks=len(counts),
        slots=case.topk_idx.shape[1],
        max_tokens=keywords.pop("max_tokens", max(*counts, 1)),
        rules="strict",
        **keywords,
    )
    arrays = [split(a, counts) for a in (case.x, case.topk_idx, case.topk_weights)]
    results = [np.concatenate(ranks(*arrays, **call, **activation(case))) for _ in range(calls)]
    for launch in ranks.launches:
        assert launch.reports == []
    for other in results[1:]:
        np.testing.assert_array_equal(bits(other), bits(results[0]))
    return results[0]


def bits(y: np.ndarray) -> np.ndarray:
    return y.view(np.uint16)


def assert_same_bits(y: np.ndarray, want: np.ndarray) -> None:
    wrong = np.argwhere(bits(y) != bits(want))
    assert len(wrong) == 0, f"{len(wrong)} of {y.size} differ, the first at {wrong[0]}"


def assert_within_bound(y: np.ndarray, want: np.ndarray) -> None:
    a, b = y.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(a).any(1), np.isnan(b).any(1))
    rows = ~np.isnan(b).any(1)
    size = np.linalg.norm(b[rows], axis=1)
    assert (np.linalg.norm(a[rows] - b[rows], axis=1) <= BOUND * size).all()


def arrays_of(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return case.x, case.topk_idx, case.topk_weights

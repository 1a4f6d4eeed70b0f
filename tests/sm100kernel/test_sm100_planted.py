"""The simulator and the oracle notice mistakes in this kernel: each planted one is caught within a
few seeds. A dozen run in `make test`, all with `-m sm100_full`.
"""

from __future__ import annotations

import functools

import changed
import numpy as np
import pytest
from harness import Ranks, split
from numerics import activation, bits
from planted import PLANTED, Mistake

from data import Case, exact_case
from sm100sim import SimulationError, UndefinedOutput

pytestmark = pytest.mark.sm100

DEFAULT = {
    "no system fence before the flags",
    "the tag is no release",
    "the schedule does not wait for the lists",
    "gathers do not wait for the first product",
    "no proxy fence before gathers",
    "unpacked bytes are expected of FP4 boxes",
    "full stages by the wrong parity",
    "an accumulator is overwritten before it is read",
    "activations are read before they are staged",
    "the ring is overwritten before it is read",
    "done before all roles have ended",
    "a rank waits for itself only",
    "tile counters are never cleared",
}


DELAYS = (
    changed.SECOND_CTA_STARTS_LATE,
    changed.LATER_BUILDERS_WRITE_LATE,
)


@functools.cache
def case(rows: int, experts: int) -> Case:
    return exact_case(
        21, tokens=rows, hidden=384, intermediate=256, experts=experts, slots=2, bias=True
    )


# Different corners: a ring and a pipeline as small as they may be; two ranks, several calls, row
# groups; the call's number at its wrap; ids enough for several warps of list builders; so few
# tokens that tasks are dealt by bytes and most CTAs have nothing to combine.
SCENARIOS = (
    dict(counts=[40], calls=1, stages=2, lag=1, ring_units=2, row_groups=1),
    dict(counts=[23, 17], calls=3, stages=2, lag=1, ring_units=2, row_groups=4),
    dict(counts=[7, 33], calls=2, stages=4, lag=3, ring_units=8, row_groups=1, wrap=True),
    dict(counts=[20, 140], experts=8, calls=1, stages=2, lag=1, ring_units=2, row_groups=1),
    dict(counts=[1], experts=1, calls=2, stages=8, lag=3, ring_units=8, row_groups=1),
)


def attempt(text: str | None, scenario: dict, seed: int, policy: str) -> None:
    """Raises if anything is wrong. Routing changes from call to call."""
    counts = scenario["counts"]
    c = case(sum(counts), scenario.get("experts", 16))
    ranks = Ranks(
        c.weights, ranks=len(counts), slots=2, max_tokens=max(counts), sms=4, program=text,
        seed=seed, policy=policy, rules="strict", races=True, timeout=20_000_000,
        first_epoch=0xFFFFFFFE if scenario.get("wrap") else 0,
        **{k: scenario[k] for k in ("stages", "lag", "ring_units")},
    )  # fmt: skip
    want = c.oracle()
    for call in range(scenario["calls"]):
        order = np.random.default_rng(100 * seed + call).permutation(sum(counts))
        arrays = [split(a[order], counts) for a in (c.x, c.topk_idx, c.topk_weights)]
        y = np.concatenate(ranks(*arrays, row_groups=scenario["row_groups"], **activation(c)))
        assert np.array_equal(bits(y), bits(want[order]))


def caught(mistake: Mistake) -> str | None:
    """How, or None."""
    text = mistake.program()
    for seed in range(6):
        for scenario in SCENARIOS:
            for policy in ("random", "latest"):
                try:
                    attempt(text, scenario, seed, policy)
                except (SimulationError, UndefinedOutput, AssertionError) as error:
                    return getattr(error, "kind", type(error).__name__)
    return None


def test_without_a_mistake_nothing_is_reported() -> None:
    for seed, scenario in enumerate(SCENARIOS):
        for policy in ("random", "latest"):
            attempt(None, scenario, seed, policy)
        attempt(changed.program(*DELAYS), scenario, seed, "random")


def test_the_dozen_are_among_the_planted() -> None:
    names = [mistake.name for mistake in PLANTED]
    assert len(set(names)) == len(names)
    assert set(names) >= DEFAULT and len(DEFAULT) >= 12


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(m, marks=() if m.name in DEFAULT else pytest.mark.sm100_full, id=m.name)
        for m in PLANTED
    ],
)
def test_planted_mistake_is_caught(mistake: Mistake) -> None:
    assert caught(mistake) is not None

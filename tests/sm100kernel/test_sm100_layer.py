"""The kernel's numbers in the simulator, under the strict rules: exact data bit for bit against the
oracle, random data within the contract's bound; shapes, ranks, tiles, routings, activations.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import shares
from harness import Ranks, split
from numerics import (
    POLICIES,
    activation,
    arrays_of,
    assert_same_bits,
    assert_within_bound,
    bits,
    run,
)

from data import Case, exact_case, random_case
from oracle import Oracle

pytestmark = pytest.mark.sm100

SMALL = dict(tokens=5, hidden=128, intermediate=128, experts=2, slots=2)


@pytest.mark.parametrize("policy", POLICIES)
def test_smallest_layer_is_exact_under_every_policy(policy: str) -> None:
    case = exact_case(1, **SMALL)
    for seed in range(3):
        assert_same_bits(run(case, [5], policy=policy, seed=seed), case.oracle())


# Every value of every list, and every pair of (tile, ranks).
SHAPES = {
    "one token": dict(tokens=1, hidden=256, intermediate=128, experts=1, slots=1),
    "bias": dict(tokens=17, hidden=256, intermediate=256, experts=4, slots=3, bias=True),
    "limit": dict(tokens=16, hidden=128, intermediate=256, experts=8, slots=8, limit=1000.3),
    "gpt": dict(
        tokens=33, hidden=288, intermediate=96, experts=4, slots=2, alpha=1.702, beta=1.0,
        limit=64.3, bias=True,
    ),
    "least": dict(tokens=3, hidden=32, intermediate=32, experts=32, slots=4),
    "zero limit": dict(tokens=16, hidden=160, intermediate=224, experts=4, slots=3, limit=0.0),
    "32 slots": dict(tokens=9, hidden=128, intermediate=128, experts=4, slots=32),
    "order": dict(tokens=12, hidden=128, intermediate=64, experts=4, slots=3, routing="order"),
    "tiny": dict(tokens=12, hidden=128, intermediate=64, experts=4, slots=3, kind="tiny"),
}  # fmt: skip
CONFIGURATIONS = list(itertools.product((128, 192), (1, 2, 4)))


@pytest.mark.parametrize("number, name", list(enumerate(SHAPES)))
def test_exact_data_gives_the_contracts_bits(number: int, name: str) -> None:
    case = exact_case(number, **SHAPES[name])
    fitting = [c for c in CONFIGURATIONS if SHAPES[name]["experts"] % c[1] == 0]
    for turn in range(2):
        tile, ranks = fitting[(number + 3 * turn) % len(fitting)]
        y = run(
            case, shares(len(case.x), ranks), tile=tile, stages=(2, 3, 6)[number % 3],
            policy=POLICIES[(number + turn) % 3], seed=number,
        )  # fmt: skip
        assert_same_bits(y, case.oracle())


@pytest.mark.parametrize("tile, ranks", CONFIGURATIONS)
def test_every_configuration_gives_the_same_bits_on_random_data(tile: int, ranks: int) -> None:
    case = random_case(
        7, tokens=40, hidden=256, intermediate=192, experts=4, slots=3, bias=True, alpha=1.702,
        beta=1.0, limit=7.0,
    )  # fmt: skip
    once = run(case, [40])
    assert_within_bound(once, case.oracle())
    y = run(case, shares(40, ranks), tile=tile, sms=6, seed=ranks, calls=2)
    assert_same_bits(y, once)


@pytest.mark.parametrize("tile", [128, 192])
def test_many_rows_of_one_expert_make_equal_tiles(tile: int) -> None:
    case = random_case(3, tokens=300, hidden=128, intermediate=128, experts=2, slots=1)
    case = dataclasses.replace(case, topk_idx=np.where(case.topk_idx >= 0, 1, -1).astype(np.int32))
    want = case.oracle()
    assert_within_bound(run(case, [300], tile=tile, stages=6), want)
    # The ring is as small as it may be: every slot is used again.
    y = run(case, [129, 171], tile=tile, lag=1, ring_units=2, policy="latest")
    assert_within_bound(y, want)


@pytest.mark.parametrize("row_groups", [2, 3, 8])
def test_rows_in_groups_arrive_under_their_own_flags(row_groups: int) -> None:
    case = exact_case(11, tokens=21, hidden=160, intermediate=96, experts=16, slots=3)
    y = run(case, [8, 13], row_groups=row_groups, policy="latest", calls=2)
    assert_same_bits(y, case.oracle())


def test_ranks_may_choose_different_row_groups() -> None:
    case = exact_case(12, tokens=12, hidden=128, intermediate=64, experts=8, slots=3)
    ranks = Ranks(case.weights, ranks=2, slots=3, max_tokens=6, rules="strict")
    arrays = [split(a, [6, 6]) for a in (case.x, case.topk_idx, case.topk_weights)]
    started = [
        ranks.start(r, *(a[r] for a in arrays), row_groups=(4, 1)[r], **activation(case))
        for r in range(2)
    ]
    ranks.sim.run(*(launch for launch, _ in started))
    y = np.concatenate([y.get() for _, y in started])
    assert_same_bits(y.view(ml_dtypes.bfloat16), case.oracle())


def routed(case: Case, **changes: Any) -> Case:
    return dataclasses.replace(case, **changes)


def test_skipped_slots_cost_nothing_whatever_they_hold() -> None:
    case = random_case(5, tokens=12, hidden=128, intermediate=128, experts=2, slots=3)
    idx, weights, x = case.topk_idx.copy(), case.topk_weights.copy(), case.x.copy()
    idx[:4] = [-1, 2**31 - 1, -(2**31)]
    idx[4:8, 1] = [-7, 2, 65535, 65536 + 1]
    weights[idx < 0] = np.nan
    weights[idx > 1] = np.inf
    x[0] = np.nan
    case = routed(case, topk_idx=idx, topk_weights=weights, x=x)
    for counts in ([12], [5, 7]):
        y = run(case, counts)
        assert (bits(y[:4]) == 0).all(), "+0, whatever the token holds"
        assert_within_bound(y, case.oracle())


def test_nan_and_infinity_make_their_rows_nan_and_no_other() -> None:
    case = random_case(6, tokens=16, hidden=256, intermediate=160, experts=4, slots=2, skips=False)
    x, weights = case.x.copy(), case.topk_weights.copy()
    x[1, 77], x[3, 255], x[5, 0] = np.nan, np.inf, -np.inf
    weights[5] = 0.0
    weights[7, 1] = np.nan
    weights[9, 0] = 3e38
    case = routed(case, x=x, topk_weights=weights)
    y, want = run(case, [16], policy="latest"), case.oracle()
    assert np.isnan(y[[1, 3, 5, 7]].astype(np.float32)).all()
    assert np.array_equal(
        np.isnan(y.astype(np.float32)).any(1), np.isnan(want.astype(np.float32)).any(1)
    )
    assert_within_bound(y, want)


def test_a_nan_scale_reaches_only_tokens_of_its_expert() -> None:
    case = random_case(8, tokens=10, hidden=128, intermediate=128, experts=3, slots=1, skips=False)
    case.weights["gate_up_proj_scale_inv"][1, 5, 2] = 255
    case.weights["down_proj_scale_inv"][2, 9, 1] = 255
    y, want = run(case, [10]), case.oracle()
    assert_within_bound(y, want)
    of = case.topk_idx[:, 0]
    nan = np.isnan(y.astype(np.float32))
    assert nan[of == 1].all() and not nan[of == 0].any()
    assert nan[of == 2][:, 9].all() and nan[of == 2].sum() == (of == 2).sum()


def test_no_tokens_anywhere_and_experts_without_tokens() -> None:
    case = exact_case(2, tokens=6, hidden=128, intermediate=64, experts=8, slots=2)
    empty = routed(
        case, x=case.x[:0], topk_idx=case.topk_idx[:0], topk_weights=case.topk_weights[:0]
    )
    for counts in ([0], [0, 0]):
        assert run(empty, counts, calls=2).shape == (0, 128)
    one = routed(case, topk_idx=np.full_like(case.topk_idx, 5))
    for counts in ([6], [0, 6], [6, 0, 0, 0]):
        assert_within_bound(run(one, counts, calls=2), one.oracle())


def test_calls_with_changing_routing_and_tokens_on_one_workspace() -> None:
    rng = np.random.default_rng(4)
    base = exact_case(9, tokens=24, hidden=128, intermediate=64, experts=4, slots=2, bias=True)
    # Starts just below the wrap of the call's number.
    ranks = Ranks(
        base.weights, ranks=2, slots=2, max_tokens=24, rules="strict", first_epoch=0xFFFFFFFD
    )
    for _ in range(5):
        picked = rng.permutation(24)[: rng.integers(0, 25)]
        case = routed(
            base, x=base.x[picked], topk_idx=base.topk_idx[picked],
            topk_weights=base.topk_weights[picked],
        )  # fmt: skip
        first = int(rng.integers(0, len(picked) + 1))
        arrays = [
            split(a, [first, len(picked) - first])
            for a in (case.x, case.topk_idx, case.topk_weights)
        ]
        y = np.concatenate(ranks(*arrays, **activation(case)))
        assert_same_bits(y, Oracle(case.weights, **case.activation)(*arrays_of(case)))


@pytest.mark.parametrize("ranks, tile", [(1, 128), (2, 192)])
def test_no_data_race(ranks: int, tile: int) -> None:
    case = random_case(13, tokens=20, hidden=256, intermediate=256, experts=4, slots=2, bias=True)
    for seed, policy in enumerate(POLICIES):
        y = run(
            case, shares(20, ranks), tile=tile, races=True, policy=policy, seed=seed, calls=2,
            lag=1, ring_units=(8, 2, 4)[seed], row_groups=(1, 2, 4)[seed],
        )  # fmt: skip
        assert_within_bound(y, case.oracle())


def test_a_larger_layer() -> None:
    case = random_case(
        14, tokens=64, hidden=1152, intermediate=512, experts=8, slots=4, limit=10.0, skips=False
    )
    y = run(case, [64], sms=8, stages=8)
    assert_within_bound(y, case.oracle())

"""What must not change a token's bits: its place in the batch, the other tokens, the tile
configuration, the order of the lists, the number of ranks; and a parameter block that was captured
once serves every later call.
"""

from __future__ import annotations

import dataclasses

import changed
import ml_dtypes
import numpy as np
import pytest
from cases import RANKS, TILES, shares
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

pytestmark = pytest.mark.sm100
BATCH = 210  # two tiles of either configuration, of 112 rows each


def with_probe(case: Case, tokens: int, places: slice) -> Case:
    """A batch of random tokens, NaN and infinity among them, all routed like the probe, which
    stands at `places`.
    """
    rng = np.random.default_rng(tokens)
    x = np.resize(case.x[1:], (tokens, case.x.shape[1])).copy()
    x[rng.integers(0, tokens, 9), rng.integers(0, x.shape[1], 9)] = np.nan
    x[rng.integers(0, tokens, 9), rng.integers(0, x.shape[1], 9)] = np.inf
    weights = rng.random((tokens, 2)).astype(np.float32)
    x[places], weights[places] = case.x[0], case.topk_weights[0]
    return dataclasses.replace(
        case, x=x, topk_idx=np.tile(case.topk_idx[:1], (tokens, 1)), topk_weights=weights
    )


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("tile", TILES)
def test_a_token_has_the_same_bits_at_every_place_of_every_batch(tile: int, ranks: int) -> None:
    case = random_case(
        3, tokens=31, hidden=256, intermediate=160, experts=4, slots=2, bias=True, skips=False
    )
    alone = dataclasses.replace(
        case, x=case.x[:1], topk_idx=case.topk_idx[:1], topk_weights=case.topk_weights[:1]
    )
    want = run(alone, [1])
    assert_within_bound(want, alone.oracle())
    for tokens, places in (
        (BATCH, slice(0, None, 2)),
        (BATCH, slice(1, None, 2)),
        (17, slice(16, 17)),
        (31, slice(0, 31)),
    ):
        y = run(with_probe(case, tokens, places), shares(tokens, ranks), tile=tile, stages=6)
        found = bits(y[places])
        assert (found == bits(want)).all(), f"{tokens} tokens"


def test_the_order_of_the_lists_does_not_matter() -> None:
    backwards = changed.program(
        changed.Change("build_lists.cuh", "list[at++] =", "list[n - 1 - at++] =")
    )
    case = random_case(5, tokens=150, hidden=128, intermediate=128, experts=4, slots=3, bias=True)
    for tile, policy in zip((128, 192, 128), POLICIES, strict=True):
        y = run(case, [150], tile=tile, policy=policy)
        assert_same_bits(run(case, [60, 90], tile=tile, policy=policy, program=backwards), y)


def test_a_permuted_batch_gives_permuted_bits() -> None:
    case = random_case(6, tokens=140, hidden=128, intermediate=160, experts=8, slots=3)
    want = run(case, [140])
    for seed, policy in enumerate(POLICIES):
        order = np.random.default_rng(seed).permutation(140)
        permuted = dataclasses.replace(
            case, x=case.x[order], topk_idx=case.topk_idx[order],
            topk_weights=case.topk_weights[order],
        )  # fmt: skip
        y = run(permuted, [40, 100], tile=TILES[seed % 2], policy=policy, seed=seed)
        assert_same_bits(y, want[order])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_captured_parameter_block_serves_three_calls(ranks: int) -> None:
    """As a replayed graph: new tokens and routing in the same buffers, the block untouched."""
    base = exact_case(9, tokens=30, hidden=128, intermediate=96, experts=4, slots=2, bias=True)
    counts = shares(10, ranks)
    on = Ranks(base.weights, ranks=ranks, slots=2, max_tokens=max(counts), rules="strict")
    captured = None
    for call in range(3):
        part = slice(10 * call, 10 * call + 10)
        inputs = [split(a[part], counts) for a in arrays_of(base)]
        if captured is None:
            captured = [
                on.prepare(r, *(a[r] for a in inputs), **activation(base)) for r in range(ranks)
            ]
        for r, (_, buffers, _) in enumerate(captured):
            for buffer, values in zip(buffers, inputs, strict=True):
                buffer.set(values[r].view(buffer.dtype))
        on.sim.run(*[on.launch(r, block) for r, (block, _, _) in enumerate(captured)])
        y = np.concatenate([y.get() for _, _, y in captured]).view(ml_dtypes.bfloat16)
        assert_same_bits(y, base.oracle()[part])

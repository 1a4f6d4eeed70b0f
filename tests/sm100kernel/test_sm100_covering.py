"""Every value of every list of cases.py, and every pair (tile configuration, number of ranks):
exact data give the contract's bits under three schedules each, random data stay within the
contract's bound. The product of the lists runs with `-m sm100_full`, parts of it with -k, as in
`-k "R2- and T17-"`.
"""

from __future__ import annotations

import pytest
from cases import (
    ACTIVATIONS,
    COVERING,
    EXPERTS,
    LARGER,
    RANKS,
    ROUTINGS,
    SLOTS,
    TILES,
    TOKENS,
    WIDTHS,
    Layer,
    product,
)
from numerics import POLICIES, assert_same_bits, assert_within_bound, run

pytestmark = pytest.mark.sm100
LAYERS = [*((layer.name(), layer) for layer in COVERING), *LARGER.items()]


def compute(layer: Layer, seed: int, *, exact: bool, policy: str) -> None:
    case = layer.case(seed, exact=exact)
    y = run(
        case, layer.counts(), tile=layer.tile, stages=layer.stages, row_groups=layer.row_groups,
        policy=policy, seed=seed,
    )  # fmt: skip
    (assert_same_bits if exact else assert_within_bound)(y, case.oracle())


@pytest.mark.parametrize("layer", [pytest.param(layer, id=name) for name, layer in LAYERS])
def test_exact_data_give_the_contracts_bits_under_three_schedules(layer: Layer) -> None:
    case = layer.case(1, exact=True)
    want = case.oracle()
    for seed, policy in enumerate(POLICIES):
        y = run(
            case, layer.counts(), tile=layer.tile, stages=layer.stages,
            row_groups=layer.row_groups, policy=policy, seed=seed,
        )  # fmt: skip
        assert_same_bits(y, want)


@pytest.mark.parametrize(
    "number, layer", [pytest.param(i, layer, id=name) for i, (name, layer) in enumerate(LAYERS)]
)
def test_random_data_stay_within_the_contracts_bound(number: int, layer: Layer) -> None:
    compute(layer, number, exact=False, policy=POLICIES[number % 3])


@pytest.mark.sm100_full
@pytest.mark.parametrize(
    "number, layer", [pytest.param(i, x, id=x.name()) for i, x in enumerate(product())]
)
def test_the_product_of_all_lists(number: int, layer: Layer) -> None:
    for exact in (True, False):
        compute(layer, number, exact=exact, policy=POLICIES[number % 3])


def test_the_covering_set_meets_every_value_and_every_pair() -> None:
    layers = [layer for _, layer in LAYERS]
    assert {(x.tile, x.ranks) for x in layers} == {(t, r) for t in TILES for r in RANKS}
    for values, of in (
        (WIDTHS, lambda x: x.hidden), (WIDTHS, lambda x: x.intermediate),
        (EXPERTS, lambda x: x.experts), (SLOTS, lambda x: x.slots), (TOKENS, lambda x: x.tokens),
        (ROUTINGS, lambda x: x.routing), (ACTIVATIONS, lambda x: x.activation),
        ((False, True), lambda x: x.bias),
    ):  # fmt: skip
        assert all(v in [of(x) for x in layers] for v in values), values
    assert all(max(x.hidden, x.intermediate) <= 256 for x in COVERING) and len(LARGER) == 4
    assert all(x.experts % x.ranks == 0 for x in layers)

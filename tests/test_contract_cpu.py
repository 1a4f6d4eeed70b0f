"""The contract's tests on the CPU custom call: plain weights (prepared inside the trace) and
prepared ones."""

from __future__ import annotations

from typing import Any

import pytest

import jax_megamoe
from bound import BoundContract
from contract import EXACT, assert_same_bits
from data import exact_case, random_case
from oracle import Array


class TestCpu(BoundContract):
    implementation = "cpu"
    # The kernel is not recompiled for a shape, only the program around it.
    batches = (*range(2, 34), 47, 48, 63, 64, 65, 70)


class PreparedCpu(BoundContract):
    implementation = "cpu"

    def weights(self, weights: dict[str, Array]) -> Any:
        return jax_megamoe.prepare_weights(jax_megamoe.ExpertWeights(**weights), "cpu")


@pytest.mark.parametrize("name", EXACT)
def test_prepared_weights_give_the_oracles_bits(name: str) -> None:
    case = exact_case(1, **EXACT[name])
    assert_same_bits(PreparedCpu().result(case), case.oracle(), name)


@pytest.mark.parametrize("bias", [False, True])
def test_prepared_and_plain_weights_give_the_same_bits(bias: bool) -> None:
    case = random_case(51, hidden=512, intermediate=256, bias=bias, limit=10.0)
    assert_same_bits(PreparedCpu().result(case), TestCpu().result(case))

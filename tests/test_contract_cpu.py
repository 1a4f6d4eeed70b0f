"""The contract's tests on the CPU custom call: plain weights (prepared inside the trace) and
prepared ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jax_megamoe
from bound import BoundContract
from contract import EXACT, assert_same_bits
from data import exact_case, random_case
from jax_megamoe import _native
from oracle import Array


class TestCpu(BoundContract):
    implementation = "cpu"
    # The kernel is not recompiled for a shape, only the program around it.
    batches = (*range(2, 18), 31, 32, 33, 64, 65, 70)


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


def check_specials() -> None:
    """The promises about NaN, infinities and extreme scales, on the path that this process uses."""
    contract = TestCpu()
    contract.test_every_scale_byte_multiplies_exactly()
    contract.test_weights_below_float32s_normal_range_keep_products_within_it()
    contract.test_overflow_in_step_4_makes_the_row_nan()
    contract.test_overflowing_gate_is_brought_back_by_a_limit(10.0)
    contract.test_special_value_in_a_token_makes_its_row_nan_and_no_other("Inf", 37, 10.0)
    contract.test_nan_passes_the_clamps("gate", 7.0)
    contract.test_nan_passes_the_clamps("up", 7.0)
    contract.test_scale_byte_255_in_gate_up_reaches_only_tokens_of_its_expert(3, "zero")
    contract.test_scale_byte_255_in_down_reaches_one_column_of_its_tokens("zero")
    contract.test_lone_negative_zero_comes_out_positive()


@pytest.mark.parametrize("path", _native.cpu_paths())
def test_every_instruction_set_keeps_the_promises_about_specials(
    path: str, run_python: Callable[..., str]
) -> None:
    code = "import test_contract_cpu as t; t.check_specials(); print('path', t._native.cpu_path())"
    assert f"path {path}" in run_python(code, env={"JAX_MEGAMOE_CPU_PATH": path})

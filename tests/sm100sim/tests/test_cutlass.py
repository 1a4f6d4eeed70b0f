# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""CUTLASS's own SM100 GEMMs, as published, give NumPy's result: kernels that others know to be right on hardware.

Small integers and power-of-two scales: every partial sum is exact in float32, so the comparison is exact too.
"""

from __future__ import annotations

import cutlass_gemm
import numpy as np
import pytest

# What CUTLASS relies on beyond the text (README, "Rule sets").
KNOWN_RULES = {
    "mma-cp-order",
    "mbarrier-cta-scope",
    "issuer-proxy-fence",
    "tcgen05-thread-fence",
    "exit-with-store",
}


SEEDS = pytest.mark.parametrize("seed", [0, 1])
POLICIES = pytest.mark.parametrize("policy", ["random", "latest"])
GROUPS = [(64, 512, 512)] * 8


def check(launch) -> None:
    rules = {report["rule"] for report in launch.reports if report["warning"]}
    assert not launch.failed and rules <= KNOWN_RULES


@SEEDS
@POLICIES
@pytest.mark.parametrize(
    ("variant", "shape"),
    [(0, (256, 384, 320)), (4, (512, 256, 512))],
    ids=["bf16 1-SM", "mxf8 x mxf4 2-SM"],
)
def test_gemm(variant: int, shape: tuple[int, int, int], policy: str, seed: int) -> None:
    got, want, launch = cutlass_gemm.run(variant, *shape, policy=policy, seed=seed, races=True)
    np.testing.assert_array_equal(got, want)
    check(launch)


@SEEDS
@POLICIES
@pytest.mark.parametrize("variant", [cutlass_gemm.GROUPED], ids=["mxf8 x mxf4 2-SM grouped"])
def test_grouped_gemm(variant: int, policy: str, seed: int) -> None:
    grouped(GROUPS, policy, seed)


def grouped(sizes: list[tuple[int, int, int]], policy: str, seed: int) -> None:
    got, want, launch = cutlass_gemm.run_grouped(sizes, policy=policy, seed=seed, races=True)
    for g, (mine, expected) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(mine, expected, err_msg=f"group {g}")
    check(launch)


# Compiling these takes minutes each: pytest -m wide tests/sm100sim/tests/test_cutlass.py
@pytest.mark.wide
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("policy", ["random", "eager", "latest"])
@pytest.mark.parametrize("variant", range(6), ids=cutlass_gemm.NAMES[:6])
def test_gemm_wide(variant: int, policy: str, seed: int) -> None:
    test_gemm(variant, (512, 256, 512), policy, seed)


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("policy", ["random", "eager", "latest"])
@pytest.mark.parametrize("variant", [cutlass_gemm.GROUPED], ids=["mxf8 x mxf4 2-SM grouped"])
def test_uneven_groups_wide(variant: int, policy: str, seed: int) -> None:
    sizes = [(64, 256, 256), (1, 256, 256), (300, 128, 384), (128, 384, 128), (7, 256, 512)]
    grouped(sizes, policy, seed)

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


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", ["random", "latest"])
@pytest.mark.parametrize(
    ("variant", "shape"),
    [(0, (256, 384, 320)), (4, (512, 256, 512))],
    ids=["bf16 1-SM", "mxf8 x mxf4 2-SM"],
)
def test_gemm(variant: int, shape: tuple[int, int, int], policy: str, seed: int) -> None:
    got, want, launch = cutlass_gemm.run(variant, *shape, policy=policy, seed=seed, races=True)
    np.testing.assert_array_equal(got, want.astype(np.float32))
    rules = {report["rule"] for report in launch.reports if report["warning"]}
    assert not launch.failed and rules <= KNOWN_RULES


# Compiling these takes minutes each: pytest -m wide tests/sm100sim/tests/test_cutlass.py
@pytest.mark.wide
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("policy", ["random", "eager", "latest"])
@pytest.mark.parametrize("variant", range(6), ids=cutlass_gemm.NAMES)
def test_gemm_wide(variant: int, policy: str, seed: int) -> None:
    test_gemm(variant, (512, 256, 512), policy, seed)

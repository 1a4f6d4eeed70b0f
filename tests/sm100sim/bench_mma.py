"""Speed of the MMA engine: GMAC/s of processor time for the kinds that kernels use most.

PYTHONPATH=build/sm100sim:tests/sm100sim/tests python tests/sm100sim/bench_mma.py
"""

from __future__ import annotations

import _sm100sim_parts as parts
import ml_dtypes
import numpy as np
from mma_harness import Case, descriptor

TIMES = 100
HALF = 0x8000


def operand(rng: np.random.Generator, name: str) -> np.ndarray:
    """Half a shared memory of random elements; FP8 and BF16 as a quantiser leaves them."""
    if name == "e2m1":
        return rng.integers(0, 256, HALF, dtype=np.uint8)
    if name == "e4m3":
        return (60 * rng.standard_normal(HALF)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return rng.standard_normal(HALF // 2).astype(ml_dtypes.bfloat16).view(np.uint8)


def main() -> None:
    rng = np.random.default_rng(0)
    cases = [
        Case("mxf8f6f4", "e2m1", "e4m3", 256, 256, cta_group=2),
        Case("mxf8f6f4", "e4m3", "e4m3", 256, 256, cta_group=2),
        Case("f8f6f4", "e4m3", "e4m3", 256, 256, cta_group=2),
        Case("f16", "bf16", "bf16", 256, 256, cta_group=2),
        Case("mxf4", "e2m1", "e2m1", 256, 256, cta_group=2),
    ]
    for case in cases:
        both = [operand(rng, case.fa), operand(rng, case.fb)]
        shared = np.stack([np.concatenate(both)] * 2)
        tmem = np.zeros((2, 128, 512), np.uint32)
        tmem[:, :, 400:440] = 0x7F7F7F7F  # scales of 1
        request = dict(
            a=descriptor(0, 2), b=descriptor(HALF, 2), idesc=case.idesc, sfa=400, sfb=408
        )
        fetch, accumulate, macs = parts.mma_seconds(
            case.kind, case.cta_group, case.vector, request, shared, tmem, TIMES
        )
        speed = macs / (fetch + accumulate) / 1e9
        times = f"fetch {fetch / TIMES * 1e6:.0f} us, accumulate {accumulate / TIMES * 1e6:.0f} us"
        print(f"{case.kind:9} {case.fa:>4} x {case.fb:4} {speed:5.2f} GMAC/s  ({times})")


if __name__ == "__main__":
    main()

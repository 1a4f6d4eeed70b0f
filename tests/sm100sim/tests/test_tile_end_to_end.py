"""A tile of the MoE product through the pure libraries alone: tensor maps, padded FP4 boxes,
gathered FP8 rows, scale tiles by tcgen05.cp, four MMAs along a 128-byte line on a pair of CTAs, and
the accumulator back through tcgen05.ld, against a float64 product of the dequantised matrices.
"""

from __future__ import annotations

import _sm100sim_parts as parts
import ml_dtypes
import numpy as np
import pytest
from mma_harness import Case, descriptor
from test_tma_geometry import BASE, COPY, GATHER4, LOAD, SW128, TILE, U4_16, U8, UNDEFINED, ok_map

M, K, ROWS = 256, 256, 40
A, B, SCALE_A, SCALE_B, SHARED = 0, 0x4000, 0x8000, 0x8400, 0x9000
SFA, SFB = 256, 272


def load(plan, memory, shared, poison):
    assert plan["errors"] == []
    for at, source, count, kind in plan["runs"]:
        if kind == COPY:
            shared[at : at + count] = memory[source - BASE : source - BASE + count]
            poison[at : at + count] = 0
        elif kind == UNDEFINED:
            poison[at : at + count] = 1
        else:
            shared[at : at + count] = 0
            poison[at : at + count] = 0
    return plan["tx"]


def scale_tile(scales: np.ndarray) -> np.ndarray:
    """128 rows x 4 blocks as tcgen05.cp wants them: row m is word (m % 32) * 4 + m // 32."""
    words = np.zeros((128, 4), np.uint8)
    for m in range(len(scales)):
        words[m % 32 * 4 + m // 32] = scales[m]
    return words.reshape(-1)


@pytest.mark.parametrize("n", [16, 48, 64])
def test_a_pair_of_ctas_computes_the_tile(n):
    rng = np.random.default_rng(n)
    weights = rng.integers(0, 16, (M, K), dtype=np.uint8)
    tokens = (rng.standard_normal((ROWS, K)) * 64).astype(ml_dtypes.float8_e4m3fn)
    scale_w, scale_t = rng.integers(120, 130, (M, K // 32)), rng.integers(122, 132, (ROWS, K // 32))
    chosen = rng.integers(0, ROWS, n)
    packed = (weights[:, 0::2] | weights[:, 1::2] << 4).reshape(-1)
    weight_map = ok_map(U4_16, [K, M], [128, 128], swizzle=SW128)
    token_map = ok_map(U8, [K, ROWS], [128, 1], swizzle=SW128)

    shared, poison = np.full((2, SHARED), 0xEE, np.uint8), np.ones((2, SHARED), np.uint8)
    tmem, tmem_poison = np.zeros((2, 128, 512), np.uint32), np.full((2, 128, 512), 15, np.uint8)
    touched = np.zeros_like(shared)
    case = Case("mxf8f6f4", "e2m1", "e4m3", M, n, cta_group=2, vector="block32")
    for block in range(K // 128):
        for cta in range(2):
            memory = tokens.view(np.uint8).reshape(-1)
            tx = load(
                parts.plan(weight_map, LOAD, TILE, [128 * block, 128 * cta], A),
                packed,
                shared[cta],
                poison[cta],
            )
            assert tx == 128 * 64, "packed bytes count"
            half = chosen[cta * n // 2 :][: n // 2]
            for group in range(0, n // 2, 4):
                rows = [int(r) for r in half[group : group + 4]]
                plan = parts.plan(token_map, LOAD, GATHER4, [128 * block, *rows], B + 128 * group)
                assert load(plan, memory, shared[cta], poison[cta]) == 512
            blocks = slice(4 * block, 4 * block + 4)
            shared[cta, SCALE_A:][:512] = scale_tile(scale_w[128 * cta :][:128, blocks])
            shared[cta, SCALE_B:][:512] = scale_tile(scale_t[chosen][:, blocks])
            poison[cta, SCALE_A:][:512] = 0
            poison[cta, SCALE_B:][:512] = 0
            for source, column in ((SCALE_A, SFA), (SCALE_B, SFB)):
                one = slice(cta, cta + 1)
                errors = parts.tmem_copy(
                    "32x128b.warpx4",
                    "",
                    column,
                    descriptor(source, 0, stride=128),
                    shared[one],
                    poison[one],
                    tmem[one],
                    tmem_poison[one],
                    touched[one],
                )
                assert errors == []
        for step in range(4):
            case.ids = (step, step)
            request = dict(
                d=0,
                a=descriptor(A + 32 * step, 2),
                b=descriptor(B + 32 * step, 2),
                idesc=case.idesc,
                sfa=SFA,
                sfb=SFB,
                enable=int(block > 0 or step > 0),
                exact=0,
            )
            assert (
                parts.mma(
                    case.kind,
                    2,
                    case.vector,
                    False,
                    request,
                    shared,
                    poison,
                    tmem,
                    tmem_poison,
                    touched,
                )
                == []
            )
    assert not (touched & poison).any(), "undefined padding was read"
    assert not tmem_poison[:, :, :n].any()

    got = np.zeros((M, n))
    for cta in range(2):
        for warp in range(4):
            wrong, values, _ = parts.tmem_load(
                "32x32b", 16, False, 0, 0, warp, tmem[cta : cta + 1], tmem_poison[cta : cta + 1]
            )
            assert wrong == ""
            rows = 128 * cta + 32 * warp
            got[rows : rows + 32, :16] = values.view(np.float32).T
            got[rows : rows + 32, 16:] = tmem[cta, 32 * warp : 32 * warp + 32, 16:n].view(
                np.float32
            )
    w = weights.view(ml_dtypes.float4_e2m1fn).astype(np.float64) * np.exp2(
        np.repeat(scale_w - 127.0, 32, axis=1)
    )
    t = tokens.astype(np.float64) * np.exp2(np.repeat(scale_t - 127.0, 32, axis=1))
    want, size = w @ t[chosen].T, np.abs(w) @ np.abs(t[chosen]).T
    # Eight instructions, each loses at most 33 terms x 2^-25 of its largest and one rounding to
    # f32.
    assert (np.abs(got - want) <= 8 * (33 * 2.0**-25 + 2.0**-23) * size).all()
    assert np.abs(got).max() > 0

"""What tcgen05.mma refuses: every message names the field, what was found and what is accepted."""

from __future__ import annotations

import _sm100sim_parts as parts
import numpy as np
import pytest
from mma_harness import A_BASE, B_BASE, Case, Machine, descriptor

GOOD = Case("mxf8f6f4", "e2m1", "e4m3", 256, 64, cta_group=2, vector="block32")


@pytest.mark.parametrize(
    "change,word",
    [
        (dict(a=0), "a-desc"),
        (dict(b=descriptor(B_BASE, 3)), "swizzle mode"),
        (dict(b=descriptor(B_BASE, 2) | 1 << 55), "bits 53"),
        (dict(a=descriptor(A_BASE, 2) | 1 << 14), "bits 14"),
        (dict(idesc=GOOD.idesc | 4), "sparse"),
        (dict(idesc=GOOD.idesc | 1 << 31), "K = 96"),
        (dict(idesc=GOOD.idesc | 2 << 7), "element types"),
        (dict(idesc=GOOD.idesc & ~(1 << 23)), "scale type"),
        (dict(idesc=GOOD.idesc + (1 << 17)), "N = 72"),
        (dict(idesc=GOOD.idesc & ~(31 << 24) | 4 << 24), "M = 64"),
        (dict(idesc=GOOD.idesc | 1 << 15), "transposed A"),
        (dict(d=480), "d-tmem"),
        (dict(d=16 << 16), "lane 16"),
        (dict(sfa=510), "scale-A"),
        (dict(sfb=511), "scale-B"),
        (dict(disable=[1, 0, 0, 0]), "disable-output-lane"),
        (dict(scale_input_d=1), "scale-input-d"),
    ],
)
def test_broken_operands_are_refused_in_words(change, word):
    machine = Machine(GOOD)
    machine.request |= change
    before = machine.tmem.copy()
    errors = machine.run()
    assert any(word in error for error in errors), errors
    np.testing.assert_array_equal(machine.tmem, before)


@pytest.mark.parametrize(
    "bits,kind,group,vector,ws,specific,word",
    [
        (
            Case("f16", "f16", "bf16", 128, 16, result="f16").idesc,
            "f16",
            1,
            "",
            False,
            True,
            "result type",
        ),
        (Case("f16", "f16", "f16", 128, 264 % 256 or 8).idesc, "f16", 2, "", False, True, "N = 8"),
        (Case("i8", "s8", "s8", 128, 40, result="s32").idesc, "i8", 1, "", False, True, "N = 40"),
        (Case("i8", "s8", "s8", 128, 32, result="s32").idesc, "i8", 1, "", False, False, "sm_100a"),
        (
            Case("mxf8f6f4", "e4m3", "e4m3", 128, 32).idesc,
            "mxf8f6f4",
            1,
            "1X",
            False,
            False,
            "sm_100a",
        ),
        (
            Case("mxf8f6f4", "e4m3", "e4m3", 128, 32).idesc,
            "mxf8f6f4",
            1,
            "2X",
            False,
            True,
            "scale vector",
        ),
        (
            Case("mxf4nvf4", "e2m1", "e2m1", 128, 32).idesc,
            "mxf4nvf4",
            1,
            "",
            False,
            True,
            "needs .scale_vec",
        ),
        (
            Case("mxf4", "e2m1", "e2m1", 128, 32, ids=(1, 0)).idesc,
            "mxf4",
            1,
            "",
            False,
            True,
            "id 1",
        ),
        (Case("f16", "f16", "f16", 64, 32).idesc, "f16", 1, "", True, True, "N = 32"),
        (
            Case("f8f6f4", "e4m3", "e4m3", 128, 24, transpose=(0, 1)).idesc,
            "f8f6f4",
            1,
            "",
            False,
            True,
            "transposed 8-bit B",
        ),
        (
            Case("tf32", "tf32", "tf32", 128, 32, result="f16").idesc,
            "tf32",
            1,
            "",
            False,
            True,
            "result type",
        ),
        (Case("f16", "f16", "f16", 128, 32).idesc, "f16", 1, "1X", False, True, "no scale factors"),
    ],
)
def test_instruction_descriptors_are_judged(bits, kind, group, vector, ws, specific, word):
    _, errors = parts.instruction_descriptor(bits, kind, group, vector, ws, specific)
    assert any(word in error for error in errors), errors

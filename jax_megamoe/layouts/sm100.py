"""The layout of `implementation="sm100"`, version 0: that of "xla".

The custom call's name and operands are fixed by it, so that programs lower and export for cuda; the
kernel's own layout comes with the kernel, under version 1.
"""

from __future__ import annotations

from jax_megamoe.layouts.xla import (
    prepare_codes,
    prepare_scales,
    unprepare_codes,
    unprepare_scales,
)

__all__ = ["VERSION", "prepare_codes", "prepare_scales", "unprepare_codes", "unprepare_scales"]

VERSION = 0

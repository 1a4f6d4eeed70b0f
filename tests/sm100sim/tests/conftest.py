"""Finds the built modules: SM100SIM_BUILD, or build/sm100sim of the checkout (`make simulator`).
Starts the compilation of CUTLASS's kernels, which takes minutes, while other tests run.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SM100SIM_BUILD", FOLDER.parents[1] / "build" / "sm100sim"))
for path in (FOLDER, BUILD):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))


def pytest_collection_finish(session: Any) -> None:
    variants = {
        item.callspec.params["variant"]
        for item in session.items
        if item.path.name == "test_cutlass.py" and hasattr(item, "callspec")
    }
    if variants and not session.config.option.collectonly:
        import cutlass_gemm

        cutlass_gemm.prepare(sorted(variants))

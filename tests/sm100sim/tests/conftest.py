"""Finds the built modules: SM100SIM_BUILD, or build/sm100sim of the checkout (`make simulator`)."""

from __future__ import annotations

import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SM100SIM_BUILD", FOLDER.parents[1] / "build" / "sm100sim"))
for path in (FOLDER, BUILD):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

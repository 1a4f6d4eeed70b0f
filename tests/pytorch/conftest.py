"""Comparisons with PyTorch and Hugging Face transformers; only `make test-torch` installs these.

Without them nothing here is collected: `make test` does not know PyTorch. The directory is not
called torch, which would hide the package from `import torch`.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest

TORCH = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")

if TORCH:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

    transformers.logging.disable_progress_bar()
else:
    collect_ignore_glob = ["*"]

_distances: list[tuple[str, float, float]] = []


@pytest.fixture
def near(request: pytest.FixtureRequest) -> Any:
    """`near(ours, theirs, bound)`: the largest ||a - b|| / ||b|| of a row is at most bound."""

    def check(ours: Any, theirs: Any, bound: float) -> None:
        from modules import distance  # it needs PyTorch

        found = distance(ours, theirs)
        _distances.append((request.node.name, found, bound))
        assert found <= bound

    return check


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TORCH:
        terminalreporter.section(
            f"torch {torch.__version__}, transformers {transformers.__version__}"
        )
    for name, found, bound in _distances:
        terminalreporter.line(f"largest row distance {found:.5f}, allowed {bound:.5f}  {name}")

"""A roofline of the rows of a benchmark with limits, as PNG."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np


def check_installed() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot: needs matplotlib; pip install 'jax_megamoe[benchmark]'.")


def roofline(rows: list[dict[str, Any]], file: str) -> None:
    """Rate over arithmetic intensity: the two limits, and every row of every candidate.

    Intensity counts the FP4 bytes of the touched experts, for all candidates alike: it says what
    the layer has to do, not what a candidate makes of it.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    limits = [row["limits"] for row in rows]
    read = float(np.median([limit["read_gb_per_s"] for limit in limits]))
    dots = float(np.median([limit["dot_gflop_per_s"] for limit in limits]))
    intensity = [row["gflop"] / row["weights_gb"] for row in rows]
    x = np.geomspace(min(intensity) / 2, 2 * max(intensity), 200)
    figure, axes = plt.subplots(figsize=(8, 5))
    axes.loglog(x, np.minimum(read * x, dots), "k", label=f"{read:.0f} GB/s, {dots:.0f} GFLOP/s")
    for name in sorted({name for row in rows for name in row["times"]}):
        axes.loglog(
            intensity, [row["gflop"] / row["times"][name]["us"] * 1e6 for row in rows], "o",
            label=name, markersize=4,
        )  # fmt: skip
    for row, at in zip(rows, intensity, strict=True):
        axes.annotate(f"{row['shape']} {row['tokens']}", (at, min(read * at, dots)), fontsize=6)
    axes.set_xlabel("FLOP per byte of FP4 weights")
    axes.set_ylabel("GFLOP/s")
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=150, bbox_inches="tight")

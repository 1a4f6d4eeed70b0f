"""Expert weights in the kernel's layout, written from the comments of xla_ffi/sm100/weights.h alone
(the package has its own; a test compares rows with the header's functions).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.uint8]


def up_to(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def padded(a: Array, rows: int, columns: int, value: int) -> Array:
    out = np.full((rows, columns), value, np.uint8)
    out[: a.shape[0], : a.shape[1]] = a.view(np.uint8)
    return out


def gate_up_order(channels: int) -> NDArray[np.int64]:
    """For each prepared row its row in [gate of all padded channels, up of all]."""
    rows = np.arange(2 * channels)
    lane, quadrant = rows % 32, rows % 128 // 32
    channel = 128 * (rows // 256) + 64 * (rows % 256 // 128) + 16 * quadrant + lane % 16
    return channel + channels * (lane >= 16)


def scale_blocks(scales: Array) -> Array:
    """[rows, groups of k] -> [rows/128, k/128, 512] in the order of tcgen05.cp."""
    rows, groups = scales.shape
    blocks = scales.reshape(rows // 128, 4, 32, groups // 4, 4)  # row = 32 a + b
    return blocks.transpose(0, 3, 2, 1, 4).reshape(rows // 128, groups // 4, 512)


def prepare(weights: dict[str, NDArray]) -> dict[str, NDArray]:
    experts, intermediate2, half = weights["gate_up_proj"].shape
    intermediate, hidden = intermediate2 // 2, 2 * half
    h, i = up_to(hidden, 128), up_to(intermediate, 128)
    m = up_to(h, 256)
    order = gate_up_order(i)
    out: dict[str, list] = {"gate_up": [], "gate_up_scales": [], "down": [], "down_scales": []}
    for x in range(experts):
        halves = []
        for name, columns, value in (
            ("gate_up_proj", h // 2, 0), ("gate_up_proj_scale_inv", h // 32, 127)
        ):  # fmt: skip
            both = weights[name][x].reshape(2, intermediate, -1)
            halves.append(np.concatenate([padded(part, i, columns, value) for part in both])[order])
        out["gate_up"].append(halves[0])
        out["gate_up_scales"].append(scale_blocks(halves[1]))
        out["down"].append(padded(weights["down_proj"][x], m, i // 2, 0))
        scales = padded(weights["down_proj_scale_inv"][x], m, i // 32, 127)
        out["down_scales"].append(scale_blocks(scales))
    return {name: np.stack(parts) for name, parts in out.items()}

"""Builds host.cc (the kernel's plain C++ headers) with the host's compiler and opens it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "xla_ffi" / "sm100"
MAX_RANKS = 72
LAYOUT_FIELDS = (
    "epoch", "poison", "meta_arr", "done_arr", "row_arr", "list_alloc", "meta_flag", "row_flag",
    "done_flag", "expert_tag", "expert_base", "tile_count", "unit_read", "meta", "lists", "rows",
    "slots", "ring", "bytes", "meta_pitch", "row_pitch", "ring_pitch", "ring_rows", "max_units",
)  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("shape", ctypes.c_uint32 * 7),
        *[
            (name, ctypes.c_uint32)
            for name in (
                "rank",
                "tokens",
                "row_groups",
                "call_site",
                "stages",
                "lag",
                "ring_units",
            )
        ],
        ("limit", ctypes.c_float),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        *[
            (name, ctypes.c_uint64)
            for name in (
                "timeout_ns",
                "x",
                "topk_idx",
                "topk_weights",
                "y",
                "gate_up_bias",
                "down_bias",
                "report",
            )
        ],
        ("workspace", ctypes.c_uint64 * MAX_RANKS),
        ("maps", (ctypes.c_uint8 * 128) * 6),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    text = "".join(p.read_text() for p in [HERE / "host.cc", *sorted(SOURCES.glob("*.h"))])
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    folder = HERE.parents[1] / ".cache" / "sm100kernel"
    path = folder / f"host-{key}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            out = file.name
        subprocess.run(
            [
                os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-shared", "-fPIC",
                f"-I{SOURCES}", str(HERE / "host.cc"), "-o", out,
            ],
            check=True,
        )  # fmt: skip
        os.replace(out, path)
    return ctypes.CDLL(str(path))


def layout(shape: tuple[int, ...]) -> dict[str, int]:
    out = (ctypes.c_uint64 * 64)()
    count = library().layout((ctypes.c_uint32 * 7)(*shape), out)
    assert count == len(LAYOUT_FIELDS), "WorkspaceLayout and LAYOUT_FIELDS differ"
    return dict(zip(LAYOUT_FIELDS, out, strict=False))


def default_lag(shape: tuple[int, ...]) -> int:
    return int(library().default_lag((ctypes.c_uint32 * 7)(*shape)))


def shared_size(tile: int, stages: int) -> int:
    return int(library().shared_size(tile, stages))


def params(call: Call) -> bytes:
    out = (ctypes.c_uint8 * library().params_bytes())()
    library().fill_params(ctypes.byref(call), out)
    return bytes(out)

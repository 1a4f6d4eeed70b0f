"""One safetensors file: a header checked against the file, and reads of whole tensors or single
experts.

The header is parsed here, because the safetensors library gives NumPy no E8M0, E4M3 or FP4 tensor
and names neither tensor nor file in its refusals; what the library can read, it reads. Memory
shaped the rest: mapped pages that have been read count as this process's memory, so no mapping
outlives the data it was made for.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
from safetensors import safe_open

#: Bits of an element, and the NumPy type that holds it (None: nothing here reads it).
_DTYPES: dict[str, tuple[int, Any]] = {
    "BOOL": (8, np.bool_),
    "U8": (8, np.uint8),
    "I8": (8, np.int8),
    "I16": (16, np.int16),
    "U16": (16, np.uint16),
    "I32": (32, np.int32),
    "U32": (32, np.uint32),
    "I64": (64, np.int64),
    "U64": (64, np.uint64),
    "F16": (16, np.float16),
    "BF16": (16, ml_dtypes.bfloat16),
    "F32": (32, np.float32),
    "F64": (64, np.float64),
    "C64": (64, np.complex64),
    "F8_E4M3": (8, ml_dtypes.float8_e4m3fn),
    "F8_E5M2": (8, ml_dtypes.float8_e5m2),
    "F8_E8M0": (8, ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": (8, ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": (8, ml_dtypes.float8_e5m2fnuz),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F4": (4, np.int8),  # two elements a byte: the last axis of what is read is half as long
}

#: What the library's NumPy side cannot give.
_OURS = frozenset(name for name in _DTYPES if name.startswith(("F8", "F6", "F4")))

_MAX_HEADER = 100_000_000  # bytes; the format's own bound


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor, checked; `start` and `end` are offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """The tensors of one file, by name.

    Raises:
      ValueError: the file is missing or truncated, or its header is damaged or does not fit the
        file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library: Any = None
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                self.tensors = _parse(path, file, size)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None

    def read(self, name: str, expert: int | None = None) -> np.ndarray:
        """A copy of a tensor, or of `tensor[expert]`; the rest of it is not touched."""
        info = self.tensors[name]
        if info.dtype in _OURS:
            return self._read_mapped(name, info, expert)
        if self._library is None:
            self._library = safe_open(self.path, framework="numpy")
        if expert is None:
            return np.asarray(self._library.get_tensor(name))
        return np.asarray(self._library.get_slice(name)[expert])

    def _read_mapped(self, name: str, info: TensorInfo, expert: int | None) -> np.ndarray:
        dtype = _DTYPES[info.dtype][1]
        if dtype is None:
            raise NotImplementedError(f"{name} in {self.path} has dtype {info.dtype}, not read.")
        shape, start, end = info.shape, info.start, info.end
        if info.dtype == "F4":
            if not shape or shape[-1] % 2:
                _refuse(self.path, f"F4 tensor {name} has shape {list(shape)}: no whole bytes")
            shape = (*shape[:-1], shape[-1] // 2)
        if expert is not None:
            size = (end - start) // shape[0]
            start, shape = start + expert * size, shape[1:]
            end = start + size
        if start == end:
            return np.zeros(shape, dtype)
        base = start - start % mmap.ALLOCATIONGRANULARITY
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), end - base, offset=base, access=mmap.ACCESS_READ) as window,
        ):
            return np.frombuffer(window[start - base :], dtype).reshape(shape)

    def unmap(self) -> None:
        """Lets go of the library's mapping, and of the pages read through it."""
        self._library = None


def _refuse(path: Path, problem: str) -> NoReturn:
    raise ValueError(
        f"{path} is not a sound safetensors file: {problem}. Download or write the file again."
    )


def _parse(path: Path, file: Any, size: int) -> dict[str, TensorInfo]:
    if size < 8:
        _refuse(path, f"it has {size} bytes, and the length of its header alone takes 8")
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MAX_HEADER):
        _refuse(
            path,
            f"its header is said to take {length} bytes; the file has {size}, and at most "
            f"{_MAX_HEADER} are accepted",
        )
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"its header is no JSON ({error})")
    if not isinstance(header, dict):
        _refuse(path, f"its header is a JSON {type(header).__name__}, not an object")
    data = 8 + length
    tensors = {
        name: _tensor(path, name, entry, data, size)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    # The format has no holes and no overlaps.
    reached, before = data, "the header"
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != reached:
            _refuse(
                path,
                f"tensor {name} begins at byte {info.start}, but {before} ends at byte {reached}",
            )
        reached, before = info.end, f"tensor {name}"
    if reached != size:
        _refuse(path, f"it has {size} bytes, but {before}, the last in it, ends at byte {reached}")
    return tensors


def _tensor(path: Path, name: str, entry: Any, data: int, size: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        _refuse(
            path, f"tensor {name} is described by {entry!r}, without dtype, shape and data_offsets"
        )
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        _refuse(path, f"tensor {name} has the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(_is_count(value) for value in (*shape, begin, end)):
        _refuse(path, f"tensor {name} has shape {shape!r} and data_offsets {[begin, end]!r}")
    bits = math.prod(shape) * _DTYPES[dtype][0]
    if bits != 8 * (end - begin):
        _refuse(
            path,
            f"tensor {name}, {dtype} {shape}, takes {-(-bits // 8)} bytes, but its data_offsets "
            f"{[begin, end]} span {end - begin}",
        )
    if data + end > size:
        _refuse(
            path,
            f"tensor {name} ends at byte {data + end}, but the file has {size}: it is truncated",
        )
    return TensorInfo(dtype, tuple(shape), data + begin, data + end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} appears twice")
    return entries

"""The direct face of the simulator for tests: devices, arrays, launches, reports.

Adds to the native module what tests want to read well: NumPy arrays in device memory, kernel
arguments packed by the kernel's own parameter list, and errors as exceptions. Everything that
decides is in the native module.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import _sm100sim as native
import numpy as np

LaunchRefused = native.LaunchRefused
PtxError = native.PtxError


class SimulationError(RuntimeError):
    """A launch ended with an error; `report` is its first one, `kind` the report's short name."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["text"])
        self.report = report
        self.kind: str = report["kind"]


class UndefinedOutput(RuntimeError):
    """The host read bytes that nobody has defined."""


@dataclasses.dataclass(frozen=True)
class DeviceArray:
    """Memory of one device with a NumPy type and shape. As a kernel argument it is its address."""

    sim: Sim
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def set(self, values: np.ndarray) -> None:
        if values.shape != self.shape or values.dtype != self.dtype:
            raise ValueError(f"{values.dtype}{values.shape} written to {self.dtype}{self.shape}")
        self.sim.machine.write(self.address, np.ascontiguousarray(values).tobytes())

    def undefined(self) -> np.ndarray:
        """For each byte whether it is undefined, flat."""
        return (
            np.frombuffer(self.sim.machine.shadow(self.address, self.nbytes), np.uint8) & 1
        ).astype(bool)

    def get(self, *, allow_undefined: bool = False) -> np.ndarray:
        bad = np.flatnonzero(self.undefined())
        if bad.size and not allow_undefined:
            element = int(bad[0]) // self.dtype.itemsize
            raise UndefinedOutput(
                f"{bad.size} of {self.nbytes} bytes read by the host are undefined, the first in "
                f"element {element} {tuple(int(i) for i in np.unravel_index(element, self.shape))}"
            )
        return (
            np.frombuffer(self.sim.machine.read(self.address, self.nbytes), self.dtype)
            .reshape(self.shape)
            .copy()
        )


def pack_arguments(
    layout: Sequence[tuple[int, int]], total: int, arguments: Sequence[Any]
) -> bytes:
    """The parameter bytes of a kernel: integers, floats (by the parameter's size), arrays (their
    address), raw bytes.
    """
    if len(layout) != len(arguments):
        raise TypeError(f"the kernel takes {len(layout)} arguments, {len(arguments)} given")
    data = bytearray(total)
    for (offset, size), value in zip(layout, arguments, strict=True):
        if isinstance(value, DeviceArray):
            piece = struct.pack("<Q", value.address)
        elif isinstance(value, np.generic):
            piece = value.tobytes()
        elif isinstance(value, float):
            piece = struct.pack("<f" if size == 4 else "<d", value)
        elif isinstance(value, int):
            piece = (value & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        else:
            piece = bytes(value)
        if len(piece) != size:
            raise TypeError(f"an argument of {len(piece)} bytes for a parameter of {size}")
        data[offset : offset + size] = piece
    return bytes(data)


def dims(value: int | Sequence[int]) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return [*values, *([1] * (3 - len(values)))]


class Module:
    """PTX loaded on one device."""

    def __init__(self, sim: Sim, handle: Any, device: int) -> None:
        self.sim, self.handle, self.device = sim, handle, device

    def kernel(self, part: str) -> str:
        """The one kernel whose (mangled) name contains `part`."""
        names = [name for name in self.handle.kernels() if part in name]
        if len(names) != 1:
            raise ValueError(f"{part!r} fits the kernels {names} of {self.handle.kernels()}")
        return names[0]

    def start(
        self,
        kernel: str, grid: int | Sequence[int], block: int | Sequence[int],
        arguments: Sequence[Any], *,
        cluster: int | Sequence[int] | None = None, shared: int = 0, **options: Any,
    ) -> Any:  # fmt: skip
        """Launches without running; `Sim.run` runs everything that was started. Options: see
        `Machine.launch`.
        """
        name = self.kernel(kernel)
        params = pack_arguments(self.handle.params(name), self.handle.param_bytes(name), arguments)
        return self.sim.machine.launch(
            self.handle, name, params, dims(grid), dims(block),
            None if cluster is None else dims(cluster), shared, **{**self.sim.options, **options},
        )  # fmt: skip

    def __call__(
        self,
        kernel: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Launches and runs to the end; raises SimulationError. Returns the launch with statistics,
        reports and output.
        """
        launch = self.start(kernel, grid, block, arguments, **options)
        self.sim.run(launch)
        return launch


class Sim:
    """Simulated devices. Keyword options become the defaults of every launch (seed, policy, rules,
    races, ...).
    """

    def __init__(
        self,
        devices: int = 1,
        *,
        sms: int = 8,
        capability: tuple[int, int] = (10, 0),
        sms_per_gpc: int = 16,
        **options: Any,
    ) -> None:
        self.machine = native.Machine([(sms, *capability, sms_per_gpc)] * devices)
        self.options = options
        for a in range(devices):
            for b in range(devices):
                if a != b:
                    self.machine.enable_peer(a, b)

    def load(self, ptx: str, device: int = 0) -> Module:
        return Module(self, self.machine.load(ptx, device), device)

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.uint8,
        *,
        device: int = 0,
        align: int = 256,
        label: str = "",
    ) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return DeviceArray(
            self, self.machine.alloc(size, device, align, label), shape, dtype, device
        )

    def array(
        self, values: Any, *, device: int = 0, align: int = 256, label: str = ""
    ) -> DeviceArray:
        values = np.asarray(values)
        out = self.empty(values.shape, values.dtype, device=device, align=align, label=label)
        out.set(values)
        return out

    def run(self, *launches: Any) -> None:
        """Runs until everything is done; raises for the first error among `launches` (or does
        nothing for none).
        """
        self.machine.run()
        for launch in launches:
            for report in launch.reports:
                if not report["warning"]:
                    raise SimulationError(report)

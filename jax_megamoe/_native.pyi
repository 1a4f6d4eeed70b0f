"""Types of the compiled extension; `xla_ffi/module.cc` implements it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import CapsuleType

def registrations() -> dict[str, CapsuleType]:
    """FFI target name -> capsule of its handler, for `jax.ffi.register_ffi_target`."""

def build_info() -> dict[str, Any]:
    """Facts about this build.

    `xla_ffi_api_major`, `xla_ffi_api_minor`: int, of its headers; `compiler`: str;
    `cpu_layout_version`: int; `sm100`: bool, whether the SM100 part is in.
    """

def cpu_path() -> str:
    """The instruction-set path in use: "avx512_bf16", "avx512", "avx2" or "portable".

    Raises ValueError if the environment variable JAX_MEGAMOE_CPU_PATH names none that can run here.
    """

def cpu_paths() -> list[str]:
    """The instruction-set paths that this machine can run, fastest first."""

def probe_call() -> CapsuleType:
    """Capsule of an FFI handler that takes any operands and does nothing; registered by
    benchmarks.
    """

def probe_dots(path: str, rounds: int) -> int:
    """Does the dots of a path's tallest tile `rounds` times, on registers, with one thread.

    Returns the multiply-adds done. For benchmarks, which have the clock. Raises ValueError for a
    path that cannot run here.
    """

def probe_read(path: str, memory: NDArray[np.uint8]) -> int:
    """Reads a contiguous array [n] as a path reads codes, with one thread.

    Returns the bytes read, n rounded down to kilobytes. Raises ValueError as `probe_dots`.
    """

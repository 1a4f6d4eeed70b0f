"""Types of the compiled extension; `xla_ffi/module.cc` implements it."""

from typing import Any

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

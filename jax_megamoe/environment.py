"""`print_environment`: which implementations are available here, and why not; one line each."""

from __future__ import annotations

import platform
from importlib import metadata

import jax

from jax_megamoe import _native, targets, validation


def environment() -> list[str]:
    """The lines of `print_environment`; starts the default backend."""
    build = _native.build_info()
    versions = ", ".join(
        f"{name} {_version(name)}" for name in ("jax_megamoe", "jax", "jaxlib", "flax", "ml_dtypes")
    )
    devices = jax.devices()
    kinds = sorted({f"{device.platform} ({device.device_kind})" for device in devices})
    return [
        f"versions: {versions}, Python {platform.python_version()}",
        f"extension: XLA FFI API {build['xla_ffi_api_major']}.{build['xla_ffi_api_minor']}, "
        f"{build['compiler']}",
        f"devices: {len(devices)} x {', '.join(kinds)}",
        f"implementation cpu: {_cpu_line()}",
        f"implementation sm100: {_sm100_line()}",
        "implementation xla: available on every device",
    ]


def print_environment() -> None:
    """Prints versions, devices and whether each implementation is available, and why not."""
    print("\n".join(environment()))


def _cpu_line() -> str:
    try:
        path = _native.cpu_path()
    except ValueError as reason:  # JAX_MEGAMOE_CPU_PATH names none
        return f"not available: {reason}."
    paths = ", ".join(_native.cpu_paths())
    return f"available, instruction-set path {path} (this machine can run: {paths})"


def _sm100_line() -> str:
    reasons = []
    for check in (_check_built, _check_device):
        try:
            check()
        except NotImplementedError as reason:
            reasons.append(str(reason))
    return "available" if not reasons else "not available: " + " ".join(reasons)


def _check_built() -> None:
    validation.check_sm100_built(targets.sm100_built())


def _check_device() -> None:
    cuda = [device for device in jax.devices() if validation.is_cuda(device)]
    if not cuda:
        raise NotImplementedError("No CUDA device is visible to jax here.")
    validation.check_devices(cuda, "sm100")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"

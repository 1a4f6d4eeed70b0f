"""Compares versions before anything is registered with jax: of jax and jaxlib with the floor, and
of the XLA FFI API that the extension was built with with the one that the running jaxlib supports.

Constraint: a handler built with a newer FFI API than the runtime's, once registered, keeps jax's
whole CPU backend from starting. So a mismatch has to be an ImportError here, in words, and finding
it must start no backend. The comparisons themselves are functions of version numbers alone.
"""

from __future__ import annotations

import re
from pathlib import Path

FLOOR = (0, 10, 2)  # of jax and jaxlib alike; pyproject.toml repeats it
FLOOR_FFI_API = (0, 3)  # what jaxlib of that version supports


def check() -> None:
    """Raises ImportError, in words, if jax is too old or the extension missing or unfit for it."""
    import jax
    import jaxlib.version

    jaxlib_version = jaxlib.version.__version__
    # First, so that an old jax is named as such, whatever else it would break.
    fault = release_problem("jax", jax.__version__) or release_problem("jaxlib", jaxlib_version)
    fault = fault or ffi_api_problem(_built_ffi_api(), _running_ffi_api(), jaxlib_version)
    if fault is not None:
        raise ImportError(fault)


def release_problem(name: str, version: str) -> str | None:
    """What is wrong with this version of jax or jaxlib, and the way out; None if nothing is."""
    if release(version) >= FLOOR:
        return None
    floor = _dotted(FLOOR)
    return (
        f"{name}: found version {version}, but jax_megamoe needs {name} >= {floor}. "
        f"Upgrade with: pip install --upgrade 'jax>={floor}' 'jaxlib>={floor}'"
    )


def ffi_api_problem(
    built: tuple[int, int], running: tuple[int, int] | None, jaxlib_version: str
) -> str | None:
    """Why an extension built with one FFI API version must not be registered where another runs.

    `running` None: the jaxlib was packaged without its headers. Then the floor's version counts,
    since every jaxlib from the floor on supports it: a build against the floor's headers passes,
    and nothing is assumed about others.
    """
    supported = FLOOR_FFI_API if running is None else running
    if built[0] == supported[0] and built[1] <= supported[1]:
        return None
    unsure = " at least (its headers, which would tell more, are missing)"
    return (
        f"jax_megamoe._native: built with XLA FFI API {_dotted(built)}, but jaxlib "
        f"{jaxlib_version} supports {_dotted(supported)}{unsure if running is None else ''}. "
        "Registering it would keep jax's CPU backend from starting. Upgrade jax and jaxlib, or "
        "rebuild jax_megamoe against an older jaxlib's headers: pip does so unless it is told "
        "--no-build-isolation."
    )


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: "0.12.0.1" -> (0, 12, 0, 1)."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()


def ffi_api(header: str) -> tuple[int, int] | None:
    """The API version that the text of xla/ffi/api/c_api.h defines; None if it defines none."""
    major, minor = (
        re.search(rf"^#define\s+XLA_FFI_API_{part}\s+(\d+)", header, re.MULTILINE)
        for part in ("MAJOR", "MINOR")
    )
    return (int(major[1]), int(minor[1])) if major and minor else None


def _built_ffi_api() -> tuple[int, int]:
    try:
        from jax_megamoe import _native
    except ImportError as error:
        raise ImportError(
            f"jax_megamoe._native: the compiled extension could not be loaded ({error}); the "
            f"package was found in {Path(__file__).parent}. A source tree has no extension: "
            "run `pip install .` in it (or `make demo`), and start Python outside of it."
        ) from error
    build = _native.build_info()
    return int(build["xla_ffi_api_major"]), int(build["xla_ffi_api_minor"])


def _running_ffi_api() -> tuple[int, int] | None:
    import jax.ffi

    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        return ffi_api(header.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)

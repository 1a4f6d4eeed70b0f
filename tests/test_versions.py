"""The comparison of versions at import: every kind of mismatch ends in an ImportError in words,
before anything is registered and without a backend."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jax.ffi
import pytest

from jax_megamoe import _native, _versions

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_this_environment_passes() -> None:
    _versions.check()


# ---- releases


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.10.2", (0, 10, 2)),
        ("0.12.0.1", (0, 12, 0, 1)),
        ("0.11.0.dev20260101", (0, 11, 0)),
        ("0.10.2+cuda", (0, 10, 2)),
        ("1.0rc1", (1, 0)),
        ("unknown", ()),
    ],
)
def test_a_release_is_the_numbers_that_a_version_begins_with(
    version: str, numbers: tuple[int, ...]
) -> None:
    assert _versions.release(version) == numbers


@pytest.mark.parametrize("version", ["0.10.2", "0.10.10", "0.12.0.1", "1.0", "0.11.0.dev1"])
def test_releases_from_the_floor_on_pass(version: str) -> None:
    assert _versions.release_problem("jax", version) is None


@pytest.mark.parametrize("version", ["0.10.1", "0.9.2", "0.10", "unknown"])
@pytest.mark.parametrize("name", ["jax", "jaxlib"])
def test_an_older_release_is_named_with_both_versions_and_the_way_out(
    name: str, version: str
) -> None:
    message = _versions.release_problem(name, version)
    assert message is not None
    for part in (f"{name}: found version {version}", f"{name} >= 0.10.2", "pip install --upgrade"):
        assert part in message


@pytest.mark.parametrize("module", ["jax", "jaxlib.version"])
def test_check_refuses_an_old_jax_and_an_old_jaxlib(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.__version__", "0.9.0")
    with pytest.raises(ImportError, match=r"found version 0\.9\.0, but jax_megamoe needs"):
        _versions.check()


def test_the_floor_is_that_of_the_packages_metadata() -> None:
    if not PROJECT.exists():
        pytest.skip("the tests run without the source tree's pyproject.toml")
    dependencies = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    floor = ".".join(map(str, _versions.FLOOR))
    assert f"jax>={floor}" in dependencies
    assert f"jaxlib>={floor}" in dependencies


# ---- the XLA FFI API


def test_the_api_version_is_read_from_the_header() -> None:
    header = "#ifdef X\n#define XLA_FFI_API_MAJOR 0\n// text 9\n#define  XLA_FFI_API_MINOR\t12\n"
    assert _versions.ffi_api(header) == (0, 12)
    assert _versions.ffi_api(header.replace("#define  XLA_FFI_API_MINOR", "// ")) is None
    assert _versions.ffi_api("") is None


def test_the_header_of_the_running_jaxlib_is_understood() -> None:
    running = _versions._running_ffi_api()
    assert running is not None
    assert running >= _versions.FLOOR_FFI_API


@pytest.mark.parametrize(
    ("built", "running"),
    [((0, 3), (0, 3)), ((0, 3), (0, 5)), ((0, 2), (0, 3)), ((0, 3), None), ((0, 2), None)],
)
def test_an_extension_built_with_the_same_or_an_older_api_passes(
    built: tuple[int, int], running: tuple[int, int] | None
) -> None:
    assert _versions.ffi_api_problem(built, running, "0.10.2") is None


@pytest.mark.parametrize(
    ("built", "running", "supported"),
    [
        ((0, 4), (0, 3), "0.3"),
        ((0, 5), None, "0.3 at least"),
        ((1, 0), (0, 9), "0.9"),
        ((0, 3), (1, 0), "1.0"),
    ],
)
def test_a_newer_or_unknown_api_is_named_with_both_versions_and_the_way_out(
    built: tuple[int, int], running: tuple[int, int] | None, supported: str
) -> None:
    message = _versions.ffi_api_problem(built, running, "0.10.7")
    assert message is not None
    for part in (
        f"built with XLA FFI API {built[0]}.{built[1]}",
        f"jaxlib 0.10.7 supports {supported}",
        "Upgrade jax",
        "rebuild jax_megamoe",
    ):
        assert part in message


def test_check_refuses_an_extension_built_with_a_newer_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer: dict[str, Any] = {**_native.build_info(), "xla_ffi_api_minor": 99}
    monkeypatch.setattr(_native, "build_info", lambda: newer)
    with pytest.raises(ImportError, match=r"built with XLA FFI API 0\.99, but jaxlib"):
        _versions.check()


def test_without_the_header_the_floors_api_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert _versions._running_ffi_api() is None
    built = (_native.build_info()["xla_ffi_api_major"], _native.build_info()["xla_ffi_api_minor"])
    if built <= _versions.FLOOR_FFI_API:
        _versions.check()
    else:
        with pytest.raises(ImportError, match="headers, which would tell more, are missing"):
            _versions.check()


# ---- in a process of its own

FAKE_EXTENSION = """
import sys, types
fake = types.ModuleType("jax_megamoe._native")
fake.build_info = lambda: {"xla_ffi_api_major": 0, "xla_ffi_api_minor": 99}
def registrations():
    raise AssertionError("asked for handlers before the versions were compared")
fake.registrations = registrations
sys.modules["jax_megamoe._native"] = fake
"""

IMPORT = """
try:
    import jax_megamoe
except ImportError as error:
    print(error)
import jax
print("devices:", len(jax.devices()))
"""


def test_a_mismatch_registers_nothing_and_leaves_jax_working(run_python: Any) -> None:
    output = run_python(FAKE_EXTENSION + IMPORT, devices=2)
    assert "built with XLA FFI API 0.99" in output
    assert "devices: 2" in output


def test_a_missing_extension_is_reported_with_the_way_out(run_python: Any) -> None:
    absent = "import sys; sys.modules['jax_megamoe._native'] = None\n"
    output = run_python(absent + IMPORT, devices=2)
    assert re.search(r"jax_megamoe\._native: the compiled extension could not be loaded", output)
    assert "pip install ." in output
    assert "devices: 2" in output


def test_importing_starts_no_backend(run_python: Any) -> None:
    # jax refuses to change the number of devices once a backend has started.
    code = """
import jax, jax_megamoe
jax_megamoe.MegaMoe, jax_megamoe.linen
jax.config.update("jax_num_cpu_devices", 3)
print("devices:", len(jax.devices()))
"""
    assert "devices: 3" in run_python(code, devices=1)

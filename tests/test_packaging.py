"""What is shipped, and what a person reads who lacks something: contents of wheel and sdist, the
wheel in an environment with nothing but its dependencies, the messages of the build.

The wheel is built here, from the objects that `make test` has compiled where they are there, so
that this costs seconds; `make wheel` builds and tries the ones that others install. Without a
source tree or build tools (an installed wheel under test) these tests are skipped.
"""

from __future__ import annotations

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))

BUILD_TOOLS = ("scikit_build_core", "nanobind", "cmake", "ninja")


@pytest.fixture(scope="session")
def build_tools() -> None:
    missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
    if missing or not (ROOT / "pyproject.toml").exists():
        pytest.skip(f"building needs a source tree and {', '.join(missing or BUILD_TOOLS)}")


@pytest.fixture(scope="session")
def wheel(build_tools: None, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    compiled = ROOT / "build" / sys.implementation.cache_tag / "test"
    headers = Path(sys.prefix) / "include" / "jaxlib"  # of tools/setup_venv.py
    options = [f"build-dir={compiled if compiled.exists() else target / 'build'}"]
    if headers.exists():
        options.append(f"cmake.define.JAXLIB_INCLUDE_DIR={headers}")
    # As in `make test`, which keeps the objects valid. That it builds the tests, too, makes "no
    # tests in the wheel" the stronger.
    options += ["cmake.define.JAX_MEGAMOE_SM100=ON", "cmake.define.JAX_MEGAMOE_TESTS=ON"]
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--verbose"]
    settings = [f"--config-settings={option}" for option in options]
    run([*pip, *settings, "--wheel-dir", str(target), str(ROOT)])
    (path,) = target.glob("jax_megamoe-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="session")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def run(command: Sequence[str], env: dict[str, str] | None = None, check: bool = True) -> str:
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout[-6000:]
    else:
        assert done.returncode != 0, done.stdout[-6000:]
    return done.stdout


def tracked(*paths: str) -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout to know which files are the project's")
    listed = run(["git", "-C", str(ROOT), "ls-files", *paths]).splitlines()
    return [name for name in listed if (ROOT / name).exists()]


# ---- what is shipped


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("py.typed", "_native.pyi", f"_native{suffix}", "__init__.py"):
        assert f"jax_megamoe/{name}" in names
    (license_,) = [name for name in names if name.endswith("/LICENSE")]
    assert wheel.read(license_) == (ROOT / "LICENSE").read_bytes()
    others = {n for n in names if not re.match(r"jax_megamoe(/|-[^/]*\.dist-info/)", n)}
    assert not others
    kinds = {Path(name).suffix for name in names if name.startswith("jax_megamoe/")}
    assert kinds == {".py", ".pyi", ".typed", ".so"}


def test_the_wheel_holds_every_module_of_the_package(wheel: zipfile.ZipFile) -> None:
    assert set(tracked("jax_megamoe")) <= set(wheel.namelist())


def test_the_wheel_says_for_which_python_and_machine_it_is(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = sysconfig.get_platform().replace("-", "_")
    assert wheel.filename.endswith(f"-{python}-{python}-{platform}.whl")


def test_the_metadata_is_complete(metadata: Message) -> None:
    import jax_megamoe

    assert metadata["Name"] == "jax_megamoe"
    assert metadata["Version"] == jax_megamoe.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "benchmark",
        "cuda12",
        "cuda13",
        "test",
        "test-torch",
    }
    required = metadata.get_all("Requires-Dist", [])
    for requirement in ("jax>=0.10.2", "jaxlib>=0.10.2", "flax>=0.12.4"):
        assert requirement in required
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in metadata.get_all("Classifier", [])
    assert "jax_megamoe" in str(metadata.get_payload())  # the README


def test_the_sdist_holds_what_a_build_needs_and_no_build_products(
    build_tools: None, tmp_path: Path
) -> None:
    code = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    run(["env", "-C", str(ROOT), sys.executable, "-c", code, str(tmp_path)])
    (path,) = tmp_path.glob("jax_megamoe-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = tracked("jax_megamoe", "xla_ffi", "CMakeLists.txt", "pyproject.toml", "LICENSE")
    assert set(needed) <= names
    products = [
        name
        for name in names
        if re.match(r"(build|dist|\.venv|\.cache|\.git/)", name) or name.endswith((".so", ".pyc"))
    ]
    assert not products


def test_build_time_jaxlib_is_capped_at_the_floors_ffi_api() -> None:
    # Newer headers would make an extension that stops an older jax's CPU backend.
    from jax_megamoe import _native, _versions

    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("needs the source tree")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "jaxlib>=0.10,<0.11" in project["build-system"]["requires"]
    build = _native.build_info()
    built = (build["xla_ffi_api_major"], build["xla_ffi_api_minor"])
    assert built <= _versions.FLOOR_FFI_API


# ---- the wheel where nothing helps it


def test_the_wheel_runs_without_compiler_cuda_or_source_tree(
    wheel: zipfile.ZipFile, tmp_path: Path, run_python: Any
) -> None:
    from matrix import TRIAL

    venv = tmp_path / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    (packages,) = venv.glob("lib/python*/site-packages")
    wheel.extractall(packages)
    # The dependencies are this environment's: after the wheel, and without its .pth files, of which
    # one makes the source tree importable.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {"PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    output = run_python(TRIAL, python=venv / "bin" / "python", env=environment)
    assert str(packages) in output


# ---- what a person reads who lacks something


def configure(folder: Path, *options: str, path: str | None = None) -> str:
    """The output of a configuration that has to fail, as one line."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    environment["PATH"] = path if path is not None else environment["PATH"]
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent))
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    command = [sys.executable, "-m", "cmake", "-S", str(ROOT), "-B", str(folder), *generator]
    output = run([*command, *options], env=environment, check=False)
    return " ".join(output.split())


def test_a_build_without_compiler_says_so(build_tools: None, tmp_path: Path) -> None:
    output = configure(tmp_path, path=str(tmp_path))
    assert "C++ compiler: found none" in output
    assert "apt-get install g++" in output


def test_a_build_with_a_compiler_that_lacks_cxx20_says_so(
    build_tools: None, tmp_path: Path
) -> None:
    # A wrapper that knows the language only as it was, as an old compiler does.
    compiler = shutil.which("g++") or shutil.which("c++")
    old = tmp_path / "g++"
    old.write_text(f'#!/bin/sh\nfor a; do shift; case "$a" in -std=*) a=-std=c++14;; esac; set -- '
                   f'"$@" "$a"; done\nexec {compiler} "$@"\n')  # fmt: skip
    old.chmod(0o755)
    output = configure(tmp_path / "build", f"-DCMAKE_CXX_COMPILER={old}")
    assert f"C++ compiler: found {old}" in output
    assert "GCC 11, Clang 14 or newer" in output


def test_a_build_without_nanobind_or_jaxlib_says_so(build_tools: None, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    python = f"-DPython_EXECUTABLE={venv / 'bin' / 'python'}"
    output = configure(tmp_path / "build", python)
    assert f"nanobind: not installed for {venv}" in output
    assert "-m pip install nanobind" in output

    (packages,) = venv.glob("lib/python*/site-packages")
    nanobind = Path(importlib.util.find_spec("nanobind").origin).parent  # type: ignore
    (packages / "nanobind").symlink_to(nanobind)
    output = configure(tmp_path / "build", python)
    assert f"jaxlib: not installed for {venv}" in output
    assert 'pip install "jaxlib<0.11"' in output


def test_a_build_without_the_ffi_headers_says_so(build_tools: None, tmp_path: Path) -> None:
    python = f"-DPython_EXECUTABLE={sys.executable}"
    output = configure(tmp_path / "build", python, f"-DJAXLIB_INCLUDE_DIR={tmp_path}")
    assert f"XLA FFI headers: no xla/ffi/api/c_api.h in {tmp_path}" in output


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("compiler", r"C\+\+ compiler: found none .* apt-get install g\+\+"),
        ("venv", r"python3-venv: .* apt-get install python3\.\d+-venv"),
        ("ensurepip", r"python3-venv: .* apt-get install python3\.\d+-venv"),
        ("version", r"Python: found .* needs 3\.11 or newer. .* make PYTHON="),
    ],
)
def test_make_names_what_the_machine_lacks(
    lacking: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_venv = pytest.importorskip("setup_venv", reason="needs the source tree's tools/")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("shutil.which", lambda name: None if lacking == "compiler" else name)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda n: None if n == lacking else find_spec(n)
    )
    if lacking == "version":
        monkeypatch.setattr("sys.version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit, match=message):
        setup_venv.check_machine()


# ---- the first thing that a person tries


def test_the_readmes_example_runs_as_it_stands(run_python: Any) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks[0].splitlines()) <= 15
    for devices in (1, 4):
        output = run_python(blocks[0] + "print(y.dtype, y.shape)", devices=devices)
        assert "bfloat16 (64, 512)" in output


# ---- what must not be in the repository


def test_no_tracked_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "debian" + ".org"]
    folders = ["/root" + "/", "/work" + "/", "/tmp/" + "venv", "/opt/" + "pypi"]
    pattern = re.compile("|".join(re.escape(part) for part in [*hosts, *folders]))
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked()
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found

"""Builds wheels and tries them where no source tree and no compiler helps them.

    python tests/matrix.py wheel    one wheel per Python (3.11 - 3.13) found, each tried in a bare
                                    environment
    python tests/matrix.py test     the test-suite on those wheels: the newest Python's with the
                                    oldest supported jax and with the newest, and Python 3.11's;
                                    what follows goes to pytest

Decides which interpreters and jax versions count; the Makefile calls it, and it stands alone.
Wheels are built as a user's pip builds them, isolated, so that they are compiled against the
headers that pyproject.toml asks for.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST, WORK = ROOT / "dist", ROOT / "build" / "matrix"
MINORS = (11, 12, 13)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OLDEST_JAX = next(
    d.partition(">=")[2] for d in PROJECT["project"]["dependencies"] if d.startswith("jax>=")
)
# A wheel holds what these hold.
SOURCES = ("jax_megamoe", "xla_ffi", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")

# What a bare environment runs: the custom call, compared with the pure-JAX implementation.
TRIAL = """
import jax, jax.numpy as jnp, numpy as np, jax_megamoe as jm
jax.config.update("jax_num_cpu_devices", 2)  # refused once a backend has started
keys = jax.random.split(jax.random.key(0), 4)
weights = jm.ExpertWeights(
    *jm.quantize_fp4(jax.random.normal(keys[0], (4, 256, 128))),
    *jm.quantize_fp4(jax.random.normal(keys[1], (4, 128, 128))),
)
x = jax.random.normal(keys[2], (5, 128), jnp.bfloat16)
ids = jax.random.randint(keys[3], (5, 2), 0, 4)
mesh = jax.make_mesh((2,), ("ep",))
y = [
    np.asarray(
        jm.expert_parallel(
            x, ids, jnp.ones((5, 2)), weights, axis_name="ep", mesh=mesh, implementation=name
        ),
        np.float32,
    )
    for name in ("cpu", "xla")
]
assert np.isfinite(y[0]).all() and np.linalg.norm(y[0]) > 0
error = np.linalg.norm(y[0] - y[1]) / np.linalg.norm(y[1])
assert error <= 2**-6, error
print(jm.__file__, jax.__version__)
"""


def main(command: str, *pytest_args: str) -> None:
    if command == "wheel":
        for python, version in interpreters():
            try_bare(build_wheel(python, version), python, version)
    elif command == "test":
        test_matrix(pytest_args)
    else:
        sys.exit(f"command: found {command!r}, accepted are 'wheel' and 'test'.")


# ---- interpreters


def interpreters() -> list[tuple[Path, str]]:
    """(executable, "3.N") for each supported N of which a working interpreter is found."""
    found = []
    for minor in MINORS:
        version = f"3.{minor}"
        working = [path for path in _candidates(version) if _version(path) == version]
        if working:
            found.append((working[0], version))
        else:
            print(f"Python {version}: none found here, left out", flush=True)
    if not found:
        sys.exit(f"Python: found none of the versions {', '.join(f'3.{m}' for m in MINORS)}.")
    return found


def _candidates(version: str) -> Iterator[Path]:
    if _version(Path(sys.executable)) == version:
        yield Path(getattr(sys, "_base_executable", sys.executable))
    for name in (f"python{version}", "python3"):
        path = shutil.which(name)
        if path is not None:
            yield Path(path)
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(managed.glob(f"{version}.*/bin/python{version}"), reverse=True)


def _version(python: Path) -> str | None:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# ---- wheels


def build_wheel(python: Path, version: str) -> Path:
    """The wheel for this Python, built anew if a source is newer than the one in dist/."""
    pattern = f"jax_megamoe-*-cp{version.replace('.', '')}-*.whl"
    sources = [
        f for name in SOURCES for f in (ROOT / name, *(ROOT / name).rglob("*")) if f.is_file()
    ]
    newest = max(f.stat().st_mtime for f in sources if "__pycache__" not in f.parts)
    for wheel in DIST.glob(pattern):
        if wheel.stat().st_mtime > newest:
            print(f"Python {version}: {wheel.name} is up to date", flush=True)
            return wheel
        wheel.unlink()
    DIST.mkdir(exist_ok=True)
    log = ROOT / "build" / f"wheel-{version}.log"
    log.parent.mkdir(exist_ok=True)
    print(f"Python {version}: building a wheel, log in {log.relative_to(ROOT)}", flush=True)
    # fmt: off
    command = [sys.executable, "-m", "pip", "--python", python, "wheel", "--verbose", "--no-deps",
               "--config-settings=cmake.define.JAX_MEGAMOE_SM100=ON", "--wheel-dir", DIST, ROOT]
    # fmt: on
    with log.open("w") as file:
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    text = log.read_text()
    if code:
        sys.exit(f"{text[-6000:]}\nPython {version}: building the wheel failed, see {log}")
    for line in re.findall(r"-- (jax_megamoe: .*)", text):
        print(f"  {line}", flush=True)
    (wheel,) = DIST.glob(pattern)
    return wheel


def try_bare(wheel: Path, python: Path, version: str) -> None:
    """Installs the wheel with nothing on PATH but the environment itself, and runs a layer."""
    venv = make_venv(f"bare-{version}", python)
    environment = {"PATH": str(venv / "bin"), "CC": "", "CXX": "", "CUDA_VISIBLE_DEVICES": ""}
    pip_install(venv, [str(wheel)], environment)
    start = time.perf_counter()
    output = run([venv / "bin" / "python", "-c", TRIAL], environment, cwd=venv)
    installed, jax_version = output.split()
    assert Path(installed).is_relative_to(venv), installed
    print(
        f"Python {version}: {wheel.name} runs in a bare environment with jax {jax_version} "
        f"({time.perf_counter() - start:.0f} s)",
        flush=True,
    )


# ---- the test-suite on wheels


def test_matrix(pytest_args: Sequence[str]) -> None:
    found = interpreters()
    newest = found[-1]
    rows = [(newest, f"=={OLDEST_JAX}"), (newest, "")]
    rows += [(row, "") for row in found[:-1] if row[1] == "3.11"]
    results = [test_on_wheel(*python, jax, pytest_args) for python, jax in rows]
    print("==== matrix")
    for passed, line in results:
        print(f"{'passed' if passed else 'FAILED'}  {line}")
    if not all(passed for passed, _ in results):
        sys.exit(1)


def test_on_wheel(
    python: Path, version: str, jax: str, pytest_args: Sequence[str]
) -> tuple[bool, str]:
    """Runs the test-suite on the wheel for this Python with jax of a version; a line about it."""
    wheel = build_wheel(python, version)
    name = f"{version}-jax{jax or '-newest'}"
    venv = make_venv(name, python)
    pip_install(venv, [f"{wheel}[test]", f"jax{jax}", f"jaxlib{jax}"], {})
    versions = "import jax_megamoe as m, jax; print(m.__file__, jax.__version__)"
    installed, jax_version = run([venv / "bin" / "python", "-c", versions], {}, cwd=venv).split()
    assert Path(installed).is_relative_to(venv), f"not the wheel's: {installed}"
    what = f"{wheel.name}, Python {version}, jax {jax_version}"
    print(f"==== {what}", flush=True)

    log = WORK / f"{name}.log"
    start = time.perf_counter()
    with log.open("w") as file:
        code = subprocess.run(
            # The simulator is built for one Python and tests no wheel.
            [venv / "bin" / "pytest", "-q", "--ignore=tests/sm100sim", *pytest_args],
            cwd=ROOT,
            env=_environment({}),
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    lines = log.read_text().splitlines()
    print("\n".join(lines[-100:] if code else lines[-1:]), flush=True)
    summary = lines[-1].strip("= ")
    return code == 0, f"{what}: {summary}, {time.perf_counter() - start:.0f} s"


# ---- environments and processes


def make_venv(name: str, python: Path) -> Path:
    venv = WORK / name
    shutil.rmtree(venv, ignore_errors=True)
    run([python, "-m", "venv", venv], {})
    return venv


def pip_install(venv: Path, what: Sequence[str], environment: Mapping[str, str]) -> None:
    pip = [venv / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run([*pip, "--only-binary", ":all:", *what], environment)


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JAX_", "XLA_"))
    }
    # A safe path: what is in the current folder is never imported, so that the wheel is.
    return {**inherited, "PYTHONSAFEPATH": "1", **changes}


def run(
    command: Sequence[str | Path], environment: Mapping[str, str], cwd: Path | None = None
) -> str:
    done = subprocess.run(
        command,
        env=_environment(environment),
        cwd=cwd,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed with exit status {done.returncode}: {command[:4]}")
    return done.stdout


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))

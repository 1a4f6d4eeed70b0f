"""What every test shares: eight host CPU devices, the hypothesis profiles, `run_python`, and the
lists at the end of a run (every skip with its reason, time per file).

The number of devices has to be set before a backend starts, hence here and for the whole process;
a test that needs another number, or an unused process, takes `run_python`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest

TESTS = Path(__file__).resolve().parent
HOST_DEVICES = 8

jax.config.update("jax_num_cpu_devices", HOST_DEVICES)

# `make test` runs "ci": the same examples every time, so that a failure is the change's. "wide"
# draws new ones; `-m wide` selects it. No deadlines: the first example of a shape compiles.
_common = dict(deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", derandomize=True, database=None, **_common)
hypothesis.settings.register_profile("wide", max_examples=2000, **_common)


def pytest_configure(config: pytest.Config) -> None:
    wide = "wide" in config.option.markexpr and "not wide" not in config.option.markexpr
    hypothesis.settings.load_profile("wide" if wide else "ci")


# ---- processes

RunPython = Callable[..., str]


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    """`run_python(code, devices=1, env=None, timeout=600, check=True, python=None) -> output`."""
    return _run_python


def _run_python(
    code: str,
    devices: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
    check: bool = True,
    python: str | os.PathLike[str] = sys.executable,
) -> str:
    """Runs `code` in a new Python on `devices` host CPU devices; stdout and stderr together.

    No variable that steers jax, XLA or Python is inherited; `env` adds some. A status other than 0
    fails the test with the output, unless check is False. The time-out only detects a hang.
    """
    steering = ("JAX_", "XLA_", "TF_", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    clean["JAX_PLATFORMS"] = "cpu"
    clean["JAX_NUM_CPU_DEVICES"] = str(devices)
    clean["PYTHONPATH"] = str(TESTS)
    clean["PYTHONSAFEPATH"] = "1"  # the package that is installed, not the current folder's
    clean["PYTHONFAULTHANDLER"] = "1"
    clean.update(env or {})
    command = [os.fspath(python), "-c", code]
    try:
        done = subprocess.run(
            command,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.output or b""
        text = output if isinstance(output, str) else output.decode(errors="replace")
        raise AssertionError(f"no end after {timeout} s; output so far:\n{text}") from None
    if check and done.returncode != 0:
        raise AssertionError(f"exit status {done.returncode}; output:\n{done.stdout}")
    return done.stdout


# ---- the lists at the end

_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.split("::")[0]] += report.duration


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    yield
    skips = sorted(
        (report.nodeid, _reason(report)) for report in terminalreporter.getreports("skipped")
    )
    terminalreporter.section(f"skipped: {len(skips)}")
    for nodeid, reason in skips:
        terminalreporter.line(f"{nodeid}: {reason}")
    terminalreporter.section("time per file")
    for file, seconds in sorted(_seconds.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{seconds:8.1f} s  {file}")


def _reason(report: Any) -> str:
    """The text given to pytest.skip, without pytest's own prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")

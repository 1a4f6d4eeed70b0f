"""Two real processes share the experts through `jax.distributed` and XLA's own collectives.

The processes are `two_processes.py`; here they are started, judged and, one of them, killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from layer import assert_as_on_one_device

TESTS = Path(__file__).resolve().parent
TIMEOUT = 240  # detects a hang; a run takes seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def two_processes(folder: Path, what: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts both, their output in the folder; none outlives the block."""
    steering = ("JAX_", "XLA_", "TF_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(TESTS)}
    address = f"localhost:{free_port()}"
    processes = []
    try:
        for process in range(2):
            command = [sys.executable, str(TESTS / "two_processes.py")]
            with (folder / f"output-{process}").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [*command, address, str(process), str(folder), what],
                        env=env,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        yield processes
    finally:
        for running in processes:
            running.kill()
            running.wait()


def outputs(folder: Path) -> str:
    return "\n".join(
        f"--- process {process}:\n{(folder / f'output-{process}').read_text()}"
        for process in range(2)
    )


def test_two_processes_give_the_bits_of_one_device(tmp_path: Path) -> None:
    with two_processes(tmp_path, "compute") as processes:
        for process in processes:
            try:
                status = process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                pytest.fail(f"no end after {TIMEOUT} s\n{outputs(tmp_path)}")
            assert status == 0, outputs(tmp_path)
    for name in ("cpu", "xla", "prepared", "eager", "host"):
        parts = [np.load(tmp_path / f"{name}-{start}.npy") for start in (0, 4, 8, 12)]
        y = np.concatenate(parts).view("bfloat16")
        assert_as_on_one_device(y, "xla" if name == "xla" else "cpu")


def test_a_lost_process_ends_in_an_error(tmp_path: Path) -> None:
    with two_processes(tmp_path, "lose one") as (survivor, lost):
        until = time.monotonic() + TIMEOUT
        while not all((tmp_path / f"first-{process}").exists() for process in range(2)):
            assert survivor.poll() is None and lost.poll() is None, outputs(tmp_path)
            assert time.monotonic() < until, outputs(tmp_path)
            time.sleep(0.1)
        lost.kill()
        lost.wait()
        (tmp_path / "lost").touch()
        try:
            status = survivor.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the other process waits for ever\n{outputs(tmp_path)}")
    # Either its call raised, or jax's coordination service ended the process with its own error.
    assert status != 0, outputs(tmp_path)
    error = tmp_path / "error"
    said = (error.read_text() if error.exists() else outputs(tmp_path)).lower()
    words = (
        "closed by peer",
        "reset by peer",
        "broken pipe",
        "timed out",
        "heartbeat",
        "unhealthy",
    )
    assert any(word in said for word in words), said

"""What ptxas says about the kernel: no spills and no stack, 128 registers for each of 512
threads at launch, and shared memory within what one CTA can have.
"""

from __future__ import annotations

import re
import subprocess
import tempfile

import native_host
import pytest
from harness import KERNEL, ptx

from sm100sim import nvcc

pytestmark = pytest.mark.sm100
THREADS, FILE, SHARED_LIMIT = 512, 65536, 227 * 1024


@pytest.fixture(scope="module")
def resources() -> dict[str, str]:
    """ptxas's text for each kernel, from the PTX that the other tests run."""
    with tempfile.TemporaryDirectory() as scratch:
        source = f"{scratch}/kernel.ptx"
        with open(source, "w") as file:
            file.write(ptx())
        done = subprocess.run(
            [
                str(nvcc.cuda_home() / "bin" / "ptxas"), "-arch=sm_100f", "-v", source, "-o",
                f"{scratch}/kernel.cubin",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parts = re.split(r"Compiling entry function '(\w+)'", done.stderr + done.stdout)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("tile", [128, 192])
def test_no_spills_no_stack_and_registers_for_512_threads(
    resources: dict[str, str], tile: int
) -> None:
    text = resources[f"megamoe_n{tile}"]
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in text, text
    used = re.search(r"Used (\d+) registers", text)
    assert used is not None and int(used[1]) * THREADS <= FILE, text


def test_register_budgets_of_the_roles_fit_the_file() -> None:
    text = KERNEL.read_text()
    loaders, dispatch, epilogues = (
        int(re.search(rf"{name}Registers = (\d+)", text)[1])
        for name in ("kLoader", "kDispatch", "kEpilogue")
    )
    assert 128 * (loaders + dispatch) + 256 * epilogues <= FILE
    assert all(n % 8 == 0 and 24 <= n <= 256 for n in (loaders, dispatch, epilogues))


@pytest.mark.parametrize("tile, stages", [(128, 8), (192, 6)])
def test_shared_memory_fits(tile: int, stages: int) -> None:
    assert native_host.shared_size(tile, stages) <= SHARED_LIMIT
    assert native_host.shared_size(tile, stages + 1) > SHARED_LIMIT, "no stage is given away"

"""What the package says by itself: nothing, one INFO line on request, and `print_environment`; and
what importing it does: nothing that starts a backend.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import pytest

import jax_megamoe
from jax_megamoe import _native
from layer import mesh_of, small_case, tokens_of, weights_of

RunPython = Callable[..., str]


def call(implementation: str | None, weights: Any = None) -> Any:
    """Traces the layer anew, since jax keeps what it has traced."""
    case = small_case()
    given = weights_of(case) if weights is None else weights
    mesh = mesh_of(ep=2)
    jax.clear_caches()
    return jax.eval_shape(
        lambda *arrays: jax_megamoe.expert_parallel(
            *arrays, axis_name="ep", mesh=mesh, implementation=implementation
        ),
        *tokens_of(case),
        given,
    )


# --- logging --------------------------------------------------------------------------------------

SILENT = """
import logging
import jax_megamoe
from layer import mesh_of, small_case, tokens_of, weights_of
case = small_case()
operands = (*tokens_of(case), weights_of(case))
y = jax_megamoe.expert_parallel(*operands, axis_name="ep", mesh=mesh_of(ep=1))
y.block_until_ready()
assert not logging.getLogger().handlers
"""


def test_silent_by_default(run_python: RunPython) -> None:
    assert run_python(SILENT) == ""


def test_info_line_where_logging_is_configured(run_python: RunPython) -> None:
    output = run_python(
        "import logging; logging.basicConfig(level=logging.INFO)\n" + SILENT.rsplit("\n", 2)[0]
    )
    ours = [line for line in output.splitlines() if line.startswith("INFO:jax_megamoe:")]
    assert len(ours) == 1, output


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
def test_one_info_line_names_the_implementation(
    implementation: str, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = jax_megamoe.prepare_weights(weights_of(small_case()), implementation)
    for given, note in ((None, implementation == "cpu"), (prepared, False)):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="jax_megamoe"):
            call(implementation, given)
        records = [record for record in caplog.records if record.name == "jax_megamoe"]
        assert [record.levelno for record in records] == [logging.INFO]
        message = records[0].getMessage()
        assert message.startswith(f"implementation: {implementation}")
        # Plain weights are rearranged in every call, which somebody who serves wants to know.
        assert ("prepare_weights" in message) == note


def test_info_line_of_a_choice_by_platform_names_all(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="jax_megamoe"):
        call(None)
    message = "".join(record.getMessage() for record in caplog.records)
    assert re.search(r"by platform.*cpu.*sm100.*xla", message)


def test_a_compiled_call_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    case = small_case()
    operands = (*tokens_of(case), weights_of(case))
    layer = jax.jit(
        lambda *arrays: jax_megamoe.expert_parallel(*arrays, axis_name="ep", mesh=mesh_of(ep=1))
    )
    layer(*operands)
    with caplog.at_level(logging.DEBUG, logger="jax_megamoe"):
        layer(*operands)
    assert not [record for record in caplog.records if record.name == "jax_megamoe"]


# --- print_environment ----------------------------------------------------------------------------


def environment_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    jax_megamoe.print_environment()
    return capsys.readouterr().out.splitlines()


def line_of(lines: list[str], start: str) -> str:
    (line,) = (line for line in lines if line.startswith(start))
    return line


def test_print_environment_has_one_line_for_each_implementation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = environment_lines(capsys)
    assert "available" in line_of(lines, "implementation cpu:")
    assert "available" in line_of(lines, "implementation xla:")
    sm100 = line_of(lines, "implementation sm100:")
    assert "not available" in sm100 and "CUDA device" in sm100
    assert jax.__version__ in line_of(lines, "versions:")
    assert "8 x cpu" in line_of(lines, "devices:")


def test_print_environment_names_the_instruction_set_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = line_of(environment_lines(capsys), "implementation cpu:")
    assert f"path {_native.cpu_path()}" in line
    assert all(path in line for path in _native.cpu_paths())


def test_print_environment_says_why_a_forced_path_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        raise ValueError("JAX_MEGAMOE_CPU_PATH: found this")

    monkeypatch.setattr(_native, "cpu_path", unknown)
    line = line_of(environment_lines(capsys), "implementation cpu:")
    assert "not available: JAX_MEGAMOE_CPU_PATH: found this." in line


@pytest.mark.parametrize("built", [False, True])
def test_print_environment_says_why_sm100_is_missing(
    built: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {**_native.build_info(), "sm100": built}
    monkeypatch.setattr(_native, "build_info", lambda: info)
    line = line_of(environment_lines(capsys), "implementation sm100:")
    assert ("built without" in line) == (not built)
    assert "No CUDA device" in line


# --- importing ------------------------------------------------------------------------------------

IMPORT = """
import sys
import jax_megamoe
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
for name in jax_megamoe.__all__:
    assert name in ("MegaMoe", "linen") or getattr(jax_megamoe, name) is not None
assert not xla_bridge._backends, xla_bridge._backends
assert "flax" not in sys.modules and "torch" not in sys.modules
config = jax_megamoe.MegaMoeConfig(8, 64, 32, 3)
jax_megamoe.ExpertWeights(1, 2, 3, 4)
jax_megamoe.MegaMoe, jax_megamoe.linen
assert not xla_bridge._backends, xla_bridge._backends
print("no backend")
"""


def test_importing_starts_no_backend(run_python: RunPython) -> None:
    assert "no backend" in run_python(IMPORT)


PREPARE_ON_HOST = """
import numpy as np
import jax_megamoe
from jax._src import xla_bridge
from layer import small_case
weights = small_case().weights
expert = jax_megamoe.ExpertWeights(**{name: value[0] for name, value in weights.items()})
for implementation in ("cpu", "xla"):
    prepared = jax_megamoe.prepare_expert(expert, implementation)
    assert isinstance(prepared.gate_up_proj, np.ndarray)
assert not xla_bridge._backends, xla_bridge._backends
print("no backend")
"""


def test_preparing_an_expert_on_the_host_starts_no_backend(run_python: RunPython) -> None:
    assert "no backend" in run_python(PREPARE_ON_HOST)


def test_number_of_devices_may_be_set_after_the_import(run_python: RunPython) -> None:
    code = (
        "import jax_megamoe, jax; jax.config.update('jax_num_cpu_devices', 3); print(jax.devices())"
    )
    assert "id=2" in run_python(code)

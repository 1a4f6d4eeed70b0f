"""`examples/benchmark.py` as a user runs it, on its smallest shape. What it measures is not
asserted; that a row's figures fit together is.
"""

from __future__ import annotations

import json
import pathlib
import runpy
import subprocess
import sys

import numpy as np
import pytest

from jax_megamoe import _native

BENCHMARK = pathlib.Path(__file__).resolve().parents[1] / "examples" / "benchmark.py"


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, timeout=600
    )


def test_rows_with_limits_fit_together(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.json"
    done = benchmark(
        "--shapes=tiny", "--tokens=1,8", "--limits", "--threads=1", "--seconds=0", f"--json={file}"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [(row["shape"], row["tokens"]) for row in rows] == [("tiny", 1), ("tiny", 8)]
    # Six products of H x I for each token's two slots; 4.25 bits for each weight of its experts.
    assert rows[0]["gflop"] == pytest.approx(6 * 512 * 256 * 2 / 1e9)
    assert rows[0]["weights_gb"] == pytest.approx(2 * 3 * 512 * 256 * 4.25 / 8 / 1e9)
    for row in rows:
        limit = row["limits"]
        memory = row["weights_gb"] / limit["read_gb_per_s"]
        dots = row["gflop"] / limit["dot_gflop_per_s"]
        assert limit["us"] == pytest.approx(1e6 * max(memory, dots))
        assert limit["bound"] == ("memory" if memory >= dots else "dots")
        for cell in row["times"].values():
            assert cell["share_of_limit"] == pytest.approx(limit["us"] / cell["us"])
        assert set(row["times"]) == {"cpu", "baseline", "xla"}
    assert done.stdout.count("by memory") + done.stdout.count("by dots") == 2


def test_overhead_of_a_call() -> None:
    done = benchmark("--overhead", "--seconds=0")
    assert done.returncode == 0, done.stderr
    assert "overhead" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--shapes=flash,foo"], "found shape 'foo', accepted are flash, gpt-oss, tiny"),
        (["--implementations=numpy"], "found implementation 'numpy', accepted are cpu"),
        (["--tokens=8,0"], "found 0 tokens, at least 1 is accepted"),
        (["--threads=0"], "found 0, accepted are 1 to"),
        (["--plot=x.png"], "add --limits"),
    ],
)
def test_wrong_arguments_are_refused_in_words(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert refused.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_probes_count_their_work() -> None:
    for path in _native.cpu_paths():
        one, three = (_native.probe_dots(path, rounds) for rounds in (1, 3))
        assert one > 0 and three == 3 * one
        assert _native.probe_read(path, np.zeros(4096 + 100, np.uint8)) == 4096
        assert _native.probe_read(path, np.zeros(0, np.uint8)) == 0


def test_probes_refuse_what_they_cannot_run() -> None:
    with pytest.raises(
        ValueError, match=r'path: found "sse9", but this machine accepts: .*portable'
    ):
        _native.probe_dots("sse9", 1)
    with pytest.raises(ValueError, match="sse9"):
        _native.probe_read("sse9", np.zeros(1024, np.uint8))
    with pytest.raises(TypeError):
        _native.probe_read("portable", np.zeros(1024, np.float32))  # type: ignore[arg-type]

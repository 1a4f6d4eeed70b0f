"""Programs that leave the process: lowering for several platforms, `jax.export`, and the persistent
compilation cache.

No machine of ours has the GPU, so for cuda the program's text is all there is to look at; a CPU
program is also run, in another process.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from jax_megamoe import targets
from layer import assert_as_on_one_device, mesh_of, small_case, tokens_of, weights_of

CHECKS = [export.DisabledSafetyCheck.custom_call(name) for name in targets.TARGETS]


def layer_on(ranks: int, **keywords: Any) -> Any:
    mesh = mesh_of(ep=ranks)

    @jax.jit
    def layer(x: Any, idx: Any, weight: Any, weights: Any) -> Any:
        return jax_megamoe.expert_parallel(
            x, idx, weight, weights, axis_name="ep", mesh=mesh, **keywords
        )

    return layer


def operands() -> tuple[Any, ...]:
    case = small_case()
    return (*tokens_of(case), weights_of(case))


def custom_calls(text: str) -> set[str]:
    return {name for name in targets.TARGETS if f"@{name}" in text}


# --- lowering -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "on_cpu"), [(1, targets.CPU_LAYER), (4, targets.CPU_ROWS)])
def test_plain_weights_lower_for_each_platform_from_one_trace(ranks: int, on_cpu: str) -> None:
    traced = layer_on(ranks).trace(*operands())

    def lowered(*platforms: str) -> set[str]:
        return custom_calls(traced.lower(lowering_platforms=platforms).as_text())

    assert lowered("cpu") == {on_cpu}
    assert lowered("cuda") == {targets.SM100_LAYER}
    assert lowered("cpu", "cuda") == {on_cpu, targets.SM100_LAYER}
    assert lowered("tpu") == set()
    assert lowered("rocm") == set()


def test_xla_lowers_for_every_platform_without_a_custom_call_of_ours() -> None:
    traced = layer_on(1, implementation="xla").trace(*operands())
    text = traced.lower(lowering_platforms=("cpu", "cuda", "tpu")).as_text()
    assert "jax_megamoe." not in text.replace("jax_megamoe.prepare", "")


def test_sm100_call_holds_global_sizes_and_the_activation() -> None:
    traced = layer_on(4, swiglu_limit=7.0, swiglu_alpha=1.702, swiglu_beta=1.0).trace(*operands())
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    line = next(line for line in text.splitlines() if f"@{targets.SM100_LAYER}" in line)
    for attribute in (
        "num_ranks = 4 : i32",
        "swiglu_limit = 7.0",
        "swiglu_alpha = 1.702",
        "swiglu_beta = 1.0",
        "layout_version =",
    ):
        assert attribute in line, attribute
    assert "tensor<4x64xbf16>" in line  # T of this rank
    assert "tensor<2x" in line  # its experts


def test_target_names_are_public_and_stable() -> None:
    assert jax_megamoe.targets.TARGETS == (
        "jax_megamoe.cpu.moe",
        "jax_megamoe.cpu.rows",
        "jax_megamoe.sm100.moe",
    )


# --- jax.export -----------------------------------------------------------------------------------

RELOADED = """
import pathlib
import jax
import numpy as np
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from layer import mesh_of, small_case, tokens_of, weights_of

folder = pathlib.Path({folder!r})
exported = export.deserialize(bytearray((folder / "program").read_bytes()))
case = small_case()
weights = weights_of(case)
if {prepared}:
    weights = jax_megamoe.prepare_weights(weights, "cpu")
mesh = mesh_of(ep={ranks})
def put(tree, spec):
    return jax.device_put(tree, NamedSharding(mesh, spec))
tokens = put(tokens_of(case), P("ep"))
y = jax.jit(exported.call)(*tokens, put(weights, P("ep")))
np.save(folder / "result.npy", bits(np.asarray(y)))
"""


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_exported_cpu_program_runs_in_another_process(
    ranks: int, prepared: bool, tmp_path: Path, run_python: Any
) -> None:
    *tokens, weights = operands()
    if prepared:
        weights = jax_megamoe.prepare_weights(weights, "cpu")
    mesh = mesh_of(ep=ranks)
    placed = jax.device_put((*tokens, weights), NamedSharding(mesh, P("ep")))
    exported = export.export(layer_on(ranks), disabled_checks=CHECKS)(*placed)
    (tmp_path / "program").write_bytes(exported.serialize())
    code = RELOADED.format(folder=str(tmp_path), prepared=prepared, ranks=ranks)
    run_python(textwrap.dedent(code), devices=ranks)
    got = np.load(tmp_path / "result.npy")
    assert_as_on_one_device(got.view(jax.numpy.bfloat16), "cpu")


def test_exported_program_refuses_weights_of_another_layout_by_structure() -> None:
    *tokens, weights = operands()
    exported = export.export(layer_on(1), disabled_checks=CHECKS)(*tokens, weights)
    again = export.deserialize(exported.serialize())
    assert again.in_tree == exported.in_tree
    with pytest.raises(ValueError, match="PreparedWeights"):
        again.call(*tokens, jax_megamoe.prepare_weights(weights, "cpu"))


@pytest.mark.parametrize("platforms", [("cuda",), ("cpu", "cuda")])
def test_export_for_cuda_holds_the_custom_call(platforms: tuple[str, ...]) -> None:
    exported = export.export(layer_on(4), platforms=platforms, disabled_checks=CHECKS)(*operands())
    again = export.deserialize(exported.serialize())
    assert again.platforms == platforms
    want = {targets.SM100_LAYER} | ({targets.CPU_ROWS} if "cpu" in platforms else set())
    assert custom_calls(again.mlir_module()) == want


def test_export_without_our_names_is_refused_by_jax() -> None:
    # Why the names are public: jax does not let unknown custom calls pass.
    with pytest.raises(ValueError, match=r"jax_megamoe\.cpu\.moe"):
        export.export(layer_on(1))(*operands())


# --- the compilation cache ------------------------------------------------------------------------

CACHED = """
import logging
import jax
import numpy as np
import jax_megamoe
from contract import bits
from layer import mesh_of, small_case, tokens_of, weights_of

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_compilation_cache_dir", {folder!r})

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))

@jax.jit
def the_layer(x, idx, weight, weights):
    return jax_megamoe.expert_parallel(
        x, idx, weight, weights, axis_name="ep", mesh=mesh_of(ep=2), implementation="cpu"
    )

case = small_case()
arrays = (*tokens_of(case), weights_of(case))
jax.block_until_ready(arrays)
lowered = the_layer.lower(*arrays)
events.clear()
compiled = lowered.compile()
print("hits", events.count("/jax/compilation_cache/cache_hits"))
y = the_layer(*arrays)
np.save({folder!r} + "/result.npy", bits(np.asarray(y)))
"""


def test_compilation_cache_serves_a_second_process(tmp_path: Path, run_python: Any) -> None:
    code = CACHED.format(folder=str(tmp_path))
    assert "hits 0" in run_python(code, devices=2)
    first = np.load(tmp_path / "result.npy")
    assert any("the_layer" in path.name for path in tmp_path.iterdir())
    (tmp_path / "result.npy").unlink()
    assert "hits 1" in run_python(code, devices=2)
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), first)
    assert_as_on_one_device(first.view(jax.numpy.bfloat16), "cpu")

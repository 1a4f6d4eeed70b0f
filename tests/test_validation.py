"""Every refusal: that it is made, by the right error type, before others, and in words that say
argument, found, accepted and way out.

Through the public functions where that needs no particular device; where it does, with stand-ins
for devices, in a mesh that only the checks ever see.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from jax_megamoe import (
    ExpertWeights,
    MegaMoeConfig,
    PreparedWeights,
    _native,
    validation,
)
from jax_megamoe import weights as weights_module
from layer import assert_as_on_one_device, mesh_of, refused, small_case, tokens_of, weights_of

NVFP4 = ("NVFP4", "MXFP4", "quantize_fp4")


def arguments(**changes: Any) -> dict[str, Any]:
    """A valid call; names of arrays of the weights are replaced inside them."""
    case = small_case()
    x, topk_idx, topk_weights = tokens_of(case)
    weights = weights_of(case)
    fields = {f.name for f in dataclasses.fields(weights)} & changes.keys()
    replaced = {name: changes.pop(name) for name in fields}
    values = {"x": x, "topk_idx": topk_idx, "topk_weights": topk_weights, "axis_name": "ep"}
    return {**values, "weights": dataclasses.replace(weights, **replaced), **changes}


def split(changes: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments of a call."""
    values = {"implementation": "xla", **arguments(**changes)}
    return [values.pop(name) for name in ("x", "topk_idx", "topk_weights", "weights")], values


def computed(**changes: Any) -> Any:
    positional, values = split({"mesh": mesh_of(ep=1), "implementation": "cpu", **changes})
    return jax_megamoe.expert_parallel(*positional, **values)


def by_expert_parallel(**changes: Any) -> Any:
    """Traced only, the arrays being constants of the trace."""
    if "mesh" not in changes:
        changes["mesh"] = mesh_of(ep=4)
    positional, values = split(changes)
    return jax.eval_shape(lambda: jax_megamoe.expert_parallel(*positional, **values))


def by_mega_moe(**changes: Any) -> Any:
    """Traced only; the whole weights are each rank's."""
    positional, values = split(changes)

    def local(*arrays: Any) -> Any:
        return jax_megamoe.mega_moe(*arrays, **values)

    mapped = jax.shard_map(local, mesh=mesh_of(ep=4), in_specs=P(), out_specs=P(), check_vma=False)
    return jax.eval_shape(mapped, *positional)


def by_prepare_weights(**changes: Any) -> Any:
    return jax_megamoe.prepare_weights(arguments(**changes)["weights"], "xla")


Call = Callable[..., Any]
layer_calls = pytest.mark.parametrize("call", [by_expert_parallel, by_mega_moe])
weight_calls = pytest.mark.parametrize(
    "call", [by_expert_parallel, by_mega_moe, by_prepare_weights]
)


@weight_calls
def test_the_valid_call_passes(call: Call) -> None:
    call()


# --- devices --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Client:
    platform_version: str = "PJRT C API\ncuda 13000"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What the checks read of a device."""

    compute_capability: Any = "9.0"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    platform: str = "gpu"
    client: Any = _Client()
    id: int = 0
    process_index: int = 0
    num_cores: Any = None


@dataclasses.dataclass(frozen=True)
class GpuWithoutCapability:
    device_kind: str = "NVIDIA mystery"
    platform: str = "gpu"
    client: Any = _Client()
    id: int = 0
    process_index: int = 0
    num_cores: Any = None


def mesh_with(*devices: Any) -> Mesh:
    return Mesh(np.array(devices), ("ep",))


@pytest.mark.parametrize("capability", ["8.0", "9.0", "11.0", "12.0", "12.1", "100.0", "1.0"])
@pytest.mark.parametrize("implementation", [None, "sm100"])
def test_cuda_device_that_is_not_sm100_is_refused(
    capability: str, implementation: str | None
) -> None:
    mesh = mesh_with(Gpu(capability))
    words = ("SM100", f"capability {capability}.", "H100", 'implementation="xla"')
    with refused(NotImplementedError, *words):
        by_expert_parallel(mesh=mesh, implementation=implementation)


def test_one_wrong_device_among_right_ones_is_enough() -> None:
    mesh = mesh_with(Gpu("10.0"), Gpu("10.3", id=1), Gpu("12.0", "RTX 5090", id=2))
    with refused(NotImplementedError, "RTX 5090", "12.0"):
        by_expert_parallel(mesh=mesh, implementation=None)


@pytest.mark.parametrize("capability", ["10.0", "10.1", "10.3"])
@pytest.mark.parametrize("implementation", [None, "sm100"])
def test_sm100_devices_pass(capability: str, implementation: str | None) -> None:
    validation.check_devices([Gpu(capability), Gpu(capability, id=1)], implementation)


def test_device_without_a_capability_is_refused() -> None:
    with refused(NotImplementedError, "NVIDIA mystery", "no compute capability", "xla"):
        by_expert_parallel(mesh=mesh_with(GpuWithoutCapability()), implementation=None)


def test_other_devices_are_not_asked_for_a_capability() -> None:
    rocm = Gpu(platform="gpu", client=_Client("PJRT C API\nrocm 70000"))
    for device in (jax.devices()[0], rocm, Gpu(platform="tpu"), Gpu(platform="rocm")):
        validation.check_devices([device], None)


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
def test_other_implementations_run_on_any_cuda_device(implementation: str) -> None:
    validation.check_devices([Gpu("9.0")], implementation)


@pytest.mark.parametrize(
    ("device", "implementation"),
    [
        (Gpu(), "sm100"),
        (Gpu(platform="cuda"), "sm100"),
        (Gpu(platform="gpu", client=_Client("PJRT C API\nrocm 70000")), "xla"),
        (Gpu(platform="rocm"), "xla"),
        (Gpu(platform="tpu"), "xla"),
        (jax.devices()[0], "cpu"),
    ],
)
def test_none_means_the_implementation_of_the_device(
    device: Any, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert weights_module.implementation_of_device(device) == implementation
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    abstract = jax.eval_shape(lambda: weights_of(small_case()))
    assert weights_module.implementation_for(abstract) == implementation
    kind = jax.sharding.AbstractDevice(device.device_kind, None, platform=device.platform)
    mesh = AbstractMesh((4,), ("ep",), axis_types=(AxisType.Auto,), abstract_device=kind)
    with jax.sharding.use_abstract_mesh(mesh):
        assert weights_module.implementation_for(abstract) == implementation


def test_a_forced_instruction_set_that_is_not_here_is_refused_before_any_run(
    run_python: Any,
) -> None:
    code = """
import test_validation as t, jax, jax_megamoe
calls = {
    "cpu": lambda: t.by_expert_parallel(implementation="cpu"),
    "shard_map": lambda: t.by_mega_moe(implementation="cpu"),
    "module": lambda: jax_megamoe.MegaMoe(
        t.MegaMoeConfig(8, 64, 32, 3), implementation="cpu", weights=t.weights_of(t.small_case())),
    "by platform": lambda: jax.jit(lambda: t.computed(implementation=None)).lower(),
}
for name, call in calls.items():
    try: call()
    except ValueError as e: print(name, "REFUSED", e)
t.by_expert_parallel(implementation="xla")
"""
    output = run_python(code, devices=4, env={"JAX_MEGAMOE_CPU_PATH": "nonsense"})
    words = (
        f'JAX_MEGAMOE_CPU_PATH: found "nonsense", but this machine accepts: {_native.cpu_path()}'
    )
    assert output.count("REFUSED environment variable") == 4, output
    assert output.count(words) == 4, output


def test_cpu_mesh_on_a_host_with_an_h100_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_of(ep=4)
    monkeypatch.setattr(jax, "devices", lambda *_: [Gpu("9.0")])
    by_expert_parallel(mesh=mesh, implementation=None)
    with jax.set_mesh(mesh):
        by_expert_parallel(mesh=None, implementation=None)
    computed(mesh=mesh, implementation=None)


def test_h100_mesh_in_context_is_refused_and_xla_then_lowers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As inside jax.jit under jax.set_mesh: the mesh is abstract and names a kind of device.
    h100 = Gpu("9.0")
    device = jax.sharding.AbstractDevice(h100.device_kind, None, platform="gpu")
    mesh = AbstractMesh((4,), ("ep",), axis_types=(AxisType.Auto,), abstract_device=device)
    monkeypatch.setattr(jax, "devices", lambda *_: [h100])
    traced = jax.jit(
        lambda implementation: computed(mesh=None, implementation=implementation),
        static_argnums=0,
    )
    with jax.sharding.use_abstract_mesh(mesh):
        with refused(NotImplementedError, "H100", "9.0", 'implementation="xla"'):
            traced.trace(None)
        lowered = traced.trace("xla").lower(lowering_platforms=("cuda",))
    assert "jax_megamoe.sm100" not in lowered.as_text()


def test_sm100_in_a_build_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {**_native.build_info(), "sm100": False}
    monkeypatch.setattr(_native, "build_info", lambda: info)
    words = ("sm100", "built without", "pip install", 'implementation="xla"')
    with refused(NotImplementedError, *words):
        jax_megamoe.prepare_weights(weights_of(small_case()), "sm100")
    with refused(NotImplementedError, *words):
        by_expert_parallel(implementation="sm100")
    with refused(NotImplementedError, *words):
        by_expert_parallel(implementation=None, mesh=mesh_with(Gpu("10.0")))


@pytest.mark.parametrize(
    ("implementation", "platform", "other"), [("cpu", "cuda", "cpu"), ("sm100", "cpu", "cuda")]
)
def test_lowering_for_another_platform_is_refused(
    implementation: str, platform: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {**_native.build_info(), "sm100": True}
    monkeypatch.setattr(_native, "build_info", lambda: info)
    traced = jax.jit(lambda: computed(implementation=implementation)).trace()
    words = (f'implementation="{implementation}"', f"'{platform}'", f"'{other}'", "None", "xla")
    with refused(NotImplementedError, *words):
        traced.lower(lowering_platforms=(platform,))


@layer_calls
def test_unknown_implementation_is_refused_with_the_known_ones(call: Call) -> None:
    with refused(ValueError, "'triton'", "'sm100'", "'cpu'", "'xla'", "None"):
        call(implementation="triton")


# --- the order of the checks ----------------------------------------------------------------------


def test_checks_come_in_the_order_device_weights_axis_shapes() -> None:
    wrong = {
        "mesh": mesh_with(Gpu("9.0")),
        "gate_up_proj": jnp.zeros((8, 64, 32), jnp.bfloat16),
        "axis_name": "tp",
        "x": jnp.zeros((16, 32), jnp.float32),
        "implementation": None,
    }
    with refused(NotImplementedError, "SM100"):
        by_expert_parallel(**wrong)
    wrong["mesh"] = mesh_of(ep=4)
    with refused(NotImplementedError, "`int8`"):
        by_expert_parallel(**wrong)
    del wrong["gate_up_proj"]
    with refused(ValueError, "'tp'", "process group"):
        by_expert_parallel(**wrong)
    wrong["axis_name"] = "ep"
    with refused(TypeError, "x has dtype float32"):
        by_expert_parallel(**wrong)
    wrong["x"] = jnp.zeros((16, 32), jnp.bfloat16)
    with refused(ValueError, 32, 64):
        by_expert_parallel(**wrong)


def test_mega_moe_checks_weights_before_the_axis_and_the_axis_before_shapes() -> None:
    wrong = {"x": jnp.zeros((16, 32), jnp.bfloat16), "axis_name": "tp"}
    with refused(NotImplementedError, "`int8`"):
        by_mega_moe(**wrong, down_proj=jnp.zeros((8, 64, 16), jnp.float32))
    with refused(ValueError, "'tp'", "manual"):
        by_mega_moe(**wrong)


# --- weight types ---------------------------------------------------------------------------------


@weight_calls
@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize(
    ("dtype", "way_out"),
    [
        (jnp.bfloat16, ("quantize_fp4", "from_dense")),
        (jnp.float32, ("quantize_fp4", "from_dense")),
        (jnp.int32, ("quantize_fp4",)),
        (jnp.float8_e4m3fn, ("FP8", "quantize_fp4", "ragged_dot")),
        (jnp.float8_e5m2, ("FP8", "quantize_fp4", "ragged_dot")),
        (jnp.uint8, ("view(jnp.int8)",)),
    ],
)
def test_experts_that_are_not_int8_are_refused(
    call: Call, name: str, dtype: Any, way_out: tuple[str, ...]
) -> None:
    codes = getattr(weights_of(small_case()), name)
    words = ("FP4-packed", "dtype=`int8`", f"{name} has dtype {np.dtype(dtype)}", *way_out)
    with refused(NotImplementedError, *words):
        call(**{name: codes.astype(dtype)})


def test_uint8_and_float4_experts_become_int8_by_the_line_that_the_message_gives() -> None:
    weights = weights_of(small_case())
    as_float4 = jax.lax.bitcast_convert_type(weights.gate_up_proj, jnp.float4_e2m1fn)
    as_float4 = as_float4.reshape(8, 64, 64)
    for found in (
        weights.gate_up_proj.view(jnp.uint8),
        np.asarray(weights.gate_up_proj).view(np.uint8),
        as_float4,
        np.asarray(as_float4),  # one code a byte
    ):
        with pytest.raises(NotImplementedError) as caught:
            by_expert_parallel(gate_up_proj=found)
        line = re.search(r"gate_up_proj = \S+\)", str(caught.value))
        assert line, str(caught.value)
        names = {"jnp": jnp, "gate_up_proj": found}
        exec(line.group(), names)
        np.testing.assert_array_equal(names["gate_up_proj"], weights.gate_up_proj)


@weight_calls
@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
def test_nvfp4_is_recognised_by_its_scale_type(call: Call, name: str) -> None:
    scale = getattr(weights_of(small_case()), f"{name}_scale_inv")
    with refused(NotImplementedError, f"{name}_scale_inv", "float8_e4m3fn", *NVFP4):
        call(**{f"{name}_scale_inv": scale.astype(jnp.float8_e4m3fn)})


@weight_calls
def test_nvfp4_is_recognised_by_one_scale_per_sixteen(call: Call) -> None:
    with refused(NotImplementedError, "gate_up_proj_scale_inv", "4 scales", "k = 64", *NVFP4):
        call(gate_up_proj_scale_inv=jnp.zeros((8, 64, 4), jnp.uint8))


@weight_calls
@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.float8_e5m2]
)
@pytest.mark.parametrize("name", ["gate_up_proj_scale_inv", "down_proj_scale_inv"])
def test_scales_of_another_type_are_refused(call: Call, name: str, dtype: Any) -> None:
    scale = getattr(weights_of(small_case()), name)
    accepted = ("float8_e8m0fnu", "uint8", "float32", "int32")
    with refused(TypeError, f"{name} has dtype {np.dtype(dtype)};", *accepted):
        call(**{name: scale.astype(dtype)})


@weight_calls
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.int32, jnp.int8])
@pytest.mark.parametrize("name", ["gate_up_proj_bias", "down_proj_bias"])
def test_biases_of_another_type_are_refused(call: Call, name: str, dtype: Any) -> None:
    bias = jnp.zeros((8, 64), dtype)
    words = (f"{name} has dtype {np.dtype(dtype)}", "float32", "bfloat16", ".astype(jnp.float32)")
    with refused(TypeError, *words):
        call(**{name: bias})


# --- values of float32 scales ---------------------------------------------------------------------

NOT_POWERS = [3.0, 0.0, -1.0, -0.0, math.inf, -math.inf, math.nan, 1.0000001, 2.0**-128, 1.4e-45]


def float32_scales(value: float | None = None) -> np.ndarray:
    """Powers of two, the least and the largest among them; `value` at [2, 5, 1]."""
    scale = np.exp2(np.arange(8 * 64 * 2) % 255 - 127.0).astype(np.float32).reshape(8, 64, 2)
    if value is not None:
        scale[2, 5, 1] = value
    return scale


@pytest.mark.parametrize("call", [by_expert_parallel, computed, by_prepare_weights])
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("value", NOT_POWERS)
def test_concrete_float32_scale_that_is_no_power_of_two_is_refused(
    call: Call, convert: Callable[[Any], Any], value: float
) -> None:
    scale = convert(float32_scales(value))
    words = (
        "gate_up_proj_scale_inv[2, 5, 1]",
        np.float32(value),
        "2^-127",
        "2^127",
        "quantize_fp4",
    )
    with refused(ValueError, *words):
        call(gate_up_proj_scale_inv=scale)


def test_the_index_is_that_in_the_whole_array_of_a_sharded_one() -> None:
    scale = jax.device_put(float32_scales(3.0), jax.sharding.NamedSharding(mesh_of(ep=8), P("ep")))
    with refused(ValueError, "[2, 5, 1]", "3.0"):
        by_prepare_weights(gate_up_proj_scale_inv=scale)


def test_every_power_of_two_is_accepted_bit_for_bit() -> None:
    scale = float32_scales()
    want = (np.arange(8 * 64 * 2) % 255).astype(np.uint8).reshape(scale.shape)
    for given in (scale, jnp.asarray(scale)):
        prepared = by_prepare_weights(gate_up_proj_scale_inv=given)
        np.testing.assert_array_equal(prepared.gate_up_proj_scale_inv, want)


@pytest.mark.parametrize("value", NOT_POWERS)
def test_float32_scale_inside_a_trace_becomes_nan_and_is_never_rounded(value: float) -> None:
    weights = weights_of(small_case())

    @jax.jit
    def prepared_bytes(scale: jax.Array) -> jax.Array:
        changed = dataclasses.replace(weights, gate_up_proj_scale_inv=scale)
        return jax_megamoe.prepare_weights(changed, "xla").gate_up_proj_scale_inv

    given = np.asarray(prepared_bytes(float32_scales(value)))
    assert given[2, 5, 1] == 255
    np.testing.assert_array_equal(
        given.reshape(-1)[:256], np.asarray(prepared_bytes(float32_scales())).reshape(-1)[:256]
    )


def test_float32_scale_inside_a_trace_reaches_only_tokens_of_its_expert() -> None:
    case = small_case()
    scale = np.exp2(case.weights["gate_up_proj_scale_inv"].astype(np.float32) - 127)
    scale[2, 5, 1] = 3.0

    @jax.jit
    def layer(scale: Any) -> Any:
        return computed(gate_up_proj_scale_inv=scale)

    y = np.asarray(layer(scale)).astype(np.float32)
    routed = (case.topk_idx == 2).any(1)
    assert routed.any() and not routed.all()
    np.testing.assert_array_equal(np.isnan(y).all(1), routed)
    np.testing.assert_array_equal(np.isnan(y).any(1), routed)


# --- the axis -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis_name", [None, "", (), ("ep", None), 3])
@layer_calls
def test_no_axis_is_refused(call: Call, axis_name: Any) -> None:
    words = ("axis_name", "process group", 'axis_name="ep"', "jax.make_mesh")
    with refused(ValueError, *words):
        call(axis_name=axis_name)


def test_axis_that_the_mesh_has_not_is_refused() -> None:
    with refused(ValueError, "'expert'", "'ep'", "process group", "mesh"):
        by_expert_parallel(axis_name="expert")
    with refused(ValueError, "'tp'", "'ep'"):
        by_expert_parallel(axis_name=("ep", "tp"))


def test_no_mesh_at_all_is_refused() -> None:
    words = ("no mesh", "'ep'", "process group", "mesh=", "jax.set_mesh")
    with refused(ValueError, *words):
        by_expert_parallel(mesh=None)
    with refused(ValueError, *words):
        computed(mesh=None)


def test_mega_moe_outside_its_shard_map_is_refused() -> None:
    positional, _ = split({})
    for context in (mesh_of(ep=4), mesh_of("Explicit", ep=4)):
        with (
            jax.set_mesh(context),
            refused(ValueError, "'ep'", "manual", "jax.shard_map", "expert_parallel"),
        ):
            jax_megamoe.mega_moe(*positional, axis_name="ep", implementation="xla")


def test_experts_axes_that_are_manual_in_part_are_refused() -> None:
    mesh = mesh_of(data=2, ep=4)
    positional, _ = split({})

    def local(*arrays: Any) -> Any:
        return jax_megamoe.expert_parallel(*arrays, axis_name=("data", "ep"))

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"data"})
    with refused(ValueError, "('data', 'ep')", "('data',)", "manual"):
        jax.eval_shape(mapped, *positional)


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_experts_that_do_not_divide_over_the_ranks_are_refused(ranks: int) -> None:
    with refused(ValueError, "E = 8", f"{ranks} ranks", "'ep'"):
        by_expert_parallel(mesh=mesh_of(ep=ranks))


# --- shapes of weights ----------------------------------------------------------------------------


def zeros(hidden: int, intermediate: int, experts: int = 8) -> dict[str, Any]:
    return {
        "gate_up_proj": jnp.zeros((experts, 2 * intermediate, hidden // 2), jnp.int8),
        "gate_up_proj_scale_inv": jnp.zeros((experts, 2 * intermediate, hidden // 32), jnp.uint8),
        "down_proj": jnp.zeros((experts, hidden, intermediate // 2), jnp.int8),
        "down_proj_scale_inv": jnp.zeros((experts, hidden, intermediate // 32), jnp.uint8),
    }


@weight_calls
@pytest.mark.parametrize(
    ("hidden", "intermediate", "words"),
    [
        (48, 32, ("H (hidden size) is 48", 32)),
        (64, 40, ("I (intermediate size) is 40", 32)),
        (0, 32, ("H (hidden size) is 0", 32)),
        (64, 0, ("I (intermediate size) is 0", 32)),
    ],
)
def test_sizes_that_are_no_multiple_of_32_are_refused(
    call: Call, hidden: int, intermediate: int, words: tuple[Any, ...]
) -> None:
    with refused(ValueError, *words):
        call(**zeros(hidden, intermediate))


@weight_calls
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gate_up_proj": (8, 63, 32)}, ("gate_up_proj has 63 rows", "even")),
        ({"gate_up_proj": (64, 32)}, ("gate_up_proj has 2 axes", "3 are accepted")),
        ({"down_proj": (8, 64, 16, 1)}, ("down_proj has 4 axes", "3 are accepted")),
        ({"down_proj": (8, 96, 16)}, ("down_proj", (8, 96, 16), (8, 64, 16), "H = 64")),
        ({"down_proj": (8, 64, 32)}, ("down_proj", (8, 64, 32), (8, 64, 16), "I = 32")),
        ({"down_proj": (4, 64, 16)}, ("down_proj", (4, 64, 16), (8, 64, 16))),
        (
            {"gate_up_proj_scale_inv": (8, 64, 3)},
            ("gate_up_proj_scale_inv", (8, 64, 3), (8, 64, 2)),
        ),
        (
            {"gate_up_proj_scale_inv": (4, 64, 2)},
            ("gate_up_proj_scale_inv", (4, 64, 2), (8, 64, 2)),
        ),
        ({"down_proj_scale_inv": (8, 32, 1)}, ("down_proj_scale_inv", (8, 32, 1), (8, 64, 1))),
        ({"gate_up_proj_bias": (8, 32)}, ("gate_up_proj_bias", (8, 32), (8, 64))),
        ({"down_proj_bias": (64,)}, ("down_proj_bias", (64,), (8, 64))),
    ],
)
def test_weights_of_mismatched_shapes_are_refused(
    call: Call, changes: dict[str, tuple[int, ...]], words: tuple[Any, ...]
) -> None:
    dtypes = {"scale_inv": jnp.uint8, "proj": jnp.int8, "bias": jnp.float32}
    arrays = {
        name: jnp.zeros(shape, next(d for end, d in dtypes.items() if name.endswith(end)))
        for name, shape in changes.items()
    }
    with refused(ValueError, *words):
        call(**arrays)


@weight_calls
def test_packed_scales_of_the_wrong_length_are_refused(call: Call) -> None:
    with refused(ValueError, "gate_up_proj_scale_inv", (8, 64, 2), (8, 64, 1)):
        call(gate_up_proj_scale_inv=jnp.zeros((8, 64, 2), jnp.int32))


# --- what are no arrays, no weights ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["x", "topk_idx", "topk_weights", "gate_up_proj", "down_proj_bias"]
)
@pytest.mark.parametrize("value", [[[1, 2], [3, 4]], "text", 3])
def test_values_that_are_no_arrays_are_refused(name: str, value: Any) -> None:
    with refused(TypeError, validation.a_type(value), f"jnp.asarray({name})"):
        by_expert_parallel(**{name: value})


def test_types_have_their_article() -> None:
    assert validation.a_type([]) == "a list" and validation.a_type(None) == "a NoneType"
    assert validation.a_type(3) == "an int"
    assert validation.a_type(weights_of(small_case())) == "an ExpertWeights"


@layer_calls
def test_weights_of_another_class_are_refused(call: Call) -> None:
    with refused(TypeError, "weights is a dict", "ExpertWeights", "PreparedWeights"):
        call(weights={"gate_up_proj": jnp.zeros((8, 64, 32), jnp.int8)})


def test_preparing_another_class_is_refused() -> None:
    with refused(TypeError, "weights is a tuple", "ExpertWeights"):
        jax_megamoe.prepare_weights((1, 2, 3, 4), "xla")
    with refused(TypeError, "weights is an ExpertWeights", "PreparedWeights"):
        jax_megamoe.unprepare_weights(weights_of(small_case()))


# --- prepared weights -----------------------------------------------------------------------------


def prepared(**changes: Any) -> PreparedWeights:
    weights = jax_megamoe.prepare_weights(weights_of(small_case()), "xla")
    return dataclasses.replace(weights, **changes)


def test_preparing_twice_is_refused() -> None:
    for implementation in (None, "xla", "cpu"):
        with refused(ValueError, "already prepared", "'xla'", "unprepare_weights"):
            jax_megamoe.prepare_weights(prepared(), implementation)
        with refused(ValueError, "already prepared", "'xla'", "unprepare_weights"):
            jax_megamoe.prepare_expert(prepared(), implementation or "xla")


@layer_calls
def test_weights_prepared_for_another_implementation_are_refused(call: Call) -> None:
    words = (
        "implementation is 'cpu'",
        "prepared for 'xla'",
        "unprepare_weights",
        "prepare_weights",
    )
    with refused(ValueError, *words):
        call(weights=prepared(), implementation="cpu")
    call(weights=prepared(), implementation=None)
    call(weights=prepared(), implementation="xla")


@pytest.mark.parametrize(
    "call",
    [by_expert_parallel, by_mega_moe, lambda weights: jax_megamoe.unprepare_weights(weights)],
)
def test_weights_of_another_layout_version_are_refused(call: Call) -> None:
    current = prepared().layout_version
    old = prepared(layout_version=current + 7)
    with refused(
        ValueError, f"version {current + 7}", f"version {current}", "'xla'", "Prepare again"
    ):
        call(weights=old)


@layer_calls
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "error"),
    [
        ("down_proj", (4, 64, 16), jnp.int8, ValueError),
        ("down_proj_scale_inv", (8, 64, 3), jnp.uint8, ValueError),
        ("gate_up_proj_scale_inv", (8, 64, 2), jnp.float32, TypeError),
        ("down_proj_bias", (8, 32), jnp.float32, ValueError),
        ("gate_up_proj_bias", (8, 64), jnp.float16, TypeError),
        ("gate_up_proj", (8, 64, 32), jnp.uint8, NotImplementedError),
    ],
)
def test_prepared_arrays_that_do_not_fit_their_layout_are_refused(
    call: Call, name: str, shape: tuple[int, ...], dtype: Any, error: type[Exception]
) -> None:
    found = shape if error is ValueError else np.dtype(dtype)
    with refused(error, name, found):
        call(weights=prepared(**{name: jnp.zeros(shape, dtype)}))


@layer_calls
def test_prepared_weights_made_by_hand_are_refused_in_words(call: Call) -> None:
    with refused(ValueError, "implementation is 'mlx'", "'sm100', 'cpu', 'xla'"):
        call(weights=prepared(implementation="mlx"))
    for name, letter in (("hidden_size", "H"), ("intermediate_size", "I")):
        with refused(ValueError, f"{letter} (", "48 in PreparedWeights", "multiple of 32"):
            call(weights=prepared(**{name: 48}))


# --- tokens ---------------------------------------------------------------------------------------


@layer_calls
@pytest.mark.parametrize("name", ["x", "topk_idx", "topk_weights"])
def test_token_arrays_of_another_type_are_refused_with_the_cast_to_use(
    call: Call, name: str
) -> None:
    wrong = {
        "x": (jnp.float32, jnp.float16, jnp.int8, jnp.float8_e4m3fn),
        "topk_idx": (jnp.float32, jnp.uint32, jnp.int8, jnp.int16, jnp.bool_),
        "topk_weights": (jnp.int32, jnp.float8_e4m3fn, jnp.bool_),
    }
    accepted = {
        "x": ("bfloat16",),
        "topk_idx": ("int32", "int64"),
        "topk_weights": ("float32", "bfloat16", "float16"),
    }
    valid = arguments()[name]
    for dtype in wrong[name]:
        value = valid.astype(dtype)
        with pytest.raises(TypeError) as caught:
            call(**{name: value})
        message = str(caught.value)
        assert f"{name} has dtype {np.dtype(dtype)};" in message
        assert all(word in message for word in accepted[name]), message
        line = re.search(rf"{name}\.astype\(jnp\.\w+\)", message)
        assert line, message
        cast = eval(line.group(), {"jnp": jnp, name: value})
        call(**{name: cast})


@layer_calls
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": (16, 96)}, ("H = 96", "H = 64")),
        ({"x": (15, 64)}, ("topk_idx", "(16,)", "(15,)")),
        ({"topk_idx": (17, 3), "topk_weights": (17, 3)}, ("(17,)", "(16,)")),
        ({"topk_weights": (16, 4)}, ("topk_idx", (16, 3), "topk_weights", (16, 4))),
        ({"topk_idx": (16, 33), "topk_weights": (16, 33)}, ("K = 33", 32)),
        ({"topk_idx": (16, 0), "topk_weights": (16, 0)}, ("K = 0", "1 to 32")),
        ({"x": (64,)}, ("x has shape (64,)", "two axes")),
        ({"topk_idx": (16,), "topk_weights": (16,)}, ("topk_idx has shape (16,)", "two axes")),
    ],
)
def test_tokens_of_mismatched_shapes_are_refused(
    call: Call, changes: dict[str, tuple[int, ...]], words: tuple[Any, ...]
) -> None:
    dtypes = {"x": jnp.bfloat16, "topk_idx": jnp.int32, "topk_weights": jnp.float32}
    with refused(ValueError, *words):
        call(**{name: jnp.zeros(shape, dtypes[name]) for name, shape in changes.items()})


def test_slots_are_those_of_a_layers_config_where_there_is_one() -> None:
    x, idx, weight = tokens_of(small_case())
    validation.check_tokens(x, idx, weight, 64, num_slots=3)
    with refused(ValueError, "K = 3", "num_experts_per_tok = 4"):
        validation.check_tokens(x, idx, weight, 64, num_slots=4)


def test_thirty_two_slots_are_accepted() -> None:
    slots = {"topk_idx": jnp.zeros((16, 32), jnp.int32), "topk_weights": jnp.ones((16, 32))}
    by_mega_moe(**slots)


# --- the activation -------------------------------------------------------------------------------


@layer_calls
@pytest.mark.parametrize("limit", [-1.0, -1e-30, math.nan, np.float32(-7), -math.inf])
def test_negative_and_nan_limits_are_refused(call: Call, limit: float) -> None:
    with refused(ValueError, f"swiglu_limit is {limit}", ">= 0", "None"):
        call(swiglu_limit=limit)
    with refused(ValueError, f"swiglu_limit is {limit}", ">= 0", "None"):
        MegaMoeConfig(8, 64, 32, 3, swiglu_limit=limit)


@layer_calls
@pytest.mark.parametrize("name", ["swiglu_alpha", "swiglu_beta"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
def test_alpha_and_beta_that_float32_does_not_hold_are_refused(
    call: Call, name: str, value: float
) -> None:
    with refused(ValueError, f"{name} is {value}", "finite"):
        call(**{name: value})


@layer_calls
@pytest.mark.parametrize("name", ["swiglu_limit", "swiglu_alpha", "swiglu_beta"])
def test_activation_parameters_that_are_no_numbers_are_refused(call: Call, name: str) -> None:
    with refused(TypeError, f"{name} is a str", "number"):
        call(**{name: "7"})
    with refused(TypeError, name, "traced", "static"):
        jax.eval_shape(lambda value: call(**{name: value}), jnp.float32(1))


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "situ", "relu2", "SiTU", ""])
def test_other_activations_are_refused_by_name(name: str) -> None:
    with refused(NotImplementedError, repr(name), "SwiGLU", "swiglu_alpha", "never"):
        MegaMoeConfig(8, 64, 32, 3, hidden_act=name)


@pytest.mark.parametrize("name", ["silu", "swiglu", "swish"])
def test_names_of_swiglu_are_accepted(name: str) -> None:
    MegaMoeConfig(8, 64, 32, 3, hidden_act=name)


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64, np.int32, int, float])
def test_numbers_may_be_numpy_scalars(number: Any) -> None:
    want = computed(swiglu_limit=7.0, swiglu_alpha=2.0, swiglu_beta=1.0)
    got = computed(swiglu_limit=number(7), swiglu_alpha=number(2), swiglu_beta=number(1))
    np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(want)))
    integer = number if issubclass(number, (int, np.integer)) else np.int64
    config = MegaMoeConfig(integer(8), integer(64), integer(32), integer(3), number(7))
    assert config == MegaMoeConfig(8, 64, 32, 3, 7.0)
    assert hash(config) == hash(MegaMoeConfig(8, 64, 32, 3, 7.0))


def test_limit_beyond_float32_is_none() -> None:
    assert_as_on_one_device(computed(swiglu_limit=1e39), "cpu")


# --- MegaMoeConfig --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 64, 32, 3), ("num_experts is 0", "1")),
        ((8, 48, 32, 3), ("H (hidden size) is 48", "32")),
        ((8, 64, 40, 3), ("I (intermediate size) is 40", "32")),
        ((8, -32, 32, 3), ("H (hidden size) is -32", "32")),
        ((8, 64, 32, 0), ("num_experts_per_tok is 0", "1 to 32")),
        ((8, 64, 32, 33), ("num_experts_per_tok is 33", "1 to 32")),
    ],
)
def test_config_of_impossible_sizes_is_refused(
    sizes: tuple[int, int, int, int], words: tuple[str, ...]
) -> None:
    with refused(ValueError, *words):
        MegaMoeConfig(*sizes)


@pytest.mark.parametrize("position", range(4))
def test_config_sizes_that_are_no_integers_are_refused(position: int) -> None:
    sizes: list[Any] = [8, 64, 32, 3]
    sizes[position] = float(sizes[position])
    with refused(TypeError, f"is {sizes[position]}", "float", "integer"):
        MegaMoeConfig(*sizes)


def test_weight_classes_never_validate() -> None:
    # Transformations put anything into the leaves.
    ExpertWeights(None, "spec", 3, object())
    PreparedWeights(
        *(None,) * 6,
        implementation="no such",
        layout_version=-1,
        hidden_size=1,
        intermediate_size=0,
    )


def test_scales_of_ml_dtypes_on_the_host_are_accepted() -> None:
    weights = weights_of(small_case())
    for name in ("gate_up_proj_scale_inv", "down_proj_scale_inv"):
        scale = np.asarray(getattr(weights, name)).view(ml_dtypes.float8_e8m0fnu)
        assert_as_on_one_device(computed(**{name: scale}), "cpu")


@pytest.mark.parametrize("mesh", [4, jax.devices()])
def test_what_is_no_mesh_is_refused(mesh: Any) -> None:
    with refused(TypeError, f"mesh has type {type(mesh).__name__}", "jax.make_mesh"):
        by_expert_parallel(mesh=mesh)


def test_another_mesh_than_the_one_in_context_is_refused() -> None:
    with (
        jax.set_mesh(mesh_of(ep=8)),
        refused(ValueError, "'ep': 1", "'ep': 8", "jax.set_mesh", "mesh=None"),
    ):
        by_expert_parallel(mesh=mesh_of(ep=1))


def test_an_axis_named_twice_is_refused() -> None:
    with refused(ValueError, "('ep', 'ep')", "twice"):
        by_expert_parallel(axis_name=("ep", "ep"))


def test_transposed_weights_are_refused_with_their_shape() -> None:
    codes = jnp.asarray(arguments()["weights"].gate_up_proj)
    shape = (codes.shape[0], codes.shape[2], 30)
    with refused(ValueError, "gate_up_proj", "[E, 2I, H/2]"):
        by_expert_parallel(gate_up_proj=jnp.zeros(shape, jnp.int8))


def test_unpacked_int32_scales_are_refused_with_the_packing() -> None:
    scale = jnp.asarray(arguments()["weights"].gate_up_proj_scale_inv).view(jnp.uint8)
    with refused(ValueError, "gate_up_proj_scale_inv", "four packed in an int32", "jnp.uint8"):
        by_expert_parallel(gate_up_proj_scale_inv=scale.astype(jnp.int32))


def test_modules_refuse_another_config_or_rngs() -> None:
    from flax import nnx

    with refused(TypeError, "config has type dict", "MegaMoeConfig("):
        jax_megamoe.MegaMoe({}, rngs=nnx.Rngs(0))  # type: ignore[arg-type]
    with refused(TypeError, "rngs has type int", "nnx.Rngs(0)"):
        jax_megamoe.MegaMoe(MegaMoeConfig(4, 64, 32, 2), rngs=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, [1.0, 2.0], "text", object()])
def test_what_is_no_array_is_neither_quantised_nor_dequantised(value: Any) -> None:
    codes, scale = jnp.zeros((4, 32), jnp.int8), jnp.zeros((4, 2), jnp.uint8)
    q = jnp.zeros((4, 64), jnp.float8_e4m3fn)
    found = validation.a_type(value)
    for quantise in (jax_megamoe.quantize_fp4, jax_megamoe.quantize_fp8):
        with refused(TypeError, f"x is {found}", "JAX or NumPy array"):
            quantise(value)
    for name, dequantise, good in (
        ("codes", jax_megamoe.dequantize_fp4, codes),
        ("q", jax_megamoe.dequantize_fp8, q),
    ):
        with refused(TypeError, f"{name} is {found}", "JAX or NumPy array"):
            dequantise(value, scale)
        with refused(TypeError, f"scale is {found}", "JAX or NumPy array"):
            dequantise(good, value)


def test_codes_and_scales_of_other_types_are_not_dequantised() -> None:
    floats, scale = jnp.zeros((4, 64)), jnp.zeros((4, 2), jnp.uint8)
    with refused(TypeError, "codes has dtype float32", "int8 and uint8"):
        jax_megamoe.dequantize_fp4(floats, scale)
    with refused(TypeError, "q has dtype float32", "float8_e4m3fn"):
        jax_megamoe.dequantize_fp8(floats, scale)
    with refused(TypeError, "scale has dtype bfloat16", "uint8"):
        jax_megamoe.dequantize_fp8(floats.astype(jnp.float8_e4m3fn), scale.astype(jnp.bfloat16))
    with refused(ValueError, "scale has no axes"):
        jax_megamoe.dequantize_fp4(jnp.zeros((4, 32), jnp.int8), jnp.uint8(127))


def test_scales_of_another_shape_are_not_dequantised() -> None:
    with refused(ValueError, "(4, 3)", "(4, 64)", "32 values"):
        jax_megamoe.dequantize_fp4(jnp.zeros((4, 32), jnp.int8), jnp.zeros((4, 3), jnp.uint8))


def test_truth_values_are_no_numbers() -> None:
    with refused(TypeError, "num_experts is True", "integer"):
        MegaMoeConfig(True, 64, 32, 1)
    with refused(TypeError, "swiglu_limit is a bool"):
        by_expert_parallel(swiglu_limit=True)

"""ExpertWeights and PreparedWeights as pytrees; preparation: where it runs, and its inverse.

What the layouts' bytes mean is tested with the kernels that read them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from data import random_case
from jax_megamoe import ExpertWeights, PreparedWeights
from layer import IMPLEMENTATIONS, mesh_of, refused, small_case, tokens_of, weights_of

implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
SCALES = ("gate_up_proj_scale_inv", "down_proj_scale_inv")


@functools.cache
def host_weights(bias: bool = False) -> ExpertWeights:
    """8 experts, H 192 (so that int32 scales hold padding bytes), I 128; every scale byte."""
    weights = random_case(1, experts=8, hidden=192, intermediate=128, bias=bias).weights
    for name in SCALES:
        size = weights[name].size
        weights[name] = (np.arange(size) * 7 % 256).astype(np.uint8).reshape(weights[name].shape)
    return ExpertWeights(**weights)


def forms_of(scale: np.ndarray) -> dict[str, np.ndarray]:
    """The four accepted forms of scale bytes; float32 has no 255 here, which is refused."""
    padding = -scale.shape[-1] % 4
    padded = np.pad(scale, [(0, 0)] * (scale.ndim - 1) + [(0, padding)], constant_values=77)
    with np.errstate(over="ignore"):
        powers = np.ldexp(np.float32(1), scale.astype(np.int32) - 127).astype(np.float32)
    return {
        "uint8": scale,
        "float8_e8m0fnu": scale.view(ml_dtypes.float8_e8m0fnu),
        "float32": powers,
        "int32": np.ascontiguousarray(padded).view(np.int32),
    }


def in_form(weights: ExpertWeights, form: str) -> ExpertWeights:
    scales = {name: forms_of(getattr(weights, name))[form] for name in SCALES}
    return dataclasses.replace(weights, **scales)


def without_nan_scales(weights: ExpertWeights) -> ExpertWeights:
    scales = {name: np.minimum(getattr(weights, name), 254) for name in SCALES}
    return dataclasses.replace(weights, **scales)


def as_jax(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def as_bytes(array: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array)).view(np.uint8)


def assert_same_bytes(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for name in (f.name for f in dataclasses.fields(want)):
        a, b = getattr(got, name), getattr(want, name)
        if hasattr(a, "dtype"):
            assert a.dtype == b.dtype and a.shape == b.shape, name
            np.testing.assert_array_equal(as_bytes(a), as_bytes(b), err_msg=name)


# --- preparation and its inverse ------------------------------------------------------------------


@implementations
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["uint8", "float8_e8m0fnu", "float32", "int32"])
def test_unprepare_gives_back_every_byte_in_every_scale_form(
    implementation: str, form: str, bias: bool
) -> None:
    weights = host_weights(bias)
    if form == "float32":
        weights = without_nan_scales(weights)
    prepared = jax_megamoe.prepare_weights(as_jax(in_form(weights, form)), implementation)
    back = jax_megamoe.unprepare_weights(prepared)
    assert_same_bytes(back, as_jax(in_form(weights, "float8_e8m0fnu")))


@implementations
def test_the_four_scale_forms_prepare_to_the_same_bytes(implementation: str) -> None:
    weights = without_nan_scales(host_weights())
    want = jax_megamoe.prepare_weights(as_jax(weights), implementation)
    for form in ("float8_e8m0fnu", "float32", "int32"):
        for convert in (as_jax, lambda tree: tree):
            given = convert(in_form(weights, form))
            assert_same_bytes(jax_megamoe.prepare_weights(given, implementation), want)


@implementations
@pytest.mark.parametrize("form", ["uint8", "float8_e8m0fnu", "float32", "int32"])
def test_one_expert_alone_gives_its_part_on_numpy_and_on_jax(
    implementation: str, form: str
) -> None:
    weights = without_nan_scales(host_weights(bias=True))
    whole = jax_megamoe.prepare_weights(as_jax(weights), implementation)
    for e in (0, 5):
        expert = jax.tree.map(lambda leaf, e=e: leaf[e], in_form(weights, form))
        want = jax.tree.map(lambda leaf, e=e: np.asarray(leaf[e]), whole)
        on_host = jax_megamoe.prepare_expert(expert, implementation)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(on_host))
        assert_same_bytes(on_host, want)
        on_device = jax_megamoe.prepare_expert(as_jax(expert), implementation)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(on_device))
        assert_same_bytes(on_device, want)


def test_one_expert_has_no_expert_axis() -> None:
    with refused(ValueError, "gate_up_proj has 3 axes", "2 are accepted"):
        jax_megamoe.prepare_expert(host_weights(), "xla")


@implementations
def test_prepared_weights_say_what_they_are(implementation: str) -> None:
    prepared = jax_megamoe.prepare_weights(as_jax(host_weights()), implementation)
    assert prepared.implementation == implementation
    assert (prepared.hidden_size, prepared.intermediate_size) == (192, 128)
    assert prepared.gate_up_proj.dtype == jnp.int8
    assert prepared.gate_up_proj_scale_inv.dtype == jnp.uint8
    assert prepared.gate_up_proj.shape[0] == prepared.down_proj_scale_inv.shape[0] == 8
    assert prepared.gate_up_proj_bias is None and prepared.down_proj_bias is None


def test_preparation_moves_bytes_for_cpu() -> None:
    # Otherwise the tests of the inverse would prove nothing.
    weights = as_jax(host_weights())
    prepared = jax_megamoe.prepare_weights(weights, "cpu")
    assert not np.array_equal(
        np.asarray(prepared.gate_up_proj).reshape(-1), np.asarray(weights.gate_up_proj).reshape(-1)
    )


@implementations
def test_preparation_is_jittable(implementation: str) -> None:
    weights = as_jax(host_weights(bias=True))
    prepare = functools.partial(jax_megamoe.prepare_weights, implementation=implementation)
    prepared = jax.jit(prepare)(weights)
    assert_same_bytes(prepared, prepare(weights))
    assert_same_bytes(
        jax.jit(jax_megamoe.unprepare_weights)(prepared), jax_megamoe.unprepare_weights(prepared)
    )


COLLECTIVE = re.compile(r"(all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)")


@implementations
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_sharded_experts_are_prepared_where_they_lie(implementation: str, kind: str) -> None:
    mesh = mesh_of(kind, ep=8)
    experts = NamedSharding(mesh, P("ep"))
    weights = jax.device_put(as_jax(host_weights(bias=True)), experts)
    prepare = functools.partial(jax_megamoe.prepare_weights, implementation=implementation)
    with jax.set_mesh(mesh):
        for there in (jax.jit(prepare), prepare):
            prepared = there(weights)
            for leaf in jax.tree.leaves(prepared):
                assert leaf.sharding.is_equivalent_to(experts, leaf.ndim)
        back = jax.jit(jax_megamoe.unprepare_weights)(prepared)
        for leaf in jax.tree.leaves(back):
            assert leaf.sharding.is_equivalent_to(experts, leaf.ndim)
        programs = [
            jax.jit(prepare).lower(weights).compile().as_text(),
            jax.jit(jax_megamoe.unprepare_weights).lower(prepared).compile().as_text(),
        ]
    assert not any(COLLECTIVE.search(program) for program in programs)
    assert_same_bytes(
        jax.device_get(prepared), jax.device_get(prepare(as_jax(host_weights(bias=True))))
    )


# --- implementation=None --------------------------------------------------------------------------


def test_none_is_the_platform_of_the_arrays() -> None:
    assert jax_megamoe.prepare_weights(as_jax(host_weights())).implementation == "cpu"
    assert jax_megamoe.prepare_weights(host_weights()).implementation == "cpu"


def resolved_in(mesh: Any) -> str:
    shapes = jax.eval_shape(lambda: as_jax(host_weights()))
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.eval_shape(jax_megamoe.prepare_weights, shapes).implementation


@pytest.mark.parametrize(
    ("platform", "implementation"), [("tpu", "xla"), ("rocm", "xla"), ("cpu", "cpu")]
)
def test_none_inside_a_trace_is_the_platform_of_the_mesh_in_context(
    platform: str, implementation: str
) -> None:
    device = jax.sharding.AbstractDevice("some kind", None, platform=platform)
    mesh = jax.sharding.AbstractMesh(
        (8,), ("ep",), (jax.sharding.AxisType.Auto,), abstract_device=device
    )
    assert resolved_in(mesh) == implementation


def test_none_inside_a_trace_without_a_mesh_is_the_default_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = jax.eval_shape(lambda: as_jax(host_weights()))
    for platform, implementation in (("cpu", "cpu"), ("tpu", "xla")):
        device = types.SimpleNamespace(platform=platform)
        monkeypatch.setattr(jax, "devices", lambda device=device: [device])
        # A new function each time, since jax keeps what it has traced.
        prepared = jax.eval_shape(lambda w: jax_megamoe.prepare_weights(w), shapes)
        assert prepared.implementation == implementation


# --- pytrees --------------------------------------------------------------------------------------


def both_classes(bias: bool = False) -> tuple[ExpertWeights, PreparedWeights]:
    weights = as_jax(host_weights(bias))
    return weights, jax_megamoe.prepare_weights(weights, "xla")


@pytest.mark.parametrize("bias", [False, True])
def test_map_to_none_specs_and_shardings_and_back(bias: bool) -> None:
    mesh = mesh_of(ep=8)
    for weights in both_classes(bias):
        count = 6 if bias else 4
        assert len(jax.tree.leaves(weights)) == count
        for leaf in (None, P("ep"), NamedSharding(mesh, P("ep")), "anything", 3):
            mapped = jax.tree.map(lambda _, leaf=leaf: leaf, weights)
            assert type(mapped) is type(weights)
            assert mapped.gate_up_proj == leaf
        specs = jax.tree.map(lambda _: P("ep"), weights)
        assert len(jax.tree.leaves(specs)) == count
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(weights)]
        assert ".gate_up_proj" in paths and ".down_proj_scale_inv" in paths
        leaves, treedef = jax.tree.flatten(weights)
        assert_same_bytes(jax.tree.unflatten(treedef, leaves), weights)


def test_static_fields_belong_to_the_structure() -> None:
    prepared = both_classes()[1]
    other = dataclasses.replace(prepared, layout_version=99)
    assert jax.tree.structure(prepared) != jax.tree.structure(other)
    mapped = jax.tree.map(lambda leaf: leaf, prepared)
    assert (mapped.implementation, mapped.hidden_size) == ("xla", 192)


def test_device_put_and_shardings_by_tree() -> None:
    mesh = mesh_of(ep=8)
    for weights in both_classes(bias=True):
        shardings = jax.tree.map(lambda _: NamedSharding(mesh, P("ep")), weights)
        placed = jax.device_put(weights, shardings)
        assert type(placed) is type(weights)
        assert all(len(leaf.addressable_shards) == 8 for leaf in jax.tree.leaves(placed))
        sharded = jax.jit(lambda w: w, in_shardings=(shardings,), out_shardings=shardings)(placed)
        assert_same_bytes(jax.device_get(sharded), jax.device_get(weights))


def test_jit_takes_and_returns_them() -> None:
    for weights in both_classes(bias=True):
        assert_same_bytes(jax.jit(lambda w: w)(weights), weights)
        shapes = jax.eval_shape(lambda w: w, weights)
        assert type(shapes) is type(weights)
        assert shapes.gate_up_proj.shape == weights.gate_up_proj.shape


def test_donation_frees_every_array() -> None:
    for weights in both_classes(bias=True):
        mine = jax.tree.map(jnp.copy, weights)
        result = jax.jit(lambda w: w, donate_argnums=0)(mine)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(mine))
        assert_same_bytes(result, weights)


def test_vmap_in_axes_by_tree_and_by_number() -> None:
    for weights in both_classes(bias=True):
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), weights)
        axes = jax.tree.map(lambda _: 0, weights)
        for in_axes in (0, axes):
            first = jax.vmap(lambda w: w, in_axes=(in_axes,))(stacked)
            assert_same_bytes(jax.tree.map(lambda leaf: leaf[1], first), weights)
        some = dataclasses.replace(axes, down_proj=None)
        mixed = dataclasses.replace(stacked, down_proj=weights.down_proj)
        jax.vmap(lambda w: w.gate_up_proj, in_axes=(some,))(mixed)


def test_scan_slices_stacked_layers() -> None:
    for weights in both_classes():
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, leaf]), weights)

        def body(count: Any, layer: Any, weights: Any = weights) -> Any:
            assert type(layer) is type(weights)
            assert layer.gate_up_proj.shape == weights.gate_up_proj.shape
            return count + 1, None

        assert jax.lax.scan(body, 0, stacked)[0] == 3


def test_orbax_restores_both_forms(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    mesh = mesh_of(ep=8)
    for number, weights in enumerate(both_classes(bias=True)):
        placed = jax.device_put(weights, NamedSharding(mesh, P("ep")))
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / str(number), placed)
            checkpointer.wait_until_finished()
            target = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
                placed,
            )
            restored = checkpointer.restore(tmp_path / str(number), target)
        assert type(restored) is type(weights)
        assert all(len(leaf.addressable_shards) == 8 for leaf in jax.tree.leaves(restored))
        assert_same_bytes(jax.device_get(restored), jax.device_get(placed))


def test_weights_restored_from_shapes_alone_run() -> None:
    # eval_shape, then arrays put into the same structure: what a loader does.
    case = small_case()
    weights = weights_of(case)
    shapes = jax.eval_shape(
        functools.partial(jax_megamoe.prepare_weights, implementation="xla"), weights
    )
    leaves = jax.tree.leaves(jax_megamoe.prepare_weights(weights, "xla"))
    loaded = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    jax.eval_shape(
        lambda *arrays: jax_megamoe.expert_parallel(*arrays, axis_name="ep", mesh=mesh_of(ep=2)),
        *tokens_of(case),
        loaded,
    )

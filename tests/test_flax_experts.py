"""How the Flax modules make experts, place and prepare them: on the ranks that own them, in bounded
memory, without touching arrays that others hold, and without any work where all is abstract.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from flax_layer import (
    CONFIG,
    NAMES,
    assert_same_bytes,
    held,
    kinds,
    loaded,
    names_in,
    random,
    tokens,
    zeros,
)
from jax_megamoe import ExpertWeights, MegaMoe, MegaMoeConfig, layouts
from jax_megamoe.modules import preparing
from layer import (
    IMPLEMENTATIONS,
    assert_as_on_one_device,
    mesh_of,
    small_case,
    weights_of,
)

# --- making --------------------------------------------------------------------------------------


@kinds
def test_random_experts_do_not_depend_on_the_mesh_and_lie_on_their_ranks(kind: str) -> None:
    want = random().expert_weights()
    mesh = mesh_of(kind, data=2, ep=4)
    with jax.set_mesh(mesh):
        in_context = random()
    jitted = [nnx.jit(lambda: random(mesh))()] if kind == "Auto" else []
    for moe in (random(mesh), in_context, *jitted):
        for name in NAMES:
            array = getattr(moe, name)[...]
            assert array.sharding.is_equivalent_to(NamedSharding(mesh, P("ep")), array.ndim)
        assert_same_bytes(moe.expert_weights(), want)


def test_random_experts_differ_and_are_normal_with_variance_one_over_fan_in() -> None:
    weights = random().expert_weights()
    for codes, scale, fan_in in (
        (weights.gate_up_proj, weights.gate_up_proj_scale_inv, 64),
        (weights.down_proj, weights.down_proj_scale_inv, 32),
    ):
        values = np.asarray(jax.jit(jax_megamoe.dequantize_fp4)(codes, scale))
        # At least 16384 values: five standard deviations of the mean of the squares are 5.5 %, and
        # quantisation adds some 1 %; of the mean they are 0.04 of a value's.
        assert abs(values.var() * fan_in - 1) < 0.07
        assert abs(values.mean()) * fan_in**0.5 < 0.04
        assert len({expert.tobytes() for expert in values}) == 8


def test_random_biases_are_zero() -> None:
    config = dataclasses.replace(CONFIG, use_bias=True)
    weights = MegaMoe(config, rngs=nnx.Rngs(0)).expert_weights()
    for bias in (weights.gate_up_proj_bias, weights.down_proj_bias):
        assert bias.shape == (8, 64) and not np.asarray(bias).any()


@pytest.mark.parametrize("form", ["float8_e8m0fnu", "uint8", "float32", "int32", "numpy"])
def test_given_scales_of_every_form_are_held_as_float8_e8m0fnu(form: str) -> None:
    want = weights_of(small_case())
    scales = [want.gate_up_proj_scale_inv, want.down_proj_scale_inv]
    raw = [np.asarray(scale).view(np.uint8) for scale in scales]
    if form == "float8_e8m0fnu":
        given: list[Any] = scales
    elif form == "numpy":
        given = [scale.view(jnp.float8_e8m0fnu) for scale in raw]
    elif form == "uint8":
        given = [jnp.asarray(scale) for scale in raw]
    elif form == "float32":
        given = [
            jnp.asarray(np.ldexp(np.float32(1), scale.astype(np.int32) - 127)) for scale in raw
        ]
    else:
        padded = [np.pad(s, ((0, 0), (0, 0), (0, -s.shape[-1] % 4))) for s in raw]
        given = [jnp.asarray(np.ascontiguousarray(scale).view(np.int32)) for scale in padded]
    weights = dataclasses.replace(
        want, gate_up_proj_scale_inv=given[0], down_proj_scale_inv=given[1]
    )
    for moe in (
        MegaMoe(CONFIG, weights=weights),
        MegaMoe(CONFIG, weights=weights, mesh=mesh_of(ep=4)),
    ):
        assert moe.gate_up_proj_scale_inv.dtype == jnp.float8_e8m0fnu
        expected = jax.tree.map(np.asarray, MegaMoe(CONFIG, weights=want).expert_weights())
        assert_same_bytes(jax.tree.map(np.asarray, moe.expert_weights()), expected)


@pytest.mark.parametrize(("as_numpy", "bias"), [(False, False), (True, True)])
def test_from_dense_quantises_each_expert(as_numpy: bool, bias: bool) -> None:
    rng = np.random.default_rng(0)
    gate_up, down = rng.normal(size=(8, 64, 64)), rng.normal(size=(8, 64, 32))
    dense = [np.asarray(value, np.float32) for value in (gate_up, down)]
    biases = [np.ones((8, 64), np.float32), np.ones((8, 64), jnp.bfloat16)] if bias else []
    want = ExpertWeights(
        *jax.jit(jax_megamoe.quantize_fp4)(dense[0]),
        *jax.jit(jax_megamoe.quantize_fp4)(dense[1]),
        *map(jnp.asarray, biases),
    )
    config = dataclasses.replace(CONFIG, use_bias=bias)
    inputs = [value if as_numpy else jnp.asarray(value) for value in (*dense, *biases)]
    for mesh in (None, mesh_of("Explicit", ep=4)):
        moe = MegaMoe.from_dense(config, *inputs, mesh=mesh)
        assert_same_bytes(
            jax.tree.map(np.asarray, moe.expert_weights()), jax.tree.map(np.asarray, want)
        )
    in_half = MegaMoe.from_dense(CONFIG, *(value.astype(jnp.bfloat16) for value in inputs[:2]))
    assert in_half.gate_up_proj.dtype == jnp.int8


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Filled with the name of every program that XLA compiles."""
    events: list[str] = []

    def listener(event: str, *_: Any, **__: Any) -> None:
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    yield events
    jax.monitoring.clear_event_listeners()


def test_abstract_construction_allocates_and_compiles_nothing(compilations: list[str]) -> None:
    config = MegaMoeConfig(8, 64, 96, 3)  # of no other test, so that nothing is compiled already
    dense = np.ones((8, 192, 64), np.float32), np.ones((8, 64, 96), np.float32)
    shapes = jax.eval_shape(lambda: MegaMoe(config, rngs=nnx.Rngs(0)).expert_weights())
    before = len(jax.live_arrays())
    compilations.clear()
    made = [
        nnx.eval_shape(lambda: MegaMoe(config, rngs=nnx.Rngs(0))),
        nnx.eval_shape(lambda: MegaMoe.from_dense(config, *dense)),
        nnx.eval_shape(lambda: MegaMoe(config, mesh=mesh_of(ep=4), rngs=nnx.Rngs(0))),
        MegaMoe(config, weights=shapes),
    ]
    for moe in made:
        assert [getattr(moe, name).shape for name in NAMES] == [
            (8, 64, 48), (8, 64, 3), (8, 192, 32), (8, 192, 2)
        ]  # fmt: skip
        moe.prepare("cpu")
        assert held(moe) == names_in("cpu")
        assert all(
            isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(nnx.state(moe))
        )
        assert moe.expert_weights() == shapes or moe.mesh is not None
    assert compilations == []
    assert len(jax.live_arrays()) <= before


def test_an_abstract_prepared_layer_is_that_of_a_real_one() -> None:
    for mesh in (None, mesh_of(ep=4)):
        abstract = nnx.eval_shape(lambda mesh=mesh: random(mesh))
        real = loaded(mesh)
        for moe in (abstract, real):
            moe.prepare("cpu")
        graphs = [nnx.graphdef(moe) for moe in (abstract, real)]
        assert graphs[0] == graphs[1]
        for one, other in zip(
            *(jax.tree.leaves(nnx.state(m)) for m in (abstract, real)), strict=True
        ):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


@kinds
def test_partition_specs_put_the_experts_on_the_axis(kind: str) -> None:
    mesh = mesh_of(kind, data=2, ep=4)
    _, state = nnx.get_abstract_model(lambda: random(), mesh)
    for form in (state, nnx.state(loaded(mesh))):
        specs = nnx.get_partition_spec(form)
        assert {tuple(spec) for spec in jax.tree.leaves(specs)} == {("ep", None, None)}
        shardings = nnx.get_named_sharding(form, mesh)
        assert shardings["gate_up_proj"].get_value() == NamedSharding(mesh, P("ep", None, None))
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding.spec == P("ep", None, None)


# --- preparing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("ranks", "kind"), [(None, "Auto"), (1, "Explicit"), (4, "Auto"), (4, "Explicit")]
)
def test_prepare_leaves_one_form_and_is_undone_bit_for_bit(
    implementation: str, ranks: int | None, kind: str
) -> None:
    moe = loaded(None if ranks is None else mesh_of(kind, ep=ranks))
    assert held(moe) == NAMES
    want = jax.tree.map(np.array, moe.expert_weights())
    moe.prepare(implementation)
    assert held(moe) == names_in(implementation)
    for name in held(moe):
        array = getattr(moe, name)[...]
        assert ranks is None or len(array.sharding.device_set) == ranks
    assert_same_bytes(jax.tree.map(np.asarray, moe.expert_weights()), want)


def test_prepare_equals_prepare_weights() -> None:
    weights = weights_of(small_case(bias=True))
    config = dataclasses.replace(CONFIG, use_bias=True)
    moe = MegaMoe(config, weights=weights, mesh=mesh_of(ep=2))
    moe.prepare("cpu")
    prepared = jax_megamoe.prepare_weights(weights, "cpu")
    for name in ("gate_up_proj", "down_proj_scale_inv", "gate_up_proj_bias", "down_proj_bias"):
        got, want = getattr(moe, f"{name}_cpu_v1")[...], getattr(prepared, name)
        assert_same_bytes(np.asarray(got), np.asarray(want))


def test_prepare_goes_through_prepare_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    original = preparing.weights_module.prepare_expert

    def spy(weights: ExpertWeights, implementation: str) -> Any:
        shapes.append(weights.gate_up_proj.shape)
        return original(weights, implementation)

    # Sizes of no other test, so that nothing is traced already.
    moe = MegaMoe(MegaMoeConfig(4, 96, 32, 2), weights=zeros(4, 96, 32), mesh=mesh_of(ep=4))
    monkeypatch.setattr(preparing.weights_module, "prepare_expert", spy)
    moe.prepare()
    assert set(shapes) == {(64, 48)}


@pytest.mark.parametrize("ranks", [1, 4])
def test_prepare_writes_the_new_arrays_where_the_old_ones_were(ranks: int) -> None:
    moe = loaded(mesh_of(ep=ranks))

    def addresses() -> set[int]:
        arrays = [getattr(moe, name)[...] for name in held(moe)]
        return {s.data.unsafe_buffer_pointer() for a in arrays for s in a.addressable_shards}

    before = addresses()
    moe.prepare("cpu")
    assert addresses() == before


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_prepare_needs_the_memory_of_one_expert(implementation: str) -> None:
    config = MegaMoeConfig(16, 256, 128, 2)
    weights = nnx.eval_shape(lambda: MegaMoe(config, rngs=nnx.Rngs(0))).expert_weights()
    arrays = {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.uint8 if "scale" in name else leaf.dtype)
        for name, leaf in dataclasses.asdict(weights).items()
        if leaf is not None
    }
    total = sum(leaf.size for leaf in arrays.values())
    keywords = {"implementation": implementation, "names": ("ep",), "mesh": None}
    memory = preparing._prepare.lower(arrays, {}, **keywords).compile().memory_analysis()
    assert memory.alias_size_in_bytes == memory.argument_size_in_bytes == total
    assert memory.temp_size_in_bytes <= total // 16 + 1024


def test_prepare_leaves_arrays_that_others_hold_as_they_are() -> None:
    mesh = mesh_of(ep=4)
    given = jax.device_put(weights_of(small_case()), NamedSharding(mesh, P("ep")))
    want = jax.tree.map(np.array, given)
    moe = MegaMoe(CONFIG, weights=given, mesh=mesh)
    state = nnx.state(moe)
    other = nnx.clone(moe)
    moe.prepare()
    assert_same_bytes(jax.tree.map(np.asarray, given), want)
    assert_same_bytes(jax.tree.map(np.asarray, other.expert_weights()), want)
    assert state["gate_up_proj"].shape == (8, 64, 32) and not given.down_proj.is_deleted()
    for one in (moe, other):
        assert_as_on_one_device(one(*tokens()), "cpu")


def test_prepare_leaves_arrays_on_one_device_of_a_larger_mesh_as_they_are() -> None:
    """Placing them on the mesh may share the memory on that device."""
    given = weights_of(small_case())
    want = jax.tree.map(np.array, given)
    moe = MegaMoe(CONFIG, weights=given, mesh=mesh_of(data=2, ep=1))
    moe.prepare("cpu")
    assert_same_bytes(jax.tree.map(np.asarray, given), want)


@pytest.mark.parametrize("ranks", [None, 1, 2])
def test_prepare_leaves_numpy_arrays_and_views_as_they_are(ranks: int | None) -> None:
    def aligned(array: Any) -> np.ndarray:
        """A copy at an address that XLA takes over without copying."""
        array = np.asarray(array)
        memory = np.empty(array.nbytes + 64, np.uint8)
        start = -memory.ctypes.data % 64
        view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    given = jax.tree.map(aligned, weights_of(small_case()))
    want = jax.tree.map(np.array, given)
    mesh = None if ranks is None else mesh_of(ep=ranks)
    moe = MegaMoe(CONFIG, weights=given, mesh=mesh)
    shard = moe.down_proj[...].addressable_shards[0].data
    view = np.asarray(shard)
    seen = view.copy()
    del shard
    moe.prepare("cpu")
    assert_same_bytes(given, want)
    np.testing.assert_array_equal(view, seen)


def test_a_layer_prepared_inside_jit() -> None:
    moe = loaded(mesh_of("Explicit", ep=4))

    @nnx.jit
    def prepare(moe: MegaMoe) -> None:
        moe.prepare()

    prepare(moe)
    assert held(moe) == names_in("cpu")
    assert_as_on_one_device(moe(*tokens()), "cpu")


def test_a_layout_of_another_size_is_prepared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layouts.get("xla")

    def padded(codes: Any, matrix: str) -> Any:
        return jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 16)])

    monkeypatch.setattr(layout, "prepare_codes", padded)
    monkeypatch.setattr(layout, "unprepare_codes", lambda codes, _, n, k: codes[..., : k // 2])
    monkeypatch.setattr(layout, "VERSION", 99)
    # Sizes of no other test, so that what is traced here is used nowhere else.
    config, weights = MegaMoeConfig(4, 32, 96, 2), zeros(4, 32, 96)
    codes = np.arange(weights.gate_up_proj.size).reshape(weights.gate_up_proj.shape)
    weights = dataclasses.replace(weights, gate_up_proj=jnp.asarray(codes.astype(np.int8)))
    for mesh in (None, mesh_of(ep=4)):
        moe = MegaMoe(config, weights=weights, mesh=mesh)
        moe.prepare("xla")
        assert moe.gate_up_proj_xla_v99.shape == (4, 192, 32)
        assert_same_bytes(
            jax.tree.map(np.asarray, moe.expert_weights()), jax.tree.map(np.asarray, weights)
        )

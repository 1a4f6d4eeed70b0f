"""The nnx module: that it is `expert_parallel` however it is called, makes and prepares its
experts in bounded memory, passes unnoticed by what trains, and refuses early and in words.

Checkpoints are in `test_flax_checkpoint.py`; the numbers are the contract tests' business: here
bits are compared with `expert_parallel` on one device.
"""

from __future__ import annotations

import copy
import dataclasses
import doctest
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from jax_megamoe import ExpertWeights, MegaMoe, MegaMoeConfig, layouts, targets
from jax_megamoe.modules import QuantizedWeight, mesh_handle, preparing
from jax_megamoe.modules import nnx as nnx_module
from layer import (
    IMPLEMENTATIONS,
    assert_as_on_one_device,
    mesh_of,
    refused,
    small_case,
    tokens_of,
    weights_of,
)

CONFIG = MegaMoeConfig(8, 64, 32, 3)
NAMES = ["down_proj", "down_proj_scale_inv", "gate_up_proj", "gate_up_proj_scale_inv"]
kinds = pytest.mark.parametrize("kind", ["Auto", "Explicit"])


def loaded(mesh: Any = None, **keywords: Any) -> MegaMoe:
    """A layer with the weights of `small_case`."""
    return MegaMoe(CONFIG, mesh=mesh, weights=weights_of(small_case()), **keywords)


def zeros(experts: int, hidden: int, intermediate: int) -> ExpertWeights:
    codes, scales = jnp.zeros, jnp.ones
    return ExpertWeights(
        codes((experts, 2 * intermediate, hidden // 2), jnp.int8),
        scales((experts, 2 * intermediate, hidden // 32), jnp.float8_e8m0fnu),
        codes((experts, hidden, intermediate // 2), jnp.int8),
        scales((experts, hidden, intermediate // 32), jnp.float8_e8m0fnu),
    )


def random(mesh: Any = None, **keywords: Any) -> MegaMoe:
    return MegaMoe(CONFIG, mesh=mesh, rngs=nnx.Rngs(7), **keywords)


def tokens() -> tuple[jax.Array, jax.Array, jax.Array]:
    return tokens_of(small_case())


def held(moe: MegaMoe) -> list[str]:
    return sorted(name for name, value in vars(moe).items() if isinstance(value, nnx.Variable))


def value_bytes(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf).view(np.uint8) for leaf in jax.tree.leaves(tree)]


def assert_same_bytes(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(value_bytes(got), value_bytes(want), strict=True):
        np.testing.assert_array_equal(one, other)


def names_in(implementation: str) -> list[str]:
    version = layouts.get(implementation).VERSION
    return sorted(f"{name}_{implementation}_v{version}" for name in NAMES)


def run(moe: MegaMoe, *tokens: jax.Array) -> jax.Array:
    return moe(*tokens)


# --- calling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("implementation", "kind"), [("cpu", "Auto"), ("xla", "Explicit")])
def test_both_forms_give_the_bits_of_one_device(implementation: str, kind: str) -> None:
    moe = loaded(mesh_of(kind, ep=4), implementation=implementation)
    if implementation == "cpu":  # plain weights are the same program with a longer compilation
        assert_as_on_one_device(moe(*tokens()), implementation)
    moe.prepare()
    assert_as_on_one_device(moe(*tokens()), implementation)


@kinds
def test_every_way_to_jit_gives_the_same_bits(kind: str) -> None:
    moe = loaded(mesh_of(kind, ep=4))
    moe.prepare()
    assert_as_on_one_device(nnx.jit(run)(moe, *tokens()), "cpu")
    graphdef, state = nnx.split(moe)
    merged = jax.jit(lambda state, *tokens: nnx.merge(graphdef, state)(*tokens))
    assert_as_on_one_device(merged(state, *tokens()), "cpu")
    assert_as_on_one_device(jax.jit(run)(moe, *tokens()), "cpu")  # a module is a pytree
    donating = jax.jit(run, donate_argnums=1)
    x, *rest = tokens()
    assert_as_on_one_device(donating(moe, jnp.array(x), *rest), "cpu")


@kinds
def test_mesh_none_takes_the_mesh_in_context(kind: str) -> None:
    for ranks, way in ((2, nnx.jit(run)), (8, run)):
        moe = loaded()
        moe.prepare()
        with jax.set_mesh(mesh_of(kind, ep=ranks)):
            y = way(moe, *tokens())
        assert_as_on_one_device(y, "cpu")


def test_leading_batch_axes_are_tokens() -> None:
    moe = loaded(mesh_of(ep=1))
    batched = [value.reshape(2, 4, 2, value.shape[-1]) for value in tokens()]
    y = moe(*batched)
    assert y.shape == batched[0].shape
    assert_as_on_one_device(y, "cpu")
    assert moe(*[value[:0] for value in batched]).shape == (0, 4, 2, 64)


def test_numpy_int64_ids_outside_the_experts_are_skipped() -> None:
    x, idx, weights = tokens()
    wide = np.where(np.asarray(idx) >= 8, 2**32 + 1, np.asarray(idx).astype(np.int64))
    assert (wide > 2**32).any()
    assert_as_on_one_device(loaded(mesh_of(ep=1))(x, wide, weights), "cpu")


def test_several_mesh_axes_may_hold_the_experts() -> None:
    moe = loaded(mesh_of(a=2, b=2), axis_name=("a", "b"))
    assert moe.gate_up_proj.out_sharding == (("a", "b"), None, None)
    moe.prepare()
    assert_as_on_one_device(moe(*tokens()), "cpu")


@pytest.mark.parametrize("prepared", [False, True])
def test_inside_a_callers_shard_map_it_runs_on_the_local_arrays(prepared: bool) -> None:
    mesh = mesh_of(ep=4)
    moe = loaded(mesh)
    if prepared:
        moe.prepare()
    graphdef, state = nnx.split(moe)

    def body(state: Any, *tokens: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, state)(*tokens)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
    assert_as_on_one_device(jax.jit(mapped)(state, *tokens()), "cpu")


def test_vmap_over_a_batch_of_tokens() -> None:
    moe = loaded(mesh_of(ep=1))
    batched = [value.reshape(4, 4, -1) for value in tokens()]
    mapped = nnx.vmap(run, in_axes=(None, 0, 0, 0))
    assert_as_on_one_device(mapped(moe, *batched), "cpu")


def test_a_stack_of_layers_is_made_prepared_and_scanned() -> None:
    mesh = mesh_of("Explicit", ep=4)
    _, idx, weights = tokens()
    no_name = {nnx.PARTITION_NAME: None}

    @nnx.split_rngs(splits=3)
    @nnx.vmap(transform_metadata=no_name)
    def make(rngs: nnx.Rngs) -> MegaMoe:
        return MegaMoe(CONFIG, mesh=mesh, rngs=rngs)

    @nnx.vmap(transform_metadata=no_name)
    def prepare(moe: MegaMoe) -> None:
        moe.prepare()

    @nnx.jit
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry, transform_metadata=no_name)
    def scan(moe: MegaMoe, x: jax.Array) -> jax.Array:
        return x + moe(x, idx, weights)

    stack = make(nnx.Rngs(0))
    assert stack.gate_up_proj.shape == (3, 8, 64, 32)
    assert stack.gate_up_proj.out_sharding == (None, "ep", None, None)
    prepare(stack)
    assert stack.gate_up_proj_cpu_v1.out_sharding == (None, "ep", None, None, None)
    x = tokens()[0]
    y = scan(stack, x)
    graphdef, state = nnx.split(stack)
    want = x
    step = jax.jit(lambda state, x: x + nnx.merge(graphdef, state)(x, idx, weights))
    for layer in range(3):
        want = step(jax.tree.map(lambda leaf, i=layer: np.asarray(leaf)[i], state), want)
    np.testing.assert_array_equal(bits(np.asarray(y)), bits(np.asarray(want)))


# --- the compiled program ------------------------------------------------------------------------


def groups_of(line: str) -> list[list[int]]:
    """The groups of devices in a collective's line of HLO; a permutation's pairs are groups too."""
    if found := re.search(r"replica_groups=mesh\[(\S+)\] \{(.*?)\}", line):
        # Groups along some axes of a mesh of all devices.
        sizes = dict(re.findall(r"('\w+')=(\d+)", found[1]))
        along = found[2].split(",")
        assert set(along) <= set(sizes), f"axes of another form in: {line}"
        ids = np.arange(np.prod([int(n) for n in sizes.values()])).reshape(
            [int(n) for n in sizes.values()]
        )
        places = [list(sizes).index(axis) for axis in along]
        ids = np.moveaxis(ids, places, range(-len(places), 0))
        return ids.reshape(-1, np.prod([int(sizes[axis]) for axis in along])).tolist()
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](T\(([\d,]+)\))?", line):
        shape, source = ([int(n) for n in found[i].split(",")] for i in (1, 2))
        ids = np.arange(np.prod(source)).reshape(source)
        if found[4]:
            ids = ids.transpose([int(n) for n in found[4].split(",")])
        return ids.reshape(shape).tolist()
    found = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", line)
    assert found, f"no groups of devices in: {line}"
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", found[1])]


def collective_groups(hlo: str) -> list[list[list[int]]]:
    """The groups of devices of every collective of an HLO text."""
    collective = re.compile(r" (all-|reduce-scatter|collective-)[a-z-]*\(")
    return [groups_of(line) for line in hlo.splitlines() if collective.search(line)]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}, dimensions={0}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
        ("mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=1,'c'=2] {'a','c'}", [[0, 1, 2, 3]]),
    ],
)
def test_the_ways_in_which_hlo_writes_groups(text: str, groups: list[list[int]]) -> None:
    line = f"%x = s8[4] all-gather(%y), replica_groups={text}"
    assert collective_groups(line) == [groups]


def spans(hlo: str, data: int, ep: int) -> bool:
    """Whether some collective joins devices of different `data` coordinates of a (data, ep)
    mesh.
    """
    assert data > 1
    return any(
        len({device // ep for device in group}) > 1
        for collective in collective_groups(hlo)
        for group in collective
    )


@kinds
def test_no_collective_of_a_data_and_expert_parallel_program_spans_data(kind: str) -> None:
    mesh = mesh_of(kind, data=2, ep=4)
    moe = loaded(mesh)
    moe.prepare()
    graphdef, state = nnx.split(moe)

    def program(state: Any, *tokens: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, state)(*tokens)

    for spec in (P("data"), P(("data", "ep"))):
        sharding = NamedSharding(mesh, spec)
        placed = [jax.device_put(value, sharding) for value in tokens()]
        jitted = jax.jit(program, out_shardings=sharding)
        hlo = jitted.lower(state, *placed).compile().as_text()
        assert collective_groups(hlo), "the exchange is made of collectives"
        assert not spans(hlo, 2, 4)
        assert_as_on_one_device(jitted(state, *placed), "cpu")


def test_the_search_for_collectives_finds_one_that_spans_data() -> None:
    mesh = mesh_of(data=2, ep=4)
    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    for spec in (P(), P("ep")):
        hlo = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, spec)).lower(x)
        assert spans(hlo.compile().as_text(), 2, 4)


def rearranged_weights(hlo: str) -> list[str]:
    """The instructions of an HLO text that make int8 arrays: nothing but preparation does."""
    made = re.findall(r"^.* = s8\[\S+ (?!parameter|get-tuple-element|copy-done)\S+\(.*$", hlo, re.M)
    return [line for line in made if "sharding-constraint" not in line]


@pytest.mark.parametrize(("ranks", "kind"), [(1, "Auto"), (4, "Auto"), (4, "Explicit")])
def test_a_call_on_prepared_weights_contains_no_preparation(ranks: int, kind: str) -> None:
    moe = loaded(mesh_of(kind, ep=ranks))

    def program() -> str:
        graphdef, state = nnx.split(moe)
        jitted = jax.jit(lambda state, *tokens: nnx.merge(graphdef, state)(*tokens))
        return jitted.lower(state, *tokens()).compile().as_text()

    plain = program()
    assert "jax_megamoe.prepare" in plain and rearranged_weights(plain)
    moe.prepare()
    prepared = program()
    assert "jax_megamoe.prepare" not in prepared
    assert rearranged_weights(prepared) == []


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

    def padded(codes: Any) -> Any:
        return jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 16)])

    monkeypatch.setattr(layout, "prepare_codes", padded)
    monkeypatch.setattr(layout, "unprepare_codes", lambda codes, n, k: codes[..., : k // 2])
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


# --- what passes it by ---------------------------------------------------------------------------


class Model(nnx.Module):
    """A router with LoRA, the layer, and a head that trains."""

    def __init__(self, mesh: Any, rngs: nnx.Rngs) -> None:
        self.router = nnx.LoRALinear(64, 8, lora_rank=2, rngs=rngs)
        self.moe = MegaMoe(CONFIG, mesh=mesh, rngs=rngs)
        self.head = nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        weights, ids = jax.lax.top_k(jax.nn.softmax(self.router(x)), 3)
        inputs = jax.lax.stop_gradient((x.astype(jnp.bfloat16), ids, weights))
        return self.head(self.moe(*inputs).astype(jnp.float32))


def test_gradients_optimizers_and_lora_filters_pass_the_weights_by() -> None:
    model = Model(mesh_of(ep=1), nnx.Rngs(0))
    model.moe.prepare()
    before = jax.tree.map(np.array, nnx.state(model, QuantizedWeight))
    assert "moe" not in nnx.state(model, nnx.Param)
    assert "moe" not in nnx.state(model, nnx.LoRAParam)
    assert set(nnx.state(model, QuantizedWeight)) == {"moe"}
    assert {type(v) for _, v in nnx.iter_graph(model.moe) if isinstance(v, nnx.Variable)} == {
        QuantizedWeight
    }
    x = jnp.asarray(tokens()[0], jnp.float32)

    @nnx.jit
    def step(model: Model, optimizer: nnx.Optimizer[Model], x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1.0) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    optimizer = nnx.Optimizer(model, optax.sgd(0.05), wrt=nnx.Param)
    losses = [float(step(model, optimizer, x)) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert_same_bytes(jax.tree.map(np.asarray, nnx.state(model, QuantizedWeight)), before)


def test_differentiating_through_the_layer_is_refused() -> None:
    moe = loaded(mesh_of(ep=2))
    x, idx, weights = tokens()
    with refused(NotImplementedError, "inference only", "stop_gradient"):
        jax.grad(lambda w: moe(x, idx, w).astype(jnp.float32).sum())(weights)


def test_copies_and_pickles_work_like_the_original() -> None:
    moe = loaded(mesh_of("Explicit", data=2, ep=1))
    for _ in range(2):
        for twin in (copy.deepcopy(moe), pickle.loads(pickle.dumps(moe)), nnx.clone(moe)):
            assert twin.mesh == moe.mesh and held(twin) == held(moe)
            assert_as_on_one_device(twin(*tokens()), "cpu")
        if "gate_up_proj" in held(moe):
            moe.prepare()
    assert pickle.loads(pickle.dumps(loaded())).mesh is None


def test_a_pickled_mesh_that_is_not_here_is_refused() -> None:
    _, parts = mesh_handle.MeshHandle(mesh_of(ep=2)).__reduce__()
    platform, ids, *rest = parts
    with refused(ValueError, "id 77", 2, 8, "Orbax"):
        mesh_handle._find_mesh(platform, [ids[0], 77], *rest)


def test_showing_a_layer_is_short_and_reads_no_weight() -> None:
    import treescope

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its first use touches deprecated names of NumPy
        treescope.render_to_text(0)
    for kind in ("Auto", "Explicit"):
        moe = loaded(mesh_of(kind, ep=4))
        moe.prepare()
        table = nnx.tabulate(moe, *tokens(), console_kwargs={"width": 200})
        assert "gate_up_proj" in table and len(table) < 20_000
        for leaf in jax.tree.leaves(nnx.state(moe)):
            leaf.delete()  # reading one would raise
        for shown in (moe, nnx.state(moe), moe.gate_up_proj_cpu_v1):
            assert "int8" in repr(shown) and len(repr(shown)) < 2_000
            assert "int8" in treescope.render_to_text(shown)
            assert len(treescope.render_to_html(shown)) < 50_000


def test_the_docstring_runs() -> None:
    result = doctest.testmod(nnx_module)
    assert result.attempted >= 8 and result.failed == 0


# --- refusals ------------------------------------------------------------------------------------


def replaced(**fields: Callable[[Any], Any]) -> ExpertWeights:
    weights = weights_of(small_case())
    new = {name: change(getattr(weights, name)) for name, change in fields.items()}
    return dataclasses.replace(weights, **new)


def test_construction_refuses_in_the_order_device_type_axis_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line mends the first fault of those before it."""

    class H100:
        platform = "cuda"
        device_kind = "NVIDIA H100"
        compute_capability = "9.0"

    wrong_type = replaced(gate_up_proj=lambda a: a.view(jnp.uint8))
    wrong_shape = replaced(down_proj=lambda a: a[:, :32])
    mesh = mesh_of(ep=3)
    with monkeypatch.context() as patched:
        patched.setattr(jax_megamoe.platforms, "context_devices", lambda *_: [H100()])
        with refused(NotImplementedError, "SM100", "9.0", 'implementation="xla"'):
            MegaMoe(CONFIG, weights=wrong_type, axis_name="x", mesh=mesh)
    with refused(NotImplementedError, "FP4-packed", "int8", "uint8"):
        MegaMoe(CONFIG, weights=wrong_type, axis_name="x", mesh=mesh)
    with refused(ValueError, "'x'", "process group"):
        MegaMoe(CONFIG, weights=wrong_shape, axis_name="x", mesh=mesh)
    with refused(ValueError, 8, 3, "'ep'"):
        MegaMoe(CONFIG, weights=wrong_shape, mesh=mesh)
    with refused(ValueError, "(8, 32, 16)", "(8, 64, 16)"):
        MegaMoe(CONFIG, weights=wrong_shape, mesh=mesh_of(ep=4))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("how", ["rngs", "weights", "from_dense", "eval_shape", "in context"])
def test_experts_that_do_not_divide_are_refused_in_our_words(how: str, kind: str) -> None:
    mesh = mesh_of(kind, ep=3)
    with refused(ValueError, 8, 3, "'ep'", "divide"):
        if how == "rngs":
            random(mesh)
        elif how == "weights":
            loaded(mesh)
        elif how == "from_dense":
            MegaMoe.from_dense(CONFIG, np.ones((8, 64, 64)), np.ones((8, 64, 32)), mesh=mesh)
        elif how == "eval_shape":
            nnx.eval_shape(lambda: random(mesh))
        else:
            with jax.set_mesh(mesh):
                random()


@pytest.mark.parametrize(
    ("changed", "found", "wanted"),
    [
        ({"num_experts": 16}, "(8, 64, 32)", "(16, 64, 32)"),
        ({"hidden_size": 96}, "(8, 64, 32)", "(8, 96, 32)"),
        ({"intermediate_size": 64}, "(8, 64, 32)", "(8, 64, 64)"),
        ({"use_bias": True}, "missing", "use_bias=True"),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_weights_of_other_sizes_than_the_config_are_refused(
    changed: dict[str, Any], found: str, wanted: str, prepared: bool
) -> None:
    config = dataclasses.replace(CONFIG, **changed)
    weights: Any = weights_of(small_case())
    if prepared:
        weights = jax_megamoe.prepare_weights(weights, "cpu")
    with refused(ValueError, found, wanted):
        MegaMoe(config, weights=weights)
    moe = MegaMoe(CONFIG, weights=weights, mesh=mesh_of(ep=2))
    moe.config = config  # what a wrong state does
    with pytest.raises(ValueError, match=r"config gives|config has|layout of 'cpu' for H = "):
        moe(*tokens())


def test_biases_without_use_bias_are_refused() -> None:
    with refused(ValueError, "gate_up_proj_bias", "given", "use_bias=False"):
        MegaMoe(CONFIG, weights=weights_of(small_case(bias=True)))


def test_from_dense_refuses_other_shapes_and_types() -> None:
    gate_up, down = np.ones((8, 64, 64), np.float32), np.ones((8, 64, 32), np.float32)
    with refused(ValueError, "gate_up", "(8, 64, 32)", "(8, 64, 64)"):
        MegaMoe.from_dense(CONFIG, down, down)
    with refused(ValueError, "down", "(8, 32, 64)", "(8, 64, 32)"):
        MegaMoe.from_dense(CONFIG, gate_up, down.swapaxes(1, 2))
    with refused(TypeError, "gate_up", "int8", "ExpertWeights"):
        MegaMoe.from_dense(CONFIG, gate_up.astype(np.int8), down)
    with refused(ValueError, "gate_up_bias", "given", "use_bias=False"):
        MegaMoe.from_dense(CONFIG, gate_up, down, gate_up_bias=np.ones((8, 64), np.float32))
    with_bias = dataclasses.replace(CONFIG, use_bias=True)
    with refused(ValueError, "gate_up_bias", "missing", "use_bias=True"):
        MegaMoe.from_dense(with_bias, gate_up, down)
    with refused(TypeError, "down_bias", "float16", "bfloat16"):
        bias = np.ones((8, 64), np.float32)
        MegaMoe.from_dense(with_bias, gate_up, down, bias, bias.astype(np.float16))
    with refused(TypeError, "gate_up", "list"):
        MegaMoe.from_dense(CONFIG, gate_up.tolist(), down)


def test_neither_weights_nor_rngs_is_refused() -> None:
    with refused(ValueError, "rngs=nnx.Rngs", "weights=ExpertWeights"):
        MegaMoe(CONFIG)


def test_scales_that_are_no_powers_of_two_are_refused_at_construction() -> None:
    weights = replaced(down_proj_scale_inv=lambda a: jnp.full(a.shape, 0.75, jnp.float32))
    with refused(ValueError, "down_proj_scale_inv", "0.75"):
        MegaMoe(CONFIG, weights=weights)
    jax.eval_shape(lambda weights: nnx.state(MegaMoe(CONFIG, weights=weights)), weights)


def test_weights_prepared_for_another_implementation_are_refused() -> None:
    prepared = jax_megamoe.prepare_weights(weights_of(small_case()), "cpu")
    with refused(ValueError, "'xla'", "'cpu'", "unprepare_weights"):
        MegaMoe(CONFIG, weights=prepared, implementation="xla")
    with refused(ValueError, "'cpu'", "'xla'", "made with"):
        loaded(implementation="xla").prepare("cpu")
    with refused(ValueError, "'mlx'", "'sm100'"):
        loaded().prepare("mlx")


def test_preparing_twice_is_refused() -> None:
    moe = loaded()
    moe.prepare("cpu")
    with refused(ValueError, "already prepared", "'cpu'"):
        moe.prepare("cpu")


def test_a_call_without_any_mesh_is_refused() -> None:
    with refused(ValueError, "no mesh", "process group", "jax.set_mesh"):
        loaded()(*tokens())


def test_another_number_of_slots_than_the_configs_is_refused() -> None:
    x, idx, weights = tokens()
    with refused(ValueError, "K = 2", "num_experts_per_tok = 3"):
        loaded(mesh_of(ep=2))(x, idx[:, :2], weights[:, :2])


def test_sm100_is_refused_where_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "sm100_built", lambda: True)
    moe = random(implementation="sm100")
    monkeypatch.setattr(targets, "sm100_built", lambda: False)
    with refused(NotImplementedError, "SM100", "pip install"):
        moe.setup(16)
    with refused(NotImplementedError, "SM100", "pip install"):
        random(implementation="sm100")


def test_setup_does_nothing_for_implementations_without_peer_memory() -> None:
    for moe in (loaded(), loaded(mesh_of(ep=2)), loaded(implementation="xla")):
        moe.setup(16)
        moe.prepare()
        moe.setup(max_tokens_per_rank=1)
    with refused(ValueError, "max_tokens_per_rank", 0):
        moe.setup(0)
    with refused(TypeError, "max_tokens_per_rank", "1.5"):
        moe.setup(1.5)  # type: ignore[arg-type]

"""The nnx module is `expert_parallel` however it is called, its compiled programs hold nothing
more, and it passes unnoticed by what trains, copies and shows a model.

The numbers are the contract tests' business: here bits are compared with `expert_parallel` on one
device. Making and preparing experts, refusals and checkpoints have files of their own.
"""

from __future__ import annotations

import copy
import doctest
import pickle
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from contract import bits
from flax_layer import (
    CONFIG,
    assert_same_bytes,
    held,
    kinds,
    loaded,
    run,
    tokens,
)
from hlo import collectives
from jax_megamoe import MegaMoe
from jax_megamoe.modules import QuantizedWeight, mesh_handle
from jax_megamoe.modules import nnx as nnx_module
from layer import (
    assert_as_on_one_device,
    mesh_of,
    refused,
)

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
        found = collectives(hlo)
        assert found, "the exchange is made of collectives"
        assert not any(one.spans("data", {"data": 2, "ep": 4}) for one in found)
        assert_as_on_one_device(jitted(state, *placed), "cpu")


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

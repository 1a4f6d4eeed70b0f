"""The Linen twin: that it is the nnx module with its arrays in the collection "quantized".

What the two share is tested in `test_flax_nnx.py`; here only how Linen holds, initialises, boxes
and prepares.
"""

from __future__ import annotations

import dataclasses
import doctest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from flax_layer import CONFIG, NAMES, assert_same_bytes, kinds, names_in, tokens
from jax_megamoe import linen, validation
from layer import (
    IMPLEMENTATIONS,
    assert_as_on_one_device,
    mesh_of,
    refused,
    small_case,
    weights_of,
)


def loaded() -> dict[str, Any]:
    return {"quantized": linen.collection(weights_of(small_case()))}


# --- calling --------------------------------------------------------------------------------------


def test_both_forms_give_the_bits_of_one_device() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of("Explicit", ep=4))
    variables = loaded()
    assert_as_on_one_device(jax.jit(moe.apply)(variables, *tokens()), "cpu")
    prepared = linen.prepare(variables)
    assert sorted(prepared["quantized"]) == names_in("cpu")
    assert_as_on_one_device(jax.jit(moe.apply)(prepared, *tokens()), "cpu")
    assert_as_on_one_device(moe.apply(nn.meta.unbox(prepared), *tokens()), "cpu")


@kinds
def test_mesh_none_takes_the_mesh_in_context(kind: str) -> None:
    moe = linen.MegaMoe(CONFIG)
    with jax.set_mesh(mesh_of(kind, ep=2)):
        y = jax.jit(moe.apply)(loaded(), *tokens())
    assert_as_on_one_device(y, "cpu")
    with refused(ValueError, "no mesh", "process group"):
        moe.apply(loaded(), *tokens())


@pytest.mark.parametrize("prepared", [False, True])
def test_inside_a_callers_shard_map_it_runs_on_the_local_arrays(prepared: bool) -> None:
    mesh = mesh_of("Explicit", ep=4)
    moe = linen.MegaMoe(CONFIG, mesh=mesh)
    variables = linen.prepare(loaded(), "cpu") if prepared else loaded()
    operands = jax.device_put((variables, *tokens()), NamedSharding(mesh, P("ep")))
    mapped = jax.shard_map(moe.apply, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
    assert_as_on_one_device(jax.jit(mapped)(*operands), "cpu")


def test_a_call_on_prepared_variables_contains_no_preparation() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=1))
    for variables, contains in ((loaded(), True), (linen.prepare(loaded(), "cpu"), False)):
        program = jax.jit(moe.apply).lower(variables, *tokens()).compile().as_text()
        assert ("jax_megamoe.prepare" in program) == contains


# --- variables ------------------------------------------------------------------------------------


@kinds
def test_init_makes_the_experts_of_the_nnx_module_on_their_ranks(kind: str) -> None:
    mesh = mesh_of(kind, ep=4)
    moe = linen.MegaMoe(CONFIG, mesh=mesh)
    key = jax.random.key(7)
    y, variables = moe.init_with_output(key, *tokens())
    assert list(variables) == ["quantized"] and sorted(variables["quantized"]) == NAMES
    for name, spec in nn.get_partition_spec(variables)["quantized"].items():
        assert spec == P("ep", None, None)
        array = variables["quantized"][name].value
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, P("ep")), array.ndim)
    np.testing.assert_array_equal(
        bits(np.asarray(moe.apply(variables, *tokens()))), bits(np.asarray(y))
    )
    # Linen folds the module's path into the key, so the twin is given what Linen drew.
    weights = moe.apply(variables, method="expert_weights")
    twin = jax_megamoe.MegaMoe(CONFIG, weights=weights, mesh=mesh)
    np.testing.assert_array_equal(bits(np.asarray(twin(*tokens()))), bits(np.asarray(y)))
    drawn = jax_megamoe.MegaMoe(CONFIG, rngs=nnx.Rngs(7)).expert_weights()
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, weights)
    assert len({expert.tobytes() for expert in np.asarray(weights.gate_up_proj)}) == 8


def test_init_is_abstract_under_eval_shape_and_needs_the_mesh_of_a_call() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=4))
    before = len(jax.live_arrays())
    operands = jax.eval_shape(tokens)
    variables = jax.eval_shape(moe.init, jax.eval_shape(lambda: jax.random.key(0)), *operands)
    assert len(jax.live_arrays()) <= before
    assert {leaf.shape[0] for leaf in jax.tree.leaves(variables)} == {8}
    prepared = linen.prepare(variables, "cpu")
    assert sorted(prepared["quantized"]) == names_in("cpu")
    real = linen.prepare(loaded(), "cpu")
    assert jax.tree.structure(prepared) == jax.tree.structure(real)
    assert jax.tree.map(jnp.shape, prepared) == jax.tree.map(jnp.shape, real)


def test_nothing_but_the_collection_is_read_or_written() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=1))
    y, updated = moe.apply(loaded(), *tokens(), mutable=True)
    assert_same_bytes(updated, loaded())
    assert_as_on_one_device(y, "cpu")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_prepare_is_undone_bit_for_bit_and_leaves_its_argument(implementation: str) -> None:
    case = small_case(bias=True)
    config = dataclasses.replace(CONFIG, use_bias=True)
    variables = {"quantized": linen.collection(weights_of(case)), "params": {"other": jnp.ones(3)}}
    prepared = linen.prepare(variables, implementation)
    assert_same_bytes(variables["quantized"], linen.collection(weights_of(case)))
    assert prepared["params"] is variables["params"]
    moe = linen.MegaMoe(config, mesh=mesh_of(ep=1))
    for held in (variables, prepared):
        weights = moe.apply(held, method="expert_weights")
        assert_same_bytes(linen.collection(weights), variables["quantized"])


class Block(nn.Module):
    """A layer between others, as a model has it."""

    mesh: Any

    @nn.compact
    def __call__(self, x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
        y = linen.MegaMoe(CONFIG, mesh=self.mesh, name="moe")(x, idx, weights)
        return nn.LayerNorm(name="norm", dtype=jnp.bfloat16)(x + y)


def test_prepare_finds_every_layer_of_a_model() -> None:
    mesh = mesh_of(ep=1)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
            return Block(mesh, name="b")(Block(mesh, name="a")(x, idx, weights), idx, weights)

    model = Model()
    variables = jax.jit(model.init)(jax.random.key(0), *tokens())
    prepared = linen.prepare(variables)
    assert set(prepared["quantized"]) == {"a", "b"}
    assert sorted(prepared["quantized"]["a"]["moe"]) == names_in("cpu")
    results = [jax.jit(model.apply)(held, *tokens()) for held in (variables, prepared)]
    np.testing.assert_array_equal(*(bits(np.asarray(y)) for y in results))


def test_layers_stacked_by_scan_are_prepared_and_run() -> None:
    mesh = mesh_of("Explicit", ep=1)

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, idx: jax.Array, weights: jax.Array) -> jax.Array:
            def body(block: nn.Module, x: jax.Array, _: None) -> tuple[jax.Array, None]:
                return block(x, idx, weights), None

            axes = {"quantized": 0, "params": 0}
            scan = nn.scan(
                body,
                variable_axes=axes,
                split_rngs={"params": True},
                length=3,
                metadata_params={nn.PARTITION_NAME: None},
            )
            return scan(Block(mesh, name="block"), x, None)[0]

    stack = Stack()
    variables = jax.jit(stack.init)(jax.random.key(0), *tokens())
    prepared = linen.prepare(variables)
    held = prepared["quantized"]["block"]["moe"]
    assert sorted(held) == names_in("cpu")
    assert held[names_in("cpu")[0]].names[:2] == (None, "ep")
    assert held[names_in("cpu")[0]].value.shape[:2] == (3, 8)
    results = [jax.jit(stack.apply)(held, *tokens()) for held in (variables, prepared)]
    np.testing.assert_array_equal(*(bits(np.asarray(y)) for y in results))


# --- refusals -------------------------------------------------------------------------------------


def test_preparing_twice_is_refused() -> None:
    with refused(ValueError, "already prepared", "'cpu'"):
        linen.prepare(linen.prepare(loaded(), "cpu"), "cpu")
    with refused(ValueError, "'mlx'"):
        linen.prepare(loaded(), "mlx")


def test_variables_of_the_wrong_form_or_size_are_refused() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=2), implementation="xla")
    with refused(ValueError, "'xla'", "'cpu'"):
        moe.apply(linen.prepare(loaded(), "cpu"), *tokens())
    both = {"quantized": {**loaded()["quantized"], **linen.prepare(loaded(), "cpu")["quantized"]}}
    with refused(ValueError, "both", "checkpoint layout", "'cpu'"):
        moe.apply(both, *tokens())
    with refused(ValueError, "gate_up_proj"):
        moe.apply({}, *tokens())
    larger = dataclasses.replace(CONFIG, num_experts=16)
    with refused(ValueError, "(8, 64, 32)", "(16, 64, 32)"):
        linen.MegaMoe(larger, mesh=mesh_of(ep=2)).apply(loaded(), *tokens())
    with refused(ValueError, 8, 3, "'ep'"):
        linen.MegaMoe(CONFIG, mesh=mesh_of(ep=3)).init(jax.random.key(0), *tokens())
    fp8 = jax.tree.map(lambda leaf: leaf.astype(jnp.float8_e4m3fn), loaded())
    with refused(NotImplementedError, "FP4-packed", "int8", "float8_e4m3fn"):
        moe.apply(fp8, *tokens())


@pytest.mark.parametrize("variables", [{}, {"params": {"other": jnp.ones(3)}}])
def test_variables_without_the_collection_are_refused(variables: dict[str, Any]) -> None:
    with refused(ValueError, list(variables), "'quantized'", "moe.init", "linen.collection"):
        linen.prepare(variables)


@pytest.mark.parametrize("variables", [None, 3, "quantized"])
def test_what_are_no_variables_is_refused(variables: Any) -> None:
    with refused(TypeError, f"variables is {validation.a_type(variables)}", "mapping", "moe.init"):
        linen.prepare(variables)


def test_what_another_module_keeps_in_the_collection_stays() -> None:
    other = {"scale": jnp.ones(3), "steps": 7}
    held = {"moe": loaded()["quantized"], "other": other, "bits": np.arange(4)}
    prepared = linen.prepare({"quantized": held}, "cpu")["quantized"]
    assert sorted(prepared["moe"]) == names_in("cpu")
    assert prepared["other"]["scale"] is other["scale"] and prepared["other"]["steps"] == 7
    assert prepared["bits"] is held["bits"]


def test_unboxed_variables_are_prepared_over_the_axis_named() -> None:
    mesh = mesh_of(expert=4)
    moe = linen.MegaMoe(CONFIG, axis_name="expert", mesh=mesh)
    boxed = {"quantized": linen.collection(weights_of(small_case()), "expert")}
    unboxed = nn.meta.unbox(boxed)
    with jax.set_mesh(mesh):  # which has no axis "ep"
        prepared = linen.prepare(unboxed, "cpu", axis_name="expert")
        linen.prepare(boxed, "cpu")  # the boxes name it
        with refused(ValueError, "'ep'", "('expert',)", "process group"):
            linen.prepare(unboxed, "cpu")
    specs = nn.get_partition_spec(prepared)["quantized"]
    assert sorted(specs) == names_in("cpu")
    assert {spec[0] for spec in specs.values()} == {"expert"}
    assert_as_on_one_device(moe.apply(prepared, *tokens()), "cpu")


def test_an_axis_that_the_mesh_has_not_is_refused() -> None:
    mesh = mesh_of(ep=2)
    moe = linen.MegaMoe(CONFIG, axis_name="expert", mesh=mesh)
    with refused(ValueError, "'expert'", "('ep',)", "process group"):
        moe.apply(loaded(), *tokens())
    with refused(ValueError, "'expert'", "('ep',)", "process group"):
        moe.init(jax.random.key(0), *tokens())


def test_differentiating_through_the_layer_is_refused() -> None:
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=2))
    x, idx, weights = tokens()
    with refused(NotImplementedError, "inference only", "stop_gradient"):
        jax.grad(lambda w: moe.apply(loaded(), x, idx, w).astype(jnp.float32).sum())(weights)


def test_the_docstring_runs() -> None:
    result = doctest.testmod(linen)
    assert result.attempted >= 8 and result.failed == 0

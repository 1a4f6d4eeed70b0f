"""Orbax checkpoints of the Flax modules: both forms come back bit for bit, and a form that does not
fit fails by structure and in words, never by a silent cast or by weights that are held but unused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from jax_megamoe import MegaMoe, MegaMoeConfig, layouts, linen
from jax_megamoe.modules import check_restore, preparing
from layer import assert_as_on_one_device, mesh_of, refused, small_case, tokens_of, weights_of

CONFIG = MegaMoeConfig(8, 64, 32, 3)
forms = pytest.mark.parametrize("form", [None, "cpu", "xla"])


def loaded(form: str | None = None, mesh: Any = None) -> MegaMoe:
    """A layer with the weights of `small_case`, prepared for `form` unless it is None."""
    moe = MegaMoe(CONFIG, mesh=mesh, weights=weights_of(small_case()))
    if form is not None:
        moe.prepare(form)
    return moe


def abstract(form: str | None = None, mesh: Any = None) -> MegaMoe:
    """Shapes of such a layer, with shardings if there is a mesh."""
    moe = nnx.eval_shape(lambda: MegaMoe(CONFIG, mesh=mesh, rngs=nnx.Rngs(0)))
    if form is not None:
        moe.prepare(form)
    return moe


def save(path: Path, tree: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def restore(path: Path, target: Any = None) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path) if target is None else checkpointer.restore(path, target)


def metadata(path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.metadata(path).item_metadata.tree


def value_bytes(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def new_layout_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and the layout "cpu" is that of a later release."""

    def bump() -> int:
        version = layouts.get("cpu").VERSION + 1
        monkeypatch.setattr(layouts.get("cpu"), "VERSION", version)
        forget()
        return version

    def forget() -> None:
        """Drops what was traced with the other version."""
        jax_megamoe.weights._prepare_jitted.clear_cache()
        jax_megamoe.weights._layout_arrays.cache_clear()
        preparing._prepare.clear_cache()

    yield bump
    monkeypatch.undo()
    forget()


# --- there and back -------------------------------------------------------------------------------


@forms
@pytest.mark.parametrize("sharded", [False, True])
def test_a_state_comes_back_bit_for_bit(tmp_path: Path, form: str | None, sharded: bool) -> None:
    mesh = mesh_of("Explicit", ep=4) if sharded else None
    moe = loaded(form, mesh)
    save(tmp_path / "state", nnx.state(moe))
    model = abstract(form, mesh)
    state = nnx.state(model)
    if sharded:
        state = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            nnx.get_named_sharding(state, mesh),
        )
    check_restore(state, metadata(tmp_path / "state"))
    restored = restore(tmp_path / "state", state)
    assert value_bytes(restored) == value_bytes(nnx.state(moe))
    for leaf in jax.tree.leaves(restored):
        if sharded:
            assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, P("ep")), leaf.ndim)
    nnx.update(model, restored)
    if form != "xla":  # which takes long to compile
        with jax.set_mesh(mesh or mesh_of(ep=1)):
            y = model(*tokens_of(small_case()))
        assert_as_on_one_device(y, "cpu")


def test_a_state_may_come_back_on_another_number_of_ranks(tmp_path: Path) -> None:
    save(tmp_path / "state", nnx.state(loaded("cpu", mesh_of(ep=4))))
    mesh = mesh_of(ep=2)
    model = abstract("cpu", mesh)
    nnx.update(model, restore(tmp_path / "state", nnx.state(model)))
    assert_as_on_one_device(model(*tokens_of(small_case())), "cpu")


def test_every_scale_byte_comes_back(tmp_path: Path) -> None:
    moe = loaded()
    every = np.arange(moe.gate_up_proj_scale_inv[...].size, dtype=np.uint32).astype(np.uint8)
    scale = every.reshape(moe.gate_up_proj_scale_inv.shape).view(jnp.float8_e8m0fnu)
    moe.gate_up_proj_scale_inv.set_value(jnp.asarray(scale))
    for form in (None, "cpu"):
        if form:
            moe.prepare(form)
        save(tmp_path / str(form), nnx.state(moe))
        model = abstract(form)
        nnx.update(model, restore(tmp_path / str(form), nnx.state(model)))
        back = np.asarray(model.expert_weights().gate_up_proj_scale_inv)
        np.testing.assert_array_equal(back.view(np.uint8).reshape(-1), every)


def test_a_checkpoint_restored_on_one_device_is_spread_over_the_ranks_by_prepare(
    tmp_path: Path,
) -> None:
    save(tmp_path / "state", nnx.state(loaded()))
    mesh = mesh_of(ep=2)
    model = abstract(mesh=mesh)
    nnx.update(model, restore(tmp_path / "state", nnx.state(model)))
    assert len(model.down_proj[...].sharding.device_set) == 1
    model.prepare()
    for leaf in jax.tree.leaves(nnx.state(model)):
        assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, P("ep")), leaf.ndim)
    assert_as_on_one_device(model(*tokens_of(small_case())), "cpu")


@pytest.mark.parametrize("prepared", [False, True])
def test_linen_variables_come_back_bit_for_bit(tmp_path: Path, prepared: bool) -> None:
    variables = {"quantized": linen.collection(weights_of(small_case()))}
    if prepared:
        variables = linen.prepare(variables, "cpu")
    save(tmp_path / "variables", variables)
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), variables)
    check_restore(target, metadata(tmp_path / "variables"))
    restored = restore(tmp_path / "variables", target)
    assert jax.tree.structure(restored) == jax.tree.structure(variables)
    assert value_bytes(restored) == value_bytes(variables)
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=1))
    assert_as_on_one_device(moe.apply(restored, *tokens_of(small_case())), "cpu")


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "target", "words"),
    [
        ("cpu", None, ("'cpu'", "checkpoint layout", "prepare('cpu')")),
        (None, "cpu", ("'cpu'", "checkpoint layout", "then call prepare()")),
        ("cpu", "xla", ("'cpu'", "'xla'", "prepare('cpu')")),
    ],
)
def test_another_form_fails_by_structure_and_in_words(
    tmp_path: Path, saved: str | None, target: str | None, words: tuple[str, ...]
) -> None:
    moe = loaded(saved)
    save(tmp_path / "state", nnx.state(moe))
    model = abstract(target)
    names = [name for name in vars(moe) if name.startswith("gate_up_proj")]
    with pytest.raises(ValueError, match=f"[Ss]tructure.*{names[0]}"):
        restore(tmp_path / "state", nnx.state(model))
    for found in (metadata(tmp_path / "state"), restore(tmp_path / "state"), nnx.state(moe)):
        with refused(ValueError, *words):
            check_restore(nnx.state(model), found)
    # nnx.update adds what a module lacks, which would leave the old weights in use.
    before = value_bytes(nnx.state(loaded(target)))
    filled = loaded(target)
    with refused(ValueError, *words):
        nnx.update(filled, nnx.state(moe))
    assert value_bytes(nnx.state(filled)) == before
    with refused(ValueError, *words):
        nnx.update(filled, nnx.to_pure_dict(nnx.state(moe)))


def test_a_prepared_state_under_a_changed_layout_version_fails_in_words(
    tmp_path: Path, new_layout_version: Any
) -> None:
    moe = loaded("cpu")
    old = layouts.get("cpu").VERSION
    save(tmp_path / "state", nnx.state(moe))
    pickled, (graphdef, state) = pickle.dumps(moe), nnx.split(moe)
    new = new_layout_version()
    model = abstract("cpu")
    words = (f"version {old}", f"version {new}", "'cpu'", "Prepare again", "expert_weights()")
    # Orbax lists both names, hence both versions.
    with pytest.raises(ValueError, match=f"_cpu_v{new}.*_cpu_v{old}"):
        restore(tmp_path / "state", nnx.state(model))
    with refused(ValueError, *words):
        check_restore(nnx.state(model), metadata(tmp_path / "state"))
    with refused(ValueError, *words):
        nnx.update(model, state)
    # A module that brings its own structure along has the old names, and is refused when used.
    for brought in (pickle.loads(pickled), nnx.merge(graphdef, state)):
        versions = (f"version {old}", f"version {new}")
        with jax.set_mesh(mesh_of(ep=2)), refused(ValueError, *versions, "Prepare again"):
            brought(*tokens_of(small_case()))
        with refused(ValueError, *versions):
            brought.expert_weights()


def test_linen_variables_under_a_changed_layout_version_fail_in_words(
    new_layout_version: Any,
) -> None:
    old = layouts.get("cpu").VERSION
    weights = weights_of(small_case())
    variables = linen.prepare({"quantized": {"layer": linen.collection(weights)}}, "cpu")
    new = new_layout_version()
    target = linen.prepare({"quantized": {"layer": linen.collection(weights)}}, "cpu")
    with refused(ValueError, f"version {old}", f"version {new}", "quantized/layer"):
        linen.check_restore(target, variables)
    moe = linen.MegaMoe(CONFIG, mesh=mesh_of(ep=2))
    with refused(ValueError, f"version {old}", f"version {new}"):
        moe.apply({"quantized": variables["quantized"]["layer"]}, *tokens_of(small_case()))


def test_check_restore_looks_only_where_both_hold_experts() -> None:
    state = nnx.state(loaded("cpu"))
    check_restore({"a": state, "b": 1}, {"a": state, "c": nnx.state(loaded())})
    with refused(ValueError, "at layers/0", "'cpu'"):
        check_restore({"layers": {0: state}}, {"layers": {0: nnx.state(loaded())}})


def test_an_incomplete_or_deeper_state_is_refused_when_used(tmp_path: Path) -> None:
    moe = loaded(mesh=mesh_of(ep=2))
    del moe.down_proj
    with refused(ValueError, "down_proj", "gate_up_proj"):
        moe(*tokens_of(small_case()))
    moe = loaded(mesh=mesh_of(ep=2))
    save(tmp_path / "state", nnx.state(moe))
    nnx.update(moe, restore(tmp_path / "state"))  # a dict under each name
    with refused(TypeError, "dict", "nnx.state(module)"):
        moe(*tokens_of(small_case()))

"""What the Flax modules refuse, when, and in which words.

The words themselves are `test_validation.py`'s; here it is that construction, `prepare` and calls
use them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_megamoe
from flax_layer import (
    CONFIG,
    loaded,
    random,
    tokens,
)
from jax_megamoe import ExpertWeights, MegaMoe, linen, targets
from layer import (
    mesh_of,
    refused,
    small_case,
    weights_of,
)

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


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("hidden_states", lambda a: a.astype(jnp.float32), TypeError, ".astype(jnp.bfloat16)"),
        ("hidden_states", lambda a: a[:, :32], ValueError, "H = 32"),
        ("hidden_states", lambda a: a[:9], ValueError, "(9,)"),
        ("top_k_index", lambda a: a.astype(jnp.int8), TypeError, ".astype(jnp.int32)"),
        ("top_k_index", lambda a: a[:9], ValueError, "(9, 3)"),
        ("top_k_index", lambda a: a.tolist(), TypeError, "jnp.asarray(top_k_index)"),
        ("top_k_weights", lambda a: a.astype(jnp.int32), TypeError, ".astype(jnp.float32)"),
        ("top_k_weights", lambda a: a[:, 0], ValueError, "two axes"),
    ],
)
def test_messages_use_the_names_of_the_modules_parameters(
    name: str, change: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    names = ("hidden_states", "top_k_index", "top_k_weights")
    arguments = dict(zip(names, tokens(), strict=True))
    arguments[name] = change(arguments[name])
    for moe in (
        loaded(mesh_of(ep=2)),
        functools.partial(
            linen.MegaMoe(CONFIG, mesh=mesh_of(ep=2)).apply,
            {"quantized": linen.collection(weights_of(small_case()))},
        ),
    ):
        with pytest.raises(error) as caught:
            moe(**arguments)
        message = str(caught.value)
        assert name in message and words in message, message
        assert "topk" not in message and not re.search(r"\bx\b", message), message


def test_sm100_is_refused_where_it_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "sm100_built", lambda: True)
    moe = random(implementation="sm100")
    monkeypatch.setattr(targets, "sm100_built", lambda: False)
    with refused(NotImplementedError, "SM100", "pip install"):
        moe.setup(16)
    with refused(NotImplementedError, "SM100", "pip install"):
        random(implementation="sm100")


def test_setup_of_sm100_is_refused_while_there_is_no_workspace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "sm100_built", lambda: True)
    moe = random(implementation="sm100")
    with refused(NotImplementedError, "workspace", "sm100", 'implementation="xla"'):
        moe.setup(16)


def test_setup_does_nothing_for_implementations_without_peer_memory() -> None:
    for moe in (loaded(), loaded(mesh_of(ep=2)), loaded(implementation="xla")):
        moe.setup(16)
        moe.prepare()
        moe.setup(max_tokens_per_rank=1)
    with refused(ValueError, "max_tokens_per_rank", 0):
        moe.setup(0)
    with refused(TypeError, "max_tokens_per_rank", "1.5"):
        moe.setup(1.5)  # type: ignore[arg-type]

"""The layer under JAX's transformations: what works gives the bits of the plain call, and what is
refused is refused in words.

`cpu` unless the implementation matters: its programs compile fastest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from jax_megamoe import ExpertWeights
from layer import (
    IMPLEMENTATIONS,
    assert_as_on_one_device,
    mesh_of,
    refused,
    small_case,
    tokens_of,
    weights_of,
)

implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
kinds = pytest.mark.parametrize("kind", ["Auto", "Explicit"])

Layer = Callable[..., jax.Array]


@functools.cache
def one_device() -> Mesh:
    return mesh_of(ep=1)


def layer(
    *operands: Any, implementation: str | None = "cpu", mesh: Mesh | None = None
) -> jax.Array:
    return jax_megamoe.expert_parallel(
        *operands, axis_name="ep", mesh=mesh or one_device(), implementation=implementation
    )


@functools.cache
def operands() -> tuple[jax.Array, jax.Array, jax.Array, ExpertWeights]:
    case = small_case()
    return (*tokens_of(case), weights_of(case))


def shuffled(count: int) -> tuple[tuple[jax.Array, jax.Array, jax.Array], list[jax.Array]]:
    """`count` different batches of the same tokens, stacked, and what each gives."""
    x, idx, weight, experts = operands()
    orders = [np.random.default_rng(i).permutation(len(x)) for i in range(count)]
    plain = layer(x, idx, weight, experts)
    stacked = tuple(jnp.stack([value[order] for order in orders]) for value in (x, idx, weight))
    return stacked, [plain[order] for order in orders]


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(want)))


def put(mesh: Mesh, tokens: P, *arrays: Any) -> tuple[Any, ...]:
    """Tokens sharded as said and the experts over "ep"."""
    *rest, weights = arrays
    placed = (jax.device_put(value, NamedSharding(mesh, tokens)) for value in rest)
    return (*placed, jax.device_put(weights, NamedSharding(mesh, P("ep"))))


# --- jit ------------------------------------------------------------------------------------------


@implementations
def test_jit_and_eager_agree(implementation: str) -> None:
    call = functools.partial(layer, implementation=implementation)
    assert_as_on_one_device(jax.jit(call)(*operands()), implementation)
    assert_as_on_one_device(call(*operands()), implementation)


def test_weights_may_be_constants_of_the_program() -> None:
    x, idx, weight, experts = operands()
    assert_as_on_one_device(jax.jit(lambda x: layer(x, idx, weight, experts))(x), "cpu")


@implementations
def test_donating_x_gives_the_same_bits(implementation: str) -> None:
    x, idx, weight, experts = operands()
    call = jax.jit(functools.partial(layer, implementation=implementation), donate_argnums=0)
    mine = jnp.copy(x)
    y = call(mine, idx, weight, experts)
    assert mine.is_deleted()
    assert_as_on_one_device(y, implementation)


@pytest.mark.parametrize(
    ("implementation", "ranks", "names"),
    [
        ("cpu", 1, ("jax_megamoe/jax_megamoe.cpu.moe", "jax_megamoe.prepare")),
        (
            "cpu",
            2,
            (
                "jax_megamoe/jax_megamoe.quantize",
                "jax_megamoe/jax_megamoe.dispatch",
                "jax_megamoe/jax_megamoe.cpu.rows",
                "jax_megamoe/jax_megamoe.return_rows",
                "jax_megamoe/jax_megamoe.combine",
            ),
        ),
        ("xla", 1, ("jax_megamoe.quantize", "jax_megamoe.experts", "jax_megamoe.combine")),
    ],
)
def test_stages_have_their_names_in_the_compiled_program(
    implementation: str, ranks: int, names: tuple[str, ...]
) -> None:
    call = functools.partial(layer, implementation=implementation, mesh=mesh_of(ep=ranks))
    text = jax.jit(call).lower(*operands()).compile().as_text()
    for name in names:
        assert name in text, name


# --- vmap -----------------------------------------------------------------------------------------


@implementations
def test_vmap_over_a_batch_folds_it_into_the_tokens(implementation: str) -> None:
    *_, experts = operands()
    stacked, want = shuffled(3)
    call = functools.partial(layer, implementation=implementation)
    y = jax.jit(jax.vmap(call, in_axes=(0, 0, 0, None)))(*stacked, experts)
    if implementation == "cpu":
        same(y, jnp.stack(want))
    plain = call(*(value.reshape(-1, value.shape[-1]) for value in stacked), experts)
    same(y.reshape(plain.shape), plain)


def test_vmap_makes_one_call_of_all_tokens() -> None:
    *_, experts = operands()
    stacked, _ = shuffled(3)
    batched = jax.jit(jax.vmap(layer, in_axes=(0, 0, 0, None)))
    text = batched.lower(*stacked, experts).as_text()
    assert text.count("@jax_megamoe.cpu.moe") == 1
    assert "tensor<48x64xbf16>" in text


def test_nested_vmap() -> None:
    *_, experts = operands()
    stacked, want = shuffled(6)
    nested = tuple(value.reshape(2, 3, *value.shape[1:]) for value in stacked)
    inner = jax.vmap(layer, in_axes=(0, 0, 0, None))
    y = jax.vmap(inner, in_axes=(0, 0, 0, None))(*nested, experts)
    same(y, jnp.stack(want).reshape(y.shape))


@pytest.mark.parametrize("batched", ["x", "topk_idx", "topk_weights", "x topk_weights", "none"])
def test_what_is_not_batched_is_the_same_for_all(batched: str) -> None:
    x, idx, weight, experts = operands()
    values = {"x": x, "topk_idx": idx, "topk_weights": weight}
    stacked, _ = shuffled(3)
    for name, value in zip(values, stacked, strict=True):
        if name in batched.split():
            values[name] = value
    in_axes = tuple(0 if name in batched.split() else None for name in values)
    y = jax.vmap(layer, in_axes=(*in_axes, None), axis_size=3)(*values.values(), experts)
    for i in range(3):
        alone = (
            v if axis is None else v[i] for v, axis in zip(values.values(), in_axes, strict=True)
        )
        same(y[i], layer(*alone, experts))


def test_vmap_over_other_axes_than_the_first() -> None:
    *_, experts = operands()
    stacked, want = shuffled(3)
    moved = [jnp.moveaxis(value, 0, axis) for value, axis in zip(stacked, (1, 2, 1), strict=True)]
    y = jax.vmap(layer, in_axes=(1, 2, 1, None), out_axes=1)(*moved, experts)
    same(jnp.moveaxis(y, 1, 0), jnp.stack(want))


def test_vmap_over_no_batches_calls_nothing() -> None:
    x, idx, weight, experts = operands()
    empty = jnp.zeros((0, *x.shape), x.dtype)
    y = jax.vmap(layer, in_axes=(0, None, None, None))(empty, idx, weight, experts)
    assert y.shape == empty.shape and y.dtype == jnp.bfloat16


@kinds
def test_vmap_inside_and_outside_of_shard_map(kind: str) -> None:
    mesh = mesh_of(kind, ep=4)
    stacked, want = shuffled(3)
    placed = put(mesh, P(None, "ep"), *stacked, operands()[-1])
    call = functools.partial(jax_megamoe.mega_moe, axis_name="ep", implementation="cpu")

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(None, "ep"), P(None, "ep"), P(None, "ep"), P("ep")),
        out_specs=P(None, "ep"),
    )
    def inside(*arrays: Any) -> jax.Array:
        return jax.vmap(call, in_axes=(0, 0, 0, None))(*arrays)

    same(inside(*placed), jnp.stack(want))

    mapped = jax.shard_map(
        call, mesh=mesh, in_specs=(P("ep"), P("ep"), P("ep"), P("ep")), out_specs=P("ep")
    )
    outside = jax.jit(jax.vmap(mapped, in_axes=(0, 0, 0, None)))
    same(outside(*placed), jnp.stack(want))


@kinds
def test_vmap_of_expert_parallel_on_a_mesh(kind: str) -> None:
    mesh = mesh_of(kind, ep=4)
    stacked, each = shuffled(3)
    want = np.stack(each)
    *_, experts = operands()
    call = functools.partial(layer, mesh=mesh)
    with jax.set_mesh(mesh):
        same(jax.jit(jax.vmap(call, in_axes=(0, 0, 0, None)))(*stacked, experts), want)
        same(jax.vmap(call, in_axes=(0, 0, 0, None))(*stacked, experts), want)


@pytest.mark.parametrize("prepared", [False, True])
def test_vmap_over_the_weights_is_refused(prepared: bool) -> None:
    x, idx, weight, experts = operands()
    given: Any = jax_megamoe.prepare_weights(experts, "cpu") if prepared else experts
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), given)
    for in_axes in ((None, None, None, 0), (0, None, None, 0)):
        tokens = x if in_axes[0] is None else jnp.stack([x, x])
        batched = jax.vmap(layer, in_axes=in_axes)
        for call in (batched, jax.jit(batched)):
            with refused(NotImplementedError, "vmap", "weights", "expert axis", "topk_idx"):
                call(tokens, idx, weight, stacked)


# --- differentiation ------------------------------------------------------------------------------

REFUSAL = ("inference only", "stop_gradient")


def loss(x: jax.Array, weight: jax.Array, call: Layer = layer) -> jax.Array:
    _, idx, _, experts = operands()
    return call(x, idx, weight, experts).astype(jnp.float32).sum()


def scanned(x: jax.Array, weight: jax.Array) -> jax.Array:
    def body(total: jax.Array, _: None) -> tuple[jax.Array, None]:
        return total + loss(x, weight), None

    return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]


def branched(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.lax.cond(x[0, 0] > 0, loss, lambda x, weight: jnp.float32(0), x, weight)


def in_shard_map(x: jax.Array, weight: jax.Array) -> jax.Array:
    call = functools.partial(jax_megamoe.mega_moe, axis_name="ep", implementation="cpu")
    mapped = jax.shard_map(call, mesh=mesh_of(ep=2), in_specs=P("ep"), out_specs=P("ep"))
    return loss(x, weight, jax.jit(mapped))


WRAPPED: dict[str, Callable[..., jax.Array]] = {
    "plain": loss,
    "jit": jax.jit(loss),
    "vmap": lambda x, weight: jax.vmap(loss)(jnp.stack([x, x]), jnp.stack([weight, weight])).sum(),
    "scan": scanned,
    "cond": branched,
    "remat": jax.checkpoint(loss),
    "remat in jit": jax.jit(jax.checkpoint(loss)),
    "shard_map": in_shard_map,
    "prepared": lambda x, weight: loss(
        x, weight, lambda *a: layer(*a[:3], jax_megamoe.prepare_weights(a[3], "cpu"))
    ),
    "xla": functools.partial(loss, call=functools.partial(layer, implementation="xla")),
    "by platform": functools.partial(loss, call=functools.partial(layer, implementation=None)),
}


@pytest.mark.parametrize("argnums", [0, 1])
@pytest.mark.parametrize("name", WRAPPED)
def test_every_form_of_differentiation_is_refused(name: str, argnums: int) -> None:
    x, _, weight, _ = operands()
    primals = (x, weight)
    other = primals[1 - argnums]

    def wrapped(value: jax.Array) -> jax.Array:
        return WRAPPED[name](*((value, other) if argnums == 0 else (other, value)))

    value = primals[argnums]
    forms: dict[str, Callable[[], Any]] = {
        "grad": lambda: jax.grad(wrapped)(value),
        "value_and_grad": lambda: jax.value_and_grad(wrapped)(value),
        "grad in jit": lambda: jax.jit(jax.grad(wrapped))(value),
        "jvp": lambda: jax.jvp(wrapped, (value,), (value,)),
        "linearize": lambda: jax.linearize(wrapped, value),
        "vjp": lambda: jax.vjp(wrapped, value),
        "jacfwd": lambda: jax.jacfwd(wrapped)(value),
        "hessian": lambda: jax.hessian(wrapped)(value),
    }
    for form in forms.values():
        with refused(NotImplementedError, *REFUSAL):
            form()


def test_differentiating_weights_is_refused() -> None:
    x, idx, weight, experts = operands()
    bias = jnp.zeros((8, 64), jnp.float32)

    def of_bias(bias: jax.Array) -> jax.Array:
        changed = jax.tree.map(lambda leaf: leaf, experts)
        weights = ExpertWeights(*jax.tree.leaves(changed), gate_up_proj_bias=bias)
        return layer(x, idx, weight, weights).astype(jnp.float32).sum()

    with refused(NotImplementedError, *REFUSAL):
        jax.grad(of_bias)(bias)


@pytest.mark.parametrize(
    ("wrap", "times"),
    [
        (lambda f: f, 1),
        (jax.jit, 1),
        (jax.checkpoint, 1),
        (lambda f: lambda p: jax.vmap(f)(jnp.stack([p, p])).sum(), 2),
        (lambda f: lambda p: jax.lax.scan(lambda t, _: (t + f(p), None), 0.0, None, 2)[0], 2),
    ],
    ids=["plain", "jit", "remat", "vmap", "scan"],
)
def test_other_parameters_are_differentiable_past_a_stop_gradient(wrap: Any, times: int) -> None:
    x, idx, weight, experts = operands()

    def model(scale: jax.Array) -> jax.Array:
        stopped = jax.lax.stop_gradient((x * scale.astype(x.dtype), weight * scale))
        y = layer(stopped[0], idx, stopped[1], experts)
        return scale * y.astype(jnp.float32).sum()

    total = layer(x, idx, weight, experts).astype(jnp.float32).sum()
    gradient = jax.grad(wrap(model))(jnp.float32(1))
    # One or two calls, each the sum of the same bfloat16 results, in float32 in any order.
    np.testing.assert_allclose(gradient, times * total, rtol=1e-5)


# --- loops, branches and carries inside shard_map -------------------------------------------------


def layers(count: int) -> ExpertWeights:
    """`count` layers' weights, stacked."""
    *_, experts = operands()
    return jax.tree.map(
        lambda leaf: jnp.stack([jnp.roll(leaf, i, 0) for i in range(count)]), experts
    )


def plain_loop(
    x: jax.Array, idx: jax.Array, weight: jax.Array, stacked: ExpertWeights
) -> jax.Array:
    for i in range(stacked.gate_up_proj.shape[0]):
        x = x + layer(x, idx, weight, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
    return x


@pytest.mark.parametrize(
    ("kind", "second_axis", "implementation"),
    [
        ("Auto", False, "cpu"),
        ("Explicit", False, None),
        ("Auto", True, None),
        ("Explicit", True, "cpu"),
    ],
)
def test_scan_over_layers_inside_shard_map(
    kind: str, second_axis: bool, implementation: str | None
) -> None:
    x, idx, weight, _ = operands()
    stacked = layers(3)
    mesh = mesh_of(kind, data=2, ep=4) if second_axis else mesh_of(kind, ep=4)
    tokens = P(("data", "ep")) if second_axis else P("ep")
    specs = (tokens, tokens, tokens, P(None, "ep"))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=tokens, check_vma=True)
    def model(x: jax.Array, idx: jax.Array, weight: jax.Array, stacked: ExpertWeights) -> jax.Array:
        def block(x: jax.Array, weights: ExpertWeights) -> tuple[jax.Array, None]:
            y = jax_megamoe.mega_moe(
                x, idx, weight, weights, axis_name="ep", implementation=implementation
            )
            return x + y, None

        return jax.lax.scan(block, x, stacked)[0]

    placed = [jax.device_put(value, NamedSharding(mesh, tokens)) for value in (x, idx, weight)]
    experts = jax.device_put(stacked, NamedSharding(mesh, P(None, "ep")))
    same(model(*placed, experts), jax.jit(plain_loop)(x, idx, weight, stacked))


@kinds
def test_scan_over_layers_around_expert_parallel(kind: str) -> None:
    x, idx, weight, _ = operands()
    stacked = layers(3)
    mesh = mesh_of(kind, data=2, ep=4)

    @jax.jit
    def model(x: jax.Array, idx: jax.Array, weight: jax.Array, stacked: ExpertWeights) -> jax.Array:
        def block(x: jax.Array, weights: ExpertWeights) -> tuple[jax.Array, None]:
            y = jax_megamoe.expert_parallel(x, idx, weight, weights, axis_name="ep")
            return x + y, None

        return jax.lax.scan(block, x, stacked)[0]

    tokens = NamedSharding(mesh, P("data"))
    placed = [jax.device_put(value, tokens) for value in (x, idx, weight)]
    experts = jax.device_put(stacked, NamedSharding(mesh, P(None, "ep")))
    with jax.set_mesh(mesh):
        y = model(*placed, experts)
    same(y, jax.jit(plain_loop)(x, idx, weight, stacked))


@pytest.mark.parametrize(
    ("kind", "implementation", "ranks"),
    [
        ("Auto", "cpu", 1),
        ("Explicit", "cpu", 4),
        ("Auto", "xla", 1),
        ("Explicit", "xla", 4),
        ("Auto", None, 4),
        ("Explicit", None, 1),
    ],
)
def test_cond_and_while_inside_shard_map(kind: str, implementation: str | None, ranks: int) -> None:
    x, idx, weight, experts = operands()
    mesh = mesh_of(kind, ep=ranks)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("ep"), P("ep"), P("ep"), P("ep"), P()),
        out_specs=P("ep"),
    )
    def model(x: Any, idx: Any, weight: Any, weights: Any, count: Any) -> Any:
        def call(x: jax.Array) -> jax.Array:
            return jax_megamoe.mega_moe(
                x, idx, weight, weights, axis_name="ep", implementation=implementation
            )

        def step(i: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.cond(i % 2 == 0, call, lambda x: x, x)

        return jax.lax.fori_loop(0, count, step, x)

    placed = put(mesh, P("ep"), x, idx, weight, experts)
    count = jax.device_put(jnp.int32(2), NamedSharding(mesh, P()))
    assert_as_on_one_device(model(*placed, count), implementation or "cpu")


def test_result_varies_over_the_union_of_the_inputs_axes() -> None:
    x, idx, weight, experts = operands()
    mesh = mesh_of(data=2, ep=2)
    seen = []

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("data"), P("data"), P("data"), P("ep")),
        out_specs=P(("data", "ep")),
    )
    def model(*arrays: Any) -> jax.Array:
        for implementation in ("cpu", "xla", None):
            y = jax_megamoe.mega_moe(*arrays, axis_name="ep", implementation=implementation)
            seen.append(jax.typeof(y).manual_axis_type.varying)
        return y

    jax.eval_shape(model, x, idx, weight, experts)
    assert seen == [frozenset({"data", "ep"})] * 3


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
def test_check_vma_may_be_off(implementation: str) -> None:
    mesh = mesh_of(ep=4)
    call = functools.partial(jax_megamoe.mega_moe, axis_name="ep", implementation=implementation)
    mapped = jax.shard_map(call, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"), check_vma=False)
    assert_as_on_one_device(jax.jit(mapped)(*operands()), implementation)


def test_remat_and_jit_of_the_forward_pass() -> None:
    assert_as_on_one_device(jax.jit(jax.checkpoint(layer))(*operands()), "cpu")


# --- 64-bit ids -----------------------------------------------------------------------------------

X64 = """
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np, jax_megamoe
from jax.sharding import PartitionSpec as P
from layer import small_case, tokens_of, weights_of, mesh_of
from contract import bits

case = small_case()
x, idx, weight = tokens_of(case)
weights = weights_of(case)
outside = case.topk_idx.astype(np.int64)
outside[::2, 1] += 1 << 32                # the low 32 bits look valid
outside[1::2, 0] -= 1 << 40
skipped = np.where((outside >= 0) & (outside < 8), outside, -1)
assert (skipped != case.topk_idx).any()

for implementation, ranks in (("cpu", 1), ("cpu", 2), ("xla", 1)):
    @jax.jit
    def layer(idx):
        return jax_megamoe.expert_parallel(
            x, idx, weight, weights, axis_name="ep", mesh=mesh_of(ep=ranks),
            implementation=implementation)
    want = layer(jnp.asarray(skipped, jnp.int32))
    assert jnp.asarray(outside).dtype == jnp.int64
    got = layer(jnp.asarray(outside))
    np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(want)))
print("the same")
"""


def test_int64_ids_whose_low_bits_look_valid_are_skipped_with_x64(run_python: Any) -> None:
    assert "the same" in run_python(X64, devices=2)


def test_numpy_int64_ids_outside_are_skipped_without_x64() -> None:
    x, idx, weight, experts = operands()
    outside = np.asarray(idx).astype(np.int64)
    outside[::2, 1] += 1 << 32
    want = layer(x, np.where(outside < 8, outside, -1).astype(np.int32), weight, experts)
    assert (np.asarray(want) != np.asarray(layer(x, idx, weight, experts))).any()
    same(layer(x, outside, weight, experts), want)
    same(jax.jit(lambda x: layer(x, outside, weight, experts))(x), want)

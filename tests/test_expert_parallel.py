"""Expert parallelism by XLA's collectives: bits do not depend on the ranks, nothing crosses another
mesh axis, no weights move, and memory is bounded whatever T.

Everything is compared with the same layer on one device, whose values the contract tests judge.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe
from contract import bits
from data import Case
from hlo import Collective, collectives
from jax_megamoe import exchange
from layer import (
    IMPLEMENTATIONS,
    assert_as_on_one_device,
    mesh_of,
    small_case,
    tokens_of,
    weights_of,
)

implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
kinds = pytest.mark.parametrize("kind", ["Auto", "Explicit"])


@functools.cache
def layer(mesh: Mesh, implementation: str | None = "cpu", axis_name: Any = "ep") -> Any:
    """One jitted function for each mesh, so that tests share what they compile."""

    def call(*operands: Any) -> jax.Array:
        return jax_megamoe.expert_parallel(
            *operands, axis_name=axis_name, mesh=mesh, implementation=implementation
        )

    return jax.jit(call)


def operands(case: Case | None = None) -> tuple[Any, ...]:
    case = small_case() if case is None else case
    return (*tokens_of(case), weights_of(case))


def placed(mesh: Mesh, tokens: P, arrays: tuple[Any, ...], experts: Any = "ep") -> tuple[Any, ...]:
    *rest, weights = arrays
    shard = functools.partial(NamedSharding, mesh)
    return (
        *(jax.device_put(value, shard(tokens)) for value in rest),
        jax.device_put(weights, shard(P(experts))),
    )


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(bits(np.asarray(got)), bits(np.asarray(want)))


# --- bits and the number of ranks -----------------------------------------------------------------


@implementations
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_any_number_of_ranks_gives_the_bits_of_one_device(ranks: int, implementation: str) -> None:
    y = layer(mesh_of(ep=ranks), implementation)(*operands())
    assert_as_on_one_device(y, implementation)


@implementations
def test_prepared_weights_give_them_too(implementation: str) -> None:
    *tokens, weights = operands()
    prepared = jax_megamoe.prepare_weights(weights, implementation)
    assert_as_on_one_device(layer(mesh_of(ep=2), None)(*tokens, prepared), implementation)


@pytest.mark.parametrize("ranks", [2, 8])
def test_explicit_meshes_and_eager_calls_give_them_too(ranks: int) -> None:
    mesh = mesh_of("Explicit", ep=ranks)
    assert_as_on_one_device(layer(mesh)(*operands()), "cpu")
    for arrays in (operands(), placed(mesh, P("ep"), operands())):
        y = jax_megamoe.expert_parallel(*arrays, axis_name="ep", mesh=mesh, implementation="cpu")
        assert_as_on_one_device(y, "cpu")


PROCESS = """
import numpy as np
from contract import bits
from layer import mesh_of, small_case, tokens_of, weights_of
import jax, jax_megamoe
case = small_case(tokens=40)
for implementation in ("cpu", "xla"):
    y = jax.jit(lambda *operands: jax_megamoe.expert_parallel(
        *operands, axis_name="ep", mesh=mesh_of(ep=jax.device_count()),
        implementation=implementation))(*tokens_of(case), weights_of(case))
    print("bits", implementation, bits(np.asarray(y)).tobytes().hex())
"""


def test_processes_of_one_and_of_eight_devices_give_the_same_bits(run_python: Any) -> None:
    results = []
    for devices in (1, 8):
        output = run_python(PROCESS, devices=devices)
        lines = [line.split()[1:] for line in output.splitlines() if line.startswith("bits")]
        results.append(dict(lines))
    assert set(results[0]) == {"cpu", "xla"}
    assert results[0] == results[1]


# --- routing that leaves ranks idle ---------------------------------------------------------------


def routings() -> dict[str, np.ndarray]:
    idx = small_case().topk_idx
    some = np.arange(16) < 4
    return {
        "all tokens to one expert": np.full_like(idx, 5),
        "all slots of one token to one expert": np.where(some[:, None], 7, idx),
        "only the first rank's experts": np.abs(idx) % 2,
        "only the last rank's experts": 6 + np.abs(idx) % 2,
        "the last rank's tokens all skipped": np.where(some[::-1, None], -1, idx),
        "the first rank's tokens all skipped": np.where(some[:, None], 99, idx),
        "one slot in all": np.where((np.arange(48) == 31).reshape(16, 3), 3, -1),
    }


@implementations
@pytest.mark.parametrize("name", routings())
def test_ranks_without_work_change_nothing(name: str, implementation: str) -> None:
    x, _, weight, weights = operands()
    idx = routings()[name].astype(np.int32)
    one = layer(mesh_of(ep=1), implementation)(x, idx, weight, weights)
    assert np.asarray(one).any()
    same(layer(mesh_of(ep=4), implementation)(x, idx, weight, weights), one)


@implementations
def test_skipped_slots_everywhere_give_positive_zero(implementation: str) -> None:
    x, idx, weight, weights = operands()
    x = x.at[3].set(jnp.nan)
    weight = weight.at[2].set(jnp.nan)
    for outside in (-1, 8, 2**31 - 1):
        skipped = jnp.full_like(idx, outside)
        y = layer(mesh_of(ep=4), implementation)(x, skipped, weight, weights)
        assert not bits(np.asarray(y)).any()


def test_nan_of_one_token_stays_in_its_row() -> None:
    x, idx, weight, weights = operands()
    y = layer(mesh_of(ep=4))(x.at[5].set(jnp.nan), idx, weight, weights)
    want = np.array(layer(mesh_of(ep=1))(x, idx, weight, weights))
    want.view(np.uint16)[5] = 0x7FC0
    same(y, want)


# --- how many tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "kind", "shape", "implementation"),
    [
        (1, "Auto", {"ep": 8}, "cpu"),
        (7, "Auto", {"ep": 8}, "cpu"),
        (13, "Explicit", {"ep": 8}, "cpu"),
        (5, "Auto", {"data": 2, "ep": 4}, "cpu"),
        (6, "Auto", {"data": 2, "ep": 4}, "cpu"),  # divides over data, not over both
        (1, "Explicit", {"data": 2, "ep": 4}, "cpu"),
        (5, "Auto", {"ep": 4}, "xla"),
    ],
)
def test_tokens_that_do_not_divide_over_the_ranks(
    tokens: int, kind: str, shape: dict[str, int], implementation: str
) -> None:
    *rest, weights = operands()
    few = (*(value[:tokens] for value in rest), weights)
    y = layer(mesh_of(kind, **shape), implementation)(*few)
    same(y, np.asarray(layer(mesh_of(ep=1), implementation)(*operands()))[:tokens])


def test_tokens_that_do_not_divide_in_an_eager_call() -> None:
    *rest, weights = operands()
    few = (*(value[:5] for value in rest), weights)
    y = jax_megamoe.expert_parallel(*few, axis_name="ep", mesh=mesh_of(ep=4))
    same(y, np.asarray(layer(mesh_of(ep=1))(*operands()))[:5])


def no_tokens(*lead: int) -> tuple[Any, ...]:
    x, idx, weight = (
        jnp.zeros((*lead, size), dtype)
        for size, dtype in ((64, jnp.bfloat16), (3, jnp.int32), (3, jnp.float32))
    )
    return x, idx, weight, operands()[-1]


@implementations
@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 4)])
def test_no_tokens_give_an_empty_result_without_collectives(
    lead: tuple[int, ...], implementation: str
) -> None:
    for kind in ("Auto", "Explicit"):
        mesh = mesh_of(kind, ep=4)
        y = jax_megamoe.expert_parallel(
            *no_tokens(*lead), axis_name="ep", mesh=mesh, implementation=implementation
        )
        assert y.shape == (*lead, 64) and y.dtype == jnp.bfloat16
        compiled = layer(mesh, implementation).lower(*no_tokens(*lead)).compile()
        assert not collectives(compiled.as_text())
        assert compiled(*no_tokens(*lead)).shape == (*lead, 64)


def test_no_tokens_on_a_rank_inside_shard_map() -> None:
    mesh = mesh_of(ep=4)
    call = functools.partial(jax_megamoe.mega_moe, axis_name="ep", implementation="cpu")
    mapped = jax.shard_map(call, mesh=mesh, in_specs=P("ep"), out_specs=P("ep"))
    assert not collectives(jax.jit(mapped).lower(*no_tokens(0)).compile().as_text())
    assert jax.jit(mapped)(*placed(mesh, P("ep"), no_tokens(0))).shape == (0, 64)


@pytest.mark.parametrize(
    ("tokens", "bounds", "implementation"),
    [
        (26, {"MAX_CHUNK_TOKENS": 4}, "cpu"),  # two tokens a rank, the last chunk not full
        (28, {"MAX_CHUNK_ROWS": 13}, "cpu"),
        (30, {"MAX_CHUNK_ROWS": 1}, "cpu"),  # one token a rank is the least
        (26, {"MAX_CHUNK_TOKENS": 4}, "xla"),
    ],
)
def test_chunks_give_the_bits_of_one_piece(
    tokens: int,
    bounds: dict[str, int],
    implementation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(exchange, name, value)
    # T that no other test of two ranks has, since jax keeps what it has traced.
    call = functools.partial(
        jax_megamoe.expert_parallel,
        axis_name="ep",
        mesh=mesh_of(ep=2),
        implementation=implementation,
    )
    arrays = operands(small_case(tokens=tokens))
    assert " while(" in jax.jit(call).lower(*arrays).compile().as_text()
    assert_as_on_one_device(call(*arrays), implementation, tokens=tokens)


# --- meshes with another axis ---------------------------------------------------------------------

# Leading axes of the tokens, and their sharding. On Auto meshes nothing tells how tokens lie, so
# they are laid out by the data axis first; tokens that lie so already need not move.
ALONG_DATA = [
    ((16,), P()),
    ((16,), P("data")),
    ((16,), P(("data", "ep"))),
    ((2, 8), P("data")),
    ((2, 8), P("data", "ep")),
    ((1, 16), P(None, "data")),
]
OTHERWISE = [
    ((16,), P("ep")),
    ((16,), P(("ep", "data"))),
    ((2, 8), P(None, ("data", "ep"))),
    ((4, 4), P("ep", "data")),
    ((2, 2, 4), P("data", None, "ep")),
]
DATA_FIRST, EP_FIRST = {"data": 2, "ep": 4}, {"ep": 4, "data": 2}


def with_lead(lead: tuple[int, ...]) -> tuple[Any, ...]:
    *rest, weights = operands()
    return (*(value.reshape(*lead, value.shape[-1]) for value in rest), weights)


def assert_moves_no_tokens_over_data_and_no_weights(
    hlo: str, shape: dict[str, int], weight_bytes: int
) -> None:
    found = collectives(hlo)
    assert found, "the exchange is made of collectives"
    for collective in found:
        assert not collective.spans("data", shape), collective
        assert collective.bytes < weight_bytes, collective


@pytest.mark.parametrize(
    ("lead", "spec", "shape"),
    [
        *((*case, DATA_FIRST) for case in ALONG_DATA + OTHERWISE),
        (*ALONG_DATA[1], EP_FIRST),
    ],
    ids=str,
)
def test_explicit_mesh_keeps_the_sharding_of_the_tokens(
    lead: tuple[int, ...], spec: P, shape: dict[str, int]
) -> None:
    mesh = mesh_of("Explicit", **shape)
    arrays = placed(mesh, spec, with_lead(lead))
    compiled = layer(mesh).lower(*arrays).compile()
    y = compiled(*arrays)
    assert_as_on_one_device(y, "cpu")
    assert y.shape == (*lead, 64)
    assert y.sharding.is_equivalent_to(arrays[0].sharding, y.ndim)
    assert jax.typeof(y) == jax.typeof(arrays[0])
    assert_moves_no_tokens_over_data_and_no_weights(compiled.as_text(), shape, 1 << 30)


@pytest.mark.parametrize(
    ("lead", "spec", "shape"),
    [*((*case, DATA_FIRST) for case in ALONG_DATA), (*ALONG_DATA[1], EP_FIRST)],
    ids=str,
)
def test_auto_mesh_moves_nothing_over_data(
    lead: tuple[int, ...], spec: P, shape: dict[str, int]
) -> None:
    mesh = mesh_of(**shape)
    arrays = placed(mesh, spec, with_lead(lead))
    compiled = layer(mesh).lower(*arrays).compile()
    assert_as_on_one_device(compiled(*arrays), "cpu")
    assert_moves_no_tokens_over_data_and_no_weights(compiled.as_text(), shape, 1 << 30)


@pytest.mark.parametrize(("lead", "spec"), OTHERWISE, ids=str)
def test_auto_mesh_takes_tokens_however_they_lie(lead: tuple[int, ...], spec: P) -> None:
    mesh = mesh_of(data=2, ep=4)
    arrays = placed(mesh, spec, with_lead(lead))
    y = layer(mesh)(*arrays)
    assert y.shape == (*lead, 64)
    assert_as_on_one_device(y, "cpu")


@kinds
@pytest.mark.parametrize("form", ["plain", "prepared"])
def test_no_collective_is_as_large_as_weights(kind: str, form: str) -> None:
    # Sizes at which every weight array of a rank is larger than all that is exchanged.
    case = small_case(tokens=8, slots=1, intermediate=512, hidden=128)
    weights = weights_of(case)
    given = weights if form == "plain" else jax_megamoe.prepare_weights(weights, "cpu")
    shape = {"data": 2, "ep": 4}
    mesh = mesh_of(kind, **shape)
    arrays = placed(mesh, P("data"), (*tokens_of(case), given))
    hlo = layer(mesh).lower(*arrays).compile().as_text()
    least = min(leaf.nbytes for leaf in jax.tree.leaves(weights)) // 4
    assert_moves_no_tokens_over_data_and_no_weights(hlo, shape, least)


def test_the_search_finds_weights_that_are_gathered_and_tokens_that_cross_data() -> None:
    shape = {"data": 2, "ep": 4}
    mesh = mesh_of(**shape)
    x = jax.device_put(jnp.ones((8, 512)), NamedSharding(mesh, P(("data", "ep"))))
    gather = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P()))
    (found,) = collectives(gather.lower(x).compile().as_text())
    assert found.spans("data", shape) and found.spans("ep", shape)
    assert found.bytes == 8 * 512 * 4
    gather = jax.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P("data")))
    (found,) = collectives(gather.lower(x).compile().as_text())
    assert found.spans("ep", shape) and not found.spans("data", shape)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, dimensions={0}", [[0, 1], [2, 3]]),
        ("source_target_pairs={{0,3},{1,2}}, x", [[0, 3], [1, 2]]),
        ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0), x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=1,'c'=2] {'a','c'}, x", [[0, 1, 2, 3]]),
    ],
)
def test_the_ways_in_which_hlo_writes_groups(text: str, groups: list[list[int]]) -> None:
    line = f"  %y = (s8[4,2]{{1,0}}, f32[3]) all-to-all(%x), channel_id=1, {text}"
    assert collectives(line) == [Collective("all-to-all", 8 + 12, groups)]


# --- the expert axis ------------------------------------------------------------------------------


@kinds
def test_experts_over_several_axes(kind: str) -> None:
    mesh = mesh_of(kind, a=2, b=2, c=2)
    for axes, tokens in ((("a", "b", "c"), P(("a", "b", "c"))), (("c", "a"), P("b"))):
        arrays = placed(mesh, tokens, operands(), axes)
        assert_as_on_one_device(layer(mesh, axis_name=axes)(*arrays), "cpu")


@kinds
def test_mesh_in_context(kind: str) -> None:
    call = functools.partial(jax_megamoe.expert_parallel, axis_name="ep", implementation="cpu")
    arrays = operands()
    with jax.set_mesh(mesh_of(kind, data=2, ep=4)):
        assert_as_on_one_device(call(*arrays), "cpu")
        assert_as_on_one_device(jax.jit(call)(*arrays), "cpu")


def test_one_device_of_a_larger_host() -> None:
    device = jax.devices()[5]
    mesh = jax.sharding.Mesh(np.array([device]), ("ep",))
    for call in (
        layer(mesh),
        functools.partial(jax_megamoe.expert_parallel, axis_name="ep", mesh=mesh),
    ):
        y = call(*operands())
        assert_as_on_one_device(y, "cpu")
        assert y.devices() == {device}
        assert call(*jax.device_put(operands(), device)).devices() == {device}


def test_devices_of_a_mesh_in_any_order() -> None:
    devices = np.array(jax.devices())[[6, 1, 3, 0]]
    mesh = jax.sharding.Mesh(devices, ("ep",))
    assert_as_on_one_device(layer(mesh)(*operands()), "cpu")


# --- inside the caller's own shard_map ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "function", "shape"),
    [
        ("Auto", "mega_moe", {"ep": 4}),
        ("Auto", "mega_moe", DATA_FIRST),
        ("Explicit", "mega_moe", DATA_FIRST),
        ("Auto", "expert_parallel", DATA_FIRST),
        ("Explicit", "expert_parallel", {"ep": 4}),
        ("Auto", "expert_parallel mesh=", {"ep": 4}),
        ("Explicit", "expert_parallel mesh=", DATA_FIRST),
    ],
    ids=str,
)
def test_inside_the_callers_own_shard_map(kind: str, function: str, shape: dict[str, int]) -> None:
    mesh = mesh_of(kind, **shape)
    keywords = {"mesh": mesh} if function.endswith("mesh=") else {}
    public = getattr(jax_megamoe, function.split()[0])
    call = functools.partial(public, axis_name="ep", implementation="cpu", **keywords)
    tokens = P(tuple(shape))
    mapped = jax.shard_map(
        call, mesh=mesh, in_specs=(tokens, tokens, tokens, P("ep")), out_specs=tokens
    )
    arrays = placed(mesh, tokens, operands())
    assert_as_on_one_device(jax.jit(mapped)(*arrays), "cpu")


def test_tokens_that_every_rank_holds() -> None:
    # Each rank asks for all tokens; the result is complete on each.
    mesh = mesh_of(ep=4)
    call = functools.partial(jax_megamoe.mega_moe, axis_name="ep", implementation="cpu")
    mapped = jax.shard_map(call, mesh=mesh, in_specs=(P(), P(), P(), P("ep")), out_specs=P("ep"))
    y = np.asarray(jax.jit(mapped)(*operands())).reshape(4, 16, 64)
    for part in y:
        assert_as_on_one_device(part, "cpu")


@kinds
def test_expert_parallel_where_only_another_axis_is_manual(kind: str) -> None:
    mesh = mesh_of(kind, data=2, ep=4)
    for keywords in ({}, {"mesh": mesh}):
        call = functools.partial(
            jax_megamoe.expert_parallel, axis_name="ep", implementation="cpu", **keywords
        )
        mapped = jax.shard_map(
            call,
            mesh=mesh,
            in_specs=(P("data"), P("data"), P("data"), P()),
            out_specs=P("data"),
            axis_names={"data"},
        )
        arrays = placed(mesh, P("data"), operands())
        with jax.set_mesh(mesh):
            assert_as_on_one_device(jax.jit(mapped)(*arrays), "cpu")


# --- memory ---------------------------------------------------------------------------------------


def shapes(
    implementation: str, tokens: int, hidden: int, intermediate: int, slots: int, mesh: Mesh
) -> tuple[Any, ...]:
    """Arguments without values: T tokens split over the ranks, 8 prepared experts."""

    def array(*shape: int, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P("ep")))

    weights = jax_megamoe.ExpertWeights(
        array(8, 2 * intermediate, hidden // 2, dtype=jnp.int8),
        array(8, 2 * intermediate, hidden // 32, dtype=jnp.uint8),
        array(8, hidden, intermediate // 2, dtype=jnp.int8),
        array(8, hidden, intermediate // 32, dtype=jnp.uint8),
    )
    prepare = functools.partial(jax_megamoe.prepare_weights, implementation=implementation)
    prepared = jax.eval_shape(prepare, weights)
    return (
        array(tokens, hidden, dtype=jnp.bfloat16),
        array(tokens, slots, dtype=jnp.int32),
        array(tokens, slots, dtype=jnp.float32),
        jax.tree.map(lambda leaf: array(*leaf.shape, dtype=leaf.dtype), prepared),
    )


def temporaries(mesh: Mesh, *sizes: Any) -> int:
    compiled = layer(mesh, None).lower(*shapes(*sizes, mesh)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("tokens", [64, 65536])
@pytest.mark.parametrize(("hidden", "intermediate", "slots"), [(2048, 1024, 4), (128, 512, 1)])
def test_xla_holds_one_experts_float32_weights_and_24_bytes_a_value(
    tokens: int, hidden: int, intermediate: int, slots: int
) -> None:
    bound = 4 * 3 * hidden * intermediate + 24 * tokens * slots * (hidden + 2 * intermediate)
    used = temporaries(mesh_of(ep=1), "xla", tokens, hidden, intermediate, slots)
    assert used <= bound, f"{used} bytes, {used / bound:.2f} of the bound"


@implementations
@pytest.mark.parametrize(
    ("ranks", "hidden", "intermediate", "slots"), [(2, 256, 512, 32), (8, 1024, 256, 6)]
)
def test_exchange_holds_one_chunk_whatever_the_number_of_tokens(
    implementation: str, ranks: int, hidden: int, intermediate: int, slots: int
) -> None:
    chunk = min(4096, 32768 // slots)
    rows = 2 * chunk * slots * hidden
    # One chunk: its rows as computed, and as sent, received and put together by an all-to-all;
    # this rank's own tokens' rows once chosen in bfloat16 and once summed in float32; the gathered
    # codes, scales, ids and weights, before and after their types are restored, and a few integers
    # for each slot to sort them.
    in_chunk = 4 * rows + 3 * rows // ranks
    in_chunk += 2 * chunk * (hidden + hidden // 32 + 8 * slots) + 64 * chunk * slots
    if implementation == "xla":
        in_chunk += 4 * 3 * hidden * intermediate
        in_chunk += 24 * 32 * (hidden + 2 * intermediate)  # one tile
    for tokens in (4096, 65536) if implementation == "cpu" else (65536,):
        # What this rank holds of x, its result, ids and weights, split into chunks.
        own = tokens // ranks * (4 * hidden + 8 * slots)
        used = temporaries(mesh_of(ep=ranks), implementation, tokens, hidden, intermediate, slots)
        bound = in_chunk + 2 * own
        assert used <= bound, f"T = {tokens}: {used} bytes, {used / bound:.2f} of the bound"

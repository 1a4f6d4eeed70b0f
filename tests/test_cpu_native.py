"""The CPU custom call itself: its FFI targets called directly, on every instruction-set path.

What the layer means is `contract.py`'s to test through the package; here are the promises of the
handlers: errors for wrong buffers, skipped slots, extreme counts, bits that do not depend on batch,
path (float32 ones) or chunk, and a program that would hang a handler which waits for its own thread
pool. A path is chosen when the process starts, hence the subprocesses, which import this file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from contract import EXACT, ROW_BOUND
from data import Case, exact_case, fragile_case, random_case
from jax_megamoe import _native, targets
from jax_megamoe.layouts import cpu as layout
from oracle import SCALE_NAN, Array, Oracle, bf16, quantise_fp8, widen

RunPython = Callable[..., str]  # the fixture run_python

BF16 = ml_dtypes.bfloat16
PATHS = _native.cpu_paths()
INT32 = np.iinfo(np.int32)


def operands(case: Case) -> dict[str, Any]:
    """The arguments of `jax_megamoe.cpu.moe` for a case, by name."""
    weights = case.weights
    experts = weights["gate_up_proj"].shape[0]
    none = np.zeros((experts, 0), np.float32)
    return {
        "x": case.x,
        "topk_idx": case.topk_idx,
        "topk_weights": case.topk_weights,
        "gate_up_proj": layout.prepare_codes(weights["gate_up_proj"], "gate_up_proj"),
        "gate_up_proj_scale_inv": layout.prepare_scales(
            weights["gate_up_proj_scale_inv"], "gate_up_proj"
        ),
        "down_proj": layout.prepare_codes(weights["down_proj"], "down_proj"),
        "down_proj_scale_inv": layout.prepare_scales(weights["down_proj_scale_inv"], "down_proj"),
        "gate_up_proj_bias": weights.get("gate_up_proj_bias", none),
        "down_proj_bias": weights.get("down_proj_bias", none),
    }


def attributes(case: Case) -> dict[str, Any]:
    limit = case.activation["swiglu_limit"]
    return {
        "swiglu_limit": np.float32(np.inf if limit is None else limit),
        "swiglu_alpha": np.float32(case.activation["swiglu_alpha"]),
        "swiglu_beta": np.float32(case.activation["swiglu_beta"]),
        "layout_version": np.int32(layout.VERSION),
    }


def call(target: str, arguments: dict[str, Any], attrs: dict[str, Any], shape: Any = None) -> Array:
    targets.register()
    if shape is None:
        shape = arguments["x"].shape
    if isinstance(shape, tuple):
        shape = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    return np.asarray(jax.ffi.ffi_call(target, shape)(*arguments.values(), **attrs))


def layer(case: Case) -> Array:
    return call(targets.CPU_LAYER, operands(case), attributes(case))


def rows_operands(case: Case) -> dict[str, Any]:
    """The arguments of `jax_megamoe.cpu.rows`: the oracle quantises the tokens."""
    arguments = operands(case)
    codes, scale = quantise_fp8(widen(arguments.pop("x")))
    return {"q": codes.view(ml_dtypes.float8_e4m3fn), "scale": scale, **arguments}


def rows(case: Case) -> Array:
    shape = (*case.topk_idx.shape, case.x.shape[1])
    return call(targets.CPU_ROWS, rows_operands(case), attributes(case), shape)


def bits(y: Array) -> Array:
    return np.asarray(y).view(np.uint16)


def tokens_of(case: Case, index: Any) -> Case:
    return Case(
        case.x[index],
        case.topk_idx[index],
        case.topk_weights[index],
        case.weights,
        case.activation,
    )


# ---- every path


def check_path(name: str) -> str:
    """Runs in a subprocess on one path; the digest of results that float32 paths share."""
    assert _native.cpu_path() == name, _native.cpu_path()
    for kind, options in EXACT.items():
        case = exact_case(3, **options)
        np.testing.assert_array_equal(bits(layer(case)), bits(case.oracle().astype(BF16)), kind)
    for seed, options in enumerate(
        [dict(hidden=2880, intermediate=96), dict(hidden=32, intermediate=2880), dict(tokens=90)]
    ):
        case = random_case(seed, bias=seed == 0, limit=7.0, alpha=1.702, beta=1.0, **options)
        found, expected = widen(layer(case)), case.oracle()
        distance = np.linalg.norm(found - expected, axis=1)
        assert (distance <= ROW_BOUND * np.linalg.norm(expected, axis=1)).all(), distance.max()
    case = fragile_case(7, tokens=70)
    together = layer(case)
    for t in range(0, 70, 9):
        alone = layer(tokens_of(case, slice(t, t + 1)))
        np.testing.assert_array_equal(bits(alone)[0], bits(together)[t], f"token {t}")
    return hashlib.sha256(bits(together).tobytes()).hexdigest()


def test_float32_paths_are_right_and_agree_bit_for_bit(run_python: RunPython) -> None:
    digests = {}
    for path in PATHS:
        code = f"import test_cpu_native as t; print('digest', t.check_path({path!r}))"
        output = run_python(code, env={"JAX_MEGAMOE_CPU_PATH": path})
        digests[path] = output.split("digest ")[1].strip()
    assert "portable" in digests
    assert len({digest for path, digest in digests.items() if path != "avx512_bf16"}) == 1, digests


def test_an_unknown_path_is_an_error_that_names_the_accepted_ones(run_python: RunPython) -> None:
    code = """
import test_cpu_native as t, data
try: t._native.cpu_path()
except ValueError as e: print("PYTHON", e)
try: t.layer(data.random_case(0))
except Exception as e: print("FFI", type(e).__name__, e)
"""
    output = run_python(code, env={"JAX_MEGAMOE_CPU_PATH": "avx1024"})
    for line in ("PYTHON environment", "FFI JaxRuntimeError INVALID_ARGUMENT: environment"):
        assert f'{line} variable JAX_MEGAMOE_CPU_PATH: found "avx1024"' in output, output
    assert output.count(f"accepts: {', '.join(PATHS)}. Unset it") == 2, output


# ---- bits


def test_a_token_has_the_same_bits_at_every_position_of_every_batch() -> None:
    case = fragile_case(11, tokens=1)
    alone = bits(layer(case))[0]
    for size in (2, 3, 4, 5, 6, 7, 8, 12, 13, 25, 50, 97):
        crowd = fragile_case(12, tokens=size)
        for position in {0, 1, size // 2, size - 1}:
            x, idx, weights = crowd.x.copy(), crowd.topk_idx.copy(), crowd.topk_weights.copy()
            x[position], idx[position], weights[position] = (
                case.x[0],
                case.topk_idx[0],
                case.topk_weights[0],
            )
            batch = Case(x, idx, weights, case.weights, case.activation)
            np.testing.assert_array_equal(bits(layer(batch))[position], alone, f"{position}/{size}")


@pytest.mark.parametrize("kind", ["random", "fragile", "exact"])
def test_rows_are_the_layers_before_the_sum(kind: str) -> None:
    case = {
        "random": lambda: random_case(5, bias=True, limit=10.0, tokens=40, slots=5),
        "fragile": lambda: fragile_case(5, tokens=20),
        "exact": lambda: exact_case(5, bias=True),
    }[kind]()
    found = rows(case)
    oracle = Oracle(case.weights, **case.activation)
    valid = oracle.valid(case.topk_idx)
    assert not bits(found)[~valid].any(), "a skipped slot's row is all +0"
    total = np.zeros(case.x.shape, np.float32)
    for k in range(case.topk_idx.shape[1]):
        total = np.where(valid[:, k, None], total + found[:, k].astype(np.float32), total)
    np.testing.assert_array_equal(bits(total.astype(BF16)), bits(layer(case)))
    if kind == "exact":
        expected = oracle.rows(case.x, case.topk_idx, case.topk_weights)
        np.testing.assert_array_equal(widen(found), bf16(expected))


# ---- indices, counts, special values


def test_ids_out_of_range_skip_the_slot_whatever_its_weight() -> None:
    case = random_case(6, experts=3, slots=4, skips=False)
    idx, weights = case.topk_idx.copy(), case.topk_weights.copy()
    bad = [-1, 3, INT32.max, INT32.min, -2, 65536, 1 << 30]
    for t in range(len(idx)):
        idx[t, t % 4] = bad[t % len(bad)]
        weights[t, t % 4] = [np.nan, np.inf, 1.0][t % 3]
    idx[5] = -1
    skipped = Case(case.x, idx, weights, case.weights, case.activation)
    found = layer(skipped)
    assert not bits(found)[5].any()
    weights = np.where((idx >= 0) & (idx < 3), weights, np.float32(0.5))
    clean = Case(case.x, idx, weights, case.weights, case.activation)
    np.testing.assert_array_equal(bits(found), bits(layer(clean)))
    assert np.isfinite(widen(found)).all()


def test_nan_reaches_its_own_token_only() -> None:
    case = random_case(8, tokens=30, skips=False)
    x, weights = case.x.copy(), case.topk_weights.copy()
    x[3, 17], x[4, 0], x[5, -1] = np.nan, np.inf, -np.inf
    weights[3] = 0.0
    weights[7, 1] = np.nan
    scales = {name: array.copy() for name, array in case.weights.items()}
    scales["down_proj_scale_inv"][2, 5, 0] = SCALE_NAN
    y = widen(layer(Case(x, case.topk_idx, weights, scales, case.activation)))
    clean = widen(layer(case))
    for t in range(30):
        if t in (3, 4, 5, 7):
            assert np.isnan(y[t]).all(), t
            continue
        poisoned = np.zeros(y.shape[1], bool)
        poisoned[5] = (case.topk_idx[t] == 2).any()
        np.testing.assert_array_equal(np.isnan(y[t]), poisoned, f"token {t}")
        np.testing.assert_array_equal(y[t][~poisoned], clean[t][~poisoned], f"token {t}")


def test_a_nan_result_is_the_canonical_one() -> None:
    case = random_case(9, tokens=2, skips=False)
    x = case.x.copy()
    x.view(np.uint16)[0, 3] = 0xFFC1
    y = layer(Case(x, case.topk_idx, case.topk_weights, case.weights, case.activation))
    assert (bits(y)[0] == 0x7FC0).all()


def test_no_tokens_give_an_empty_result() -> None:
    case = tokens_of(random_case(1), slice(0, 0))
    assert layer(case).shape == (0, 128)
    assert rows(case).shape == (0, 3, 128)


@pytest.mark.parametrize("slots", [1, 2, 31, 32])
def test_any_number_of_slots(slots: int) -> None:
    case = exact_case(2, slots=slots, tokens=7)
    np.testing.assert_array_equal(bits(layer(case)), bits(case.oracle().astype(BF16)))


@pytest.mark.parametrize("experts", [1, 896])
def test_any_number_of_experts(experts: int) -> None:
    case = exact_case(2, experts=experts, hidden=32, intermediate=32, tokens=50)
    np.testing.assert_array_equal(bits(layer(case)), bits(case.oracle().astype(BF16)))


def repeated(seed: int, times: int, **options: Any) -> tuple[Case, Case]:
    """A case, and one whose tokens are its tokens over and over."""
    case = random_case(seed, **options)
    many = Case(
        np.tile(case.x, (times, 1)),
        np.tile(case.topk_idx, (times, 1)),
        np.tile(case.topk_weights, (times, 1)),
        case.weights,
        case.activation,
    )
    return case, many


def assert_repeats(few: Array, many: Array) -> None:
    many = bits(many).reshape(-1, *few.shape)
    assert (many == bits(few)).all()


def test_more_slots_than_sixteen_bits_count() -> None:
    case, many = repeated(3, 140, tokens=16, slots=32, hidden=32, intermediate=32)
    assert many.topk_idx.size > 65535
    assert_repeats(layer(case), layer(many))
    assert_repeats(rows(case), rows(many))


def test_more_rows_than_fit_the_scratch_memory_go_in_chunks() -> None:
    case, many = repeated(4, 150, tokens=16, slots=32, hidden=2048, intermediate=32)
    assert many.topk_idx.size * 2048 * 2 > 1 << 28
    assert_repeats(layer(case), layer(many))


@pytest.mark.slow
def test_more_row_elements_than_31_bits_count() -> None:
    case, many = repeated(5, 65, tokens=512, slots=32, hidden=2048, intermediate=32)
    assert many.topk_idx.size * 2048 > 1 << 31
    assert_repeats(layer(case), layer(many))
    assert_repeats(rows(case), rows(many))


# ---- errors


def shifted(array: Any, axis: int, by: int = 1) -> Any:
    shape = list(array.shape)
    shape[axis] += by
    return np.zeros(shape, array.dtype)


def wrong_buffers() -> list[tuple[str, Callable[[Any], Any]]]:
    """(argument, what is done to it): another type, another rank, each dimension that is bound."""
    bound = {
        "topk_idx": (0,),
        "topk_weights": (0, 1),
        "gate_up_proj": (2, 3),
        "gate_up_proj_scale_inv": (0, 1, 2, 3),
        "down_proj": (0, 1, 2, 3),
        "down_proj_scale_inv": (0, 1, 2, 3),
        "gate_up_proj_bias": (0, 1),
        "down_proj_bias": (0, 1),
    }
    cases: list[tuple[str, Callable[[Any], Any]]] = []
    for name in ("x", *bound):
        cases.append((name, lambda a: np.zeros(a.shape, np.float16)))
        cases.append((name, lambda a: a.reshape(1, *a.shape)))
        for axis in bound.get(name, ()):
            cases.append((name, lambda a, axis=axis: shifted(a, axis)))
    return cases


@pytest.mark.parametrize(("name", "spoil"), wrong_buffers())
def test_a_wrong_buffer_is_an_error_with_both_shapes(
    name: str, spoil: Callable[[Any], Any]
) -> None:
    case = random_case(0, bias=True)
    arguments = operands(case)
    good = arguments[name]
    arguments[name] = spoil(good)
    found = f"{arguments[name].dtype}{list(arguments[name].shape)}"
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call(targets.CPU_LAYER, arguments, attributes(case), (24, 128))
    message = str(caught.value)
    start = f"INVALID_ARGUMENT: jax_megamoe.cpu.moe: argument {name}: found {found}, accepted is "
    assert message.startswith(start), message
    assert f"accepted is {good.dtype}" in message and ";" in message, message


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("x", (24, 48), "argument x: found H = 48, accepted are positive multiples of 32"),
        ("topk_idx", (24, 0), "argument topk_idx: found K = 0, accepted are 1 to 32"),
        ("topk_idx", (24, 33), "argument topk_idx: found K = 33, accepted are 1 to 32"),
        ("gate_up_proj", (0, 8, 4, 256), "argument gate_up_proj: found E = 0 experts"),
        (
            "gate_up_proj",
            (4, 6, 4, 256),
            "gate_up_proj: found 6 panels of 16 rows, so I = 48",
        ),
        (
            "gate_up_proj",
            (4, 0, 4, 256),
            "gate_up_proj: found 0 panels of 16 rows, so I = 0",
        ),
    ],
)
def test_a_size_out_of_range_is_an_error(name: str, shape: tuple[int, ...], words: str) -> None:
    case = random_case(0)
    arguments = operands(case)
    arguments[name] = np.zeros(shape, arguments[name].dtype)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT") as caught:
        call(targets.CPU_LAYER, arguments, attributes(case), (24, 128))
    assert words in str(caught.value)


def test_the_rows_target_names_its_own_operand() -> None:
    case = random_case(0)
    tokens, slots = case.topk_idx.shape
    arguments = operands(case)
    del arguments["x"]
    quantised = {
        "q": np.zeros((tokens, 48), ml_dtypes.float8_e4m3fn),
        "scale": np.zeros((tokens, 1), np.uint8),
    }
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call(targets.CPU_ROWS, {**quantised, **arguments}, attributes(case), (tokens, slots, 48))
    assert "jax_megamoe.cpu.rows: argument q: found H = 48" in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("layout_version", np.int32(2), "found 2, accepted is 1; convert the weights"),
        ("swiglu_limit", np.float32(-1), "found -1.000000, accepted are numbers from 0 up"),
        ("swiglu_limit", np.float32(np.nan), "found nan, accepted are numbers from 0 up"),
        ("swiglu_alpha", np.float32(np.inf), "found inf, accepted are finite numbers"),
        ("swiglu_beta", np.float32(np.nan), "found nan, accepted are finite numbers"),
    ],
)
@pytest.mark.parametrize("target", [targets.CPU_LAYER, targets.CPU_ROWS])
def test_a_wrong_attribute_is_an_error(target: str, attribute: str, value: Any, words: str) -> None:
    case = random_case(0)
    arguments = operands(case) if target == targets.CPU_LAYER else rows_operands(case)
    shape = (24, 128) if target == targets.CPU_LAYER else (24, 3, 128)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT") as caught:
        call(target, arguments, {**attributes(case), attribute: value}, shape)
    assert f"{target}: attribute {attribute}: {words}" in str(caught.value)


def test_a_wrong_result_is_an_error() -> None:
    case = random_case(0)
    for shape in ((24, 96), (23, 128), jax.ShapeDtypeStruct((24, 128), jnp.float32)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="argument result y: found"):
            call(targets.CPU_LAYER, operands(case), attributes(case), shape)
    with pytest.raises(jax.errors.JaxRuntimeError, match="argument result rows: found"):
        call(targets.CPU_ROWS, rows_operands(case), attributes(case), (24, 4, 128))


@pytest.mark.parametrize(("name", "dtype"), [("q", np.int8), ("scale", np.int8)])
def test_wrong_quantised_tokens_are_an_error(name: str, dtype: Any) -> None:
    case = random_case(0)
    arguments = rows_operands(case)
    arguments[name] = np.zeros(arguments[name].shape, dtype)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"argument {name}: found int8"):
        call(targets.CPU_ROWS, arguments, attributes(case), (24, 3, 128))
    arguments[name] = np.zeros((25, *arguments[name].shape[1:]), arguments[name].dtype)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
        call(targets.CPU_ROWS, arguments, attributes(case), (24, 3, 128))


def test_lack_of_memory_is_an_error_and_the_next_call_works(run_python: RunPython) -> None:
    code = """
import resource, jax, numpy as np, test_cpu_native as t
case, many = t.repeated(3, 260, tokens=16, slots=32, hidden=1024, intermediate=32)
t.targets.register()
arguments = list(map(jax.device_put, t.operands(many).values()))
call = jax.ffi.ffi_call(t.targets.CPU_LAYER, jax.ShapeDtypeStruct(many.x.shape, jax.numpy.bfloat16))
program = jax.jit(lambda *a: call(*a, **t.attributes(many))).lower(*arguments).compile()
t.layer(case)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
try: program(*arguments)[0].block_until_ready()
except Exception as e: print("ERROR", e)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
t.assert_repeats(t.layer(case), np.asarray(program(*arguments)))
print("ENDED")
"""
    output = run_python(code)
    assert "ERROR RESOURCE_EXHAUSTED: jax_megamoe.cpu.moe: out of host memory" in output, output
    assert "ENDED" in output, output


# ---- threads

DEADLOCK = """
import jax, numpy as np, test_cpu_native as t, data
from jax.sharding import AxisType, PartitionSpec as P
t.targets.register()
case = data.random_case(1, tokens=64, hidden=256, intermediate=256, experts=8, slots=4)
arguments = t.operands(case)
x, rest = arguments.pop("x"), tuple(arguments.values())
idx, weights, rest = rest[0], rest[1], rest[2:]

def program(x, idx, weights, *rest):
    call = jax.ffi.ffi_call(t.targets.CPU_LAYER, jax.ShapeDtypeStruct(x.shape, x.dtype))
    ys = [call(x @ (x.T @ x * i), idx, weights, *rest, **t.attributes(case)) for i in range(32)]
    return sum(y @ (y.T @ y) for y in ys)

mesh = jax.make_mesh((jax.device_count(),), ("ep",), axis_types=(AxisType.Auto,))
tokens, whole = P("ep"), P()
program = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=(tokens,) * 3 + (whole,) * 6,
                                out_specs=tokens, check_vma=False))
for _ in range(5):
    program(x, idx, weights, *rest).block_until_ready()
print("ENDED")
"""


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("run", range(3))
def test_independent_calls_in_one_program_do_not_wait_for_each_other(
    run_python: RunPython, devices: int, run: int
) -> None:
    assert "ENDED" in run_python(DEADLOCK, devices=devices, timeout=180)


def test_a_token_of_zeros_gives_zeros() -> None:
    case = exact_case(1, tokens=3)
    zero = Case(case.x * 0, case.topk_idx, case.topk_weights, case.weights, case.activation)
    assert not widen(layer(zero)).any()

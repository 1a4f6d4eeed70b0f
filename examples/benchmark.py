"""Times the layer on this machine: tokens x shapes, beside a bfloat16 baseline and the XLA
implementation.

    python examples/benchmark.py                         the two shapes of the README
    python examples/benchmark.py --shapes tiny --tokens 1,8 --json out.json

All candidates of a row are timed in one interleaved run, and a sample during which the hypervisor
took the CPU away is dropped: compare ratios of one run, not times of two. The baseline is the
fastest plain JAX form on a CPU: bfloat16 weights, dequantised outside the clock and stored [K, N],
a loop over the experts that the (known) routing selects, rows padded to at least 2, float32
results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_megamoe as jm
from jax_megamoe import _native


@dataclasses.dataclass(frozen=True)
class Shape:
    experts: int
    slots: int
    hidden: int
    intermediate: int


SHAPES = {
    "flash": Shape(experts=32, slots=6, hidden=4096, intermediate=2048),
    "gpt-oss": Shape(experts=32, slots=4, hidden=2880, intermediate=2880),
    "tiny": Shape(experts=8, slots=2, hidden=512, intermediate=256),
}
BITS_PER_WEIGHT = 4.25


def make_weights(shape: Shape) -> jm.ExpertWeights:
    """Random codes, with scales that give weights of a trained layer's size."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        codes = rng.integers(-128, 128, (shape.experts, rows, columns // 2), np.int8)
        scales = rng.integers(118, 122, (shape.experts, rows, columns // 32), np.uint8)
        return codes, scales

    gate_up = matrix(2 * shape.intermediate, shape.hidden)
    return jm.ExpertWeights(*gate_up, *matrix(shape.hidden, shape.intermediate))


def make_tokens(shape: Shape, tokens: int) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(tokens)
    x = jnp.asarray(rng.standard_normal((tokens, shape.hidden)), jnp.bfloat16)
    idx = np.argsort(rng.random((tokens, shape.experts)), axis=1)[:, : shape.slots]
    return x, idx.astype(np.int32), rng.random((tokens, shape.slots), np.float32)


def custom_call(weights: Any, mesh: Any) -> Callable[..., jax.Array]:
    call = jax.jit(
        lambda x, idx, w, weights: jm.expert_parallel(x, idx, w, weights, axis_name="ep", mesh=mesh)
    )
    return lambda *tokens: call(*tokens, weights)


def baseline_weights(weights: jm.ExpertWeights) -> list[tuple[jax.Array, jax.Array]]:
    @jax.jit
    def transposed(codes: jax.Array, scale: jax.Array) -> jax.Array:
        return jm.dequantize_fp4(codes, scale, jnp.bfloat16).T

    return [
        (
            transposed(weights.gate_up_proj[e], weights.gate_up_proj_scale_inv[e]),
            transposed(weights.down_proj[e], weights.down_proj_scale_inv[e]),
        )
        for e in range(weights.gate_up_proj.shape[0])
    ]


def baseline(weights: list[tuple[jax.Array, jax.Array]], idx: np.ndarray) -> Callable[..., Any]:
    """The baseline for one routing, known when it is compiled."""
    used = sorted(set(idx.flat))
    rows = []
    for expert in used:
        token, slot = np.nonzero(idx == expert)
        pad = max(0, 2 - len(token))  # a product of one row is slower than one of two
        rows.append((np.pad(token, (0, pad)), np.pad(slot, (0, pad)), len(token)))

    @jax.jit
    def call(x: jax.Array, w: jax.Array, weights: list[Any]) -> jax.Array:
        y = jnp.zeros(x.shape, jnp.float32)
        for (token, slot, count), (gate_up, down) in zip(rows, weights, strict=True):
            products = jnp.dot(x[token], gate_up, preferred_element_type=jnp.float32)
            gate, up = jnp.split(products, 2, axis=1)
            a = (jax.nn.silu(gate) * up * w[token, slot][:, None]).astype(jnp.bfloat16)
            out = jnp.dot(a, down, preferred_element_type=jnp.float32)
            y = y.at[token[:count]].add(out[:count])
        return y.astype(jnp.bfloat16)

    selected = [weights[expert] for expert in used]
    return lambda x, idx, w: call(x, w, selected)


def stolen_ticks() -> int:
    """Clock ticks that the hypervisor took from this machine; 0 where Linux does not say."""
    try:
        with open("/proc/stat") as stat:
            return int(stat.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return 0


def interleaved(candidates: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median seconds of each candidate, taking turns for about `seconds` in all."""
    for call in candidates.values():
        jax.block_until_ready(call())
    times: dict[str, list[float]] = {name: [] for name in candidates}
    disturbed: dict[str, list[float]] = {name: [] for name in candidates}
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < 5:
        rounds += 1
        for name, call in candidates.items():
            before, start = stolen_ticks(), time.perf_counter()
            jax.block_until_ready(call())
            elapsed = time.perf_counter() - start
            (times if stolen_ticks() == before else disturbed)[name].append(elapsed)
    return {name: float(np.median(times[name] or disturbed[name])) for name in candidates}


def measure(name: str, tokens: int, which: list[str], seconds: float, state: dict) -> dict:
    shape = SHAPES[name]
    x, idx, w = make_tokens(shape, tokens)
    candidates = {}
    for implementation in which:
        call = (
            baseline(state["baseline"], idx)
            if implementation == "baseline"
            else state[implementation]
        )
        candidates[implementation] = lambda call=call: call(x, idx, w)
    times = interleaved(candidates, seconds)
    weights_touched = len(set(idx.flat)) * 3 * shape.hidden * shape.intermediate
    row: dict[str, Any] = {"shape": name, "tokens": tokens}
    for implementation, elapsed in times.items():
        bits = 16 if implementation == "baseline" else BITS_PER_WEIGHT
        flop = 6 * shape.hidden * shape.intermediate * tokens * shape.slots
        row[implementation] = {
            "us": 1e6 * elapsed,
            "weights_gb_per_s": weights_touched * bits / 8e9 / elapsed,
            "gflop_per_s": flop / 1e9 / elapsed,
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="flash,gpt-oss", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--tokens", default="1,8,32,128,512")
    parser.add_argument("--implementations", default="cpu,baseline,xla")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    args = parser.parse_args()
    which = args.implementations.split(",")
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])
    print(f"{jax.devices()[0].device_kind}, CPU path {_native.cpu_path()}, jax {jax.__version__}")
    print(
        "shape      tokens  what         us      GB/s of weights  GFLOP/s  first is x times as fast"
    )
    rows = []
    for name in args.shapes.split(","):
        weights = make_weights(SHAPES[name])
        state: dict[str, Any] = {
            implementation: custom_call(jm.prepare_weights(weights, implementation), mesh)
            for implementation in which
            if implementation != "baseline"
        }
        if "baseline" in which:
            state["baseline"] = baseline_weights(jax.tree.map(jnp.asarray, weights))
        for tokens in map(int, args.tokens.split(",")):
            row = measure(name, tokens, which, args.seconds, state)
            rows.append(row)
            for implementation in which:
                cell = row[implementation]
                ratio = cell["us"] / row[which[0]]["us"]
                print(
                    f"{name:10} {tokens:6}  {implementation:8} {cell['us']:9.0f} "
                    f"{cell['weights_gb_per_s']:16.1f} {cell['gflop_per_s']:9.0f} {ratio:12.2f}",
                    flush=True,
                )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

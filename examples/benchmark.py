"""Times the layer on this machine: tokens x shapes, beside bfloat16 peers, the XLA implementation
and what the machine allows.

    python examples/benchmark.py                         the two shapes of the README
    python examples/benchmark.py --limits --threads 1    with the limits, on one thread
    python examples/benchmark.py --limits --plot roofline.png --json rows.json
    python examples/benchmark.py --implementations cpu,torch-loop,torch-grouped
    python examples/benchmark.py --overhead              the fixed cost of a call

All candidates of a row are timed in one interleaved run: compare ratios of one run, not times of
two (`benchmarking/timing.py`). What the candidates are: `benchmarking/peers.py`; what the limits
are: `benchmarking/limits.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarking.limits import Limits
from benchmarking.overhead import overhead
from benchmarking.peers import TORCH, Baseline, Tokens, Torch
from benchmarking.plot import check_installed, roofline
from benchmarking.timing import interleaved

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
PACKAGE = ("cpu", "xla")
IMPLEMENTATIONS = (*PACKAGE, "baseline", *TORCH)
BITS_PER_WEIGHT = 4.25  # of the package's two; the peers hold 16


def make_weights(shape: Shape) -> jm.ExpertWeights:
    """Random codes, with scales that give weights of a trained layer's size."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        codes = rng.integers(-128, 128, (shape.experts, rows, columns // 2), np.int8)
        scales = rng.integers(118, 122, (shape.experts, rows, columns // 32), np.uint8)
        return codes, scales

    gate_up = matrix(2 * shape.intermediate, shape.hidden)
    return jm.ExpertWeights(*gate_up, *matrix(shape.hidden, shape.intermediate))


def make_tokens(shape: Shape, tokens: int) -> Tokens:
    rng = np.random.default_rng(tokens)
    x = jnp.asarray(rng.standard_normal((tokens, shape.hidden)), jnp.bfloat16)
    idx = np.argsort(rng.random((tokens, shape.experts)), axis=1)[:, : shape.slots]
    return x, idx.astype(np.int32), rng.random((tokens, shape.slots), np.float32)


def package(weights: jm.PreparedWeights) -> Callable[[Tokens], Callable[[], Any]]:
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])
    layer = jax.jit(
        lambda x, idx, w, weights: jm.expert_parallel(x, idx, w, weights, axis_name="ep", mesh=mesh)
    )
    return lambda tokens: lambda: jax.block_until_ready(layer(*tokens, weights))


def candidates_of(
    weights: jm.ExpertWeights, which: list[str], threads: int
) -> dict[str, Callable[[Tokens], Callable[[], Any]]]:
    """name -> tokens -> a call that returns when it is done."""
    made: dict[str, Callable[[Tokens], Callable[[], Any]]] = {}
    peer = Torch(weights, threads) if set(which) & set(TORCH) else None
    for name in which:
        if name in PACKAGE:
            made[name] = package(jm.prepare_weights(weights, name))
        elif name == "baseline":
            made[name] = Baseline(jax.tree.map(jnp.asarray, weights)).call
        else:
            made[name] = lambda tokens, name=name: peer.call(name, tokens)
    return made


def measure(
    name: str, tokens: int, made: dict[str, Any], limits: Limits | None, seconds: float
) -> dict[str, Any]:
    shape = SHAPES[name]
    batch = make_tokens(shape, tokens)
    calls = {which: make(batch) for which, make in made.items()}
    times = interleaved({**calls, **(limits.candidates() if limits else {})}, seconds)
    weights = len(set(batch[1].flat)) * 3 * shape.hidden * shape.intermediate
    multiply_adds = 3 * shape.hidden * shape.intermediate * tokens * shape.slots
    row: dict[str, Any] = {
        "shape": name,
        "tokens": tokens,
        "gflop": 2e-9 * multiply_adds,
        "weights_gb": weights * BITS_PER_WEIGHT / 8e9,
        "times": {},
    }
    for which in calls:
        bits = BITS_PER_WEIGHT if which in PACKAGE else 16
        row["times"][which] = {
            "us": 1e6 * times[which],
            "weights_gb_per_s": weights * bits / 8e9 / times[which],
            "gflop_per_s": row["gflop"] / times[which],
        }
    if limits:
        limit = limits.limit(times, 1e9 * row["weights_gb"], multiply_adds)
        row["limits"] = {
            "us": 1e6 * limit.seconds,
            "bound": limit.bound,
            "read_gb_per_s": 1e-9 * limits.read_rate(times),
            "dot_gflop_per_s": 2e-9 * limits.dot_rate(times),
        }
        for which in calls:
            row["times"][which]["share_of_limit"] = limit.seconds / times[which]
    return row


def show(row: dict[str, Any]) -> None:
    first = next(iter(row["times"].values()))["us"]
    label = f"{row['shape']:8} {row['tokens']:6}"
    if "limits" in row:
        limit = row["limits"]
        print(
            f"{label}  limit         {limit['us']:9.0f} {limit['read_gb_per_s']:8.1f} "
            f"{limit['dot_gflop_per_s']:9.0f}                     by {limit['bound']}"
        )
    for name, cell in row["times"].items():
        share = f"{100 * cell['share_of_limit']:6.0f} %" if "limits" in row else ""
        print(
            f"{label}  {name:13} {cell['us']:9.0f} {cell['weights_gb_per_s']:8.1f} "
            f"{cell['gflop_per_s']:9.0f} {cell['us'] / first:10.2f} {share}",
            flush=True,
        )


def one_of(accepted: Any, what: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in accepted:
                raise argparse.ArgumentTypeError(
                    f"found {what} {name!r}, accepted are {', '.join(accepted)}"
                )
        return names

    return parse


def token_counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"found {min(counts)} tokens, at least 1 is accepted")
    return counts


def thread_count(text: str) -> int:
    cpus = len(os.sched_getaffinity(0))
    count = int(text)
    if not 1 <= count <= cpus:
        raise argparse.ArgumentTypeError(f"found {count}, accepted are 1 to {cpus}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--shapes", type=one_of(SHAPES, "shape"), default="flash,gpt-oss", help=", ".join(SHAPES)
    )
    parser.add_argument("--tokens", type=token_counts, default="1,8,32,128,512")
    parser.add_argument(
        "--implementations", type=one_of(IMPLEMENTATIONS, "implementation"),
        default="cpu,baseline,xla", help=", ".join(IMPLEMENTATIONS),
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=thread_count, help="of every candidate; default: all that there are"
    )
    parser.add_argument("--limits", action="store_true", help="also measure what bounds a layer")
    parser.add_argument("--overhead", action="store_true", help="only the fixed cost of a call")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--plot", metavar="PNG", help="also draw a roofline; needs --limits")
    args = parser.parse_args()
    if args.plot and not args.limits:
        parser.error("--plot draws the limits: add --limits")
    if args.plot:
        check_installed()
    cpus = sorted(os.sched_getaffinity(0))
    threads = args.threads or len(cpus)
    os.sched_setaffinity(0, cpus[:threads])  # before jax makes its thread pools
    print(
        f"{jax.devices()[0].device_kind}, CPU path {_native.cpu_path()}, {threads} threads, "
        f"jax {jax.__version__}"
    )
    if args.overhead:
        times = overhead(args.seconds)
        print(
            f"call: layer {1e6 * times['layer']:.1f} us, empty {1e6 * times['empty']:.1f} us, "
            f"overhead {1e6 * (times['layer'] - times['empty']):.1f} us"
        )
        return
    print("                                     GB/s of          first is x  share of")
    print("shape    tokens  what                 us  weights   GFLOP/s   as fast    limit")
    limits = Limits(threads) if args.limits else None
    rows = []
    for name in args.shapes:
        made = candidates_of(make_weights(SHAPES[name]), args.implementations, threads)
        for tokens in args.tokens:
            rows.append(measure(name, tokens, made, limits, args.seconds))
            show(rows[-1])
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    if args.plot:
        roofline(rows, args.plot)


if __name__ == "__main__":
    main()

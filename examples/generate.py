"""From a checkpoint directory to tokens: writes a small random one, loads it, and generates.

    python examples/generate.py                 one CPU device, two families of models
    python examples/generate.py --devices 8     experts and sequences split over 8 host devices

On B200 GPUs the same commands run: `--devices 8` takes 8 GPUs instead of 8 host devices, the
experts are prepared for "sm100" because the mesh's devices are such GPUs, and `setup` makes the
memory through which they reach each other, sized for prefill. Nothing else differs: the model, the
sharding and both compiled programs are the same. A real model would be given a batch of hundreds
of sequences a GPU; `decoder.py` has the experts and routers of gpt-oss and DeepSeek-V4, but not
their attention.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import random_checkpoint
from decoder import Decoder
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def step(graphdef: Any, state: Any, token_ids: Any, cache: Any, start: Any) -> Any:
    """One pass over token_ids [B, S]: the next token of each sequence [B, 1], and the cache.

    Compiled twice: for the prompt (prefill) and for one token (decode).
    """
    logits, cache = nnx.merge(graphdef, state)(token_ids, cache, start)
    return jnp.argmax(logits, axis=-1)[:, None].astype(jnp.int32), cache


@functools.partial(jax.jit, static_argnums=0)
def experts_only(graphdef: Any, state: Any, x: Any, topk_idx: Any, topk_weights: Any) -> Any:
    """The `MegaMoe` layers of a pass and nothing else, for their share of the time."""
    for block in nnx.merge(graphdef, state).blocks:
        x = block.moe(x, topk_idx, topk_weights)
    return x


def generate(path: Path, args: argparse.Namespace) -> jax.Array:
    mesh = jax.make_mesh(
        (args.devices,), ("ep",), axis_types=(AxisType.Auto,), devices=jax.devices()[: args.devices]
    )
    start = time.perf_counter()
    model = Decoder.load(path, mesh, args.implementation)
    loading = time.perf_counter() - start
    moe = model.blocks[0].moe.config
    # Prefill is the largest call: on each device its share of the batch's prompts.
    model.setup(max_tokens_per_rank=args.batch * args.prompt // args.devices)
    graphdef, state = nnx.split(model)

    by_sequence = NamedSharding(mesh, P("ep"))
    vocabulary = model.config.vocab_size
    rng = np.random.default_rng(args.seed)
    prompt = rng.integers(0, vocabulary, (args.batch, args.prompt), np.int32)
    prompt = jax.device_put(prompt, by_sequence)

    def run() -> tuple[jax.Array, float, list[float]]:
        cache = model.empty_cache(args.batch, args.prompt + args.new_tokens)
        begin = time.perf_counter()
        token, cache = jax.block_until_ready(step(graphdef, state, prompt, cache, 0))
        prefill = time.perf_counter() - begin
        tokens, decode = [token], []
        for position in range(args.prompt, args.prompt + args.new_tokens - 1):
            begin = time.perf_counter()
            token, cache = jax.block_until_ready(step(graphdef, state, token, cache, position))
            decode.append(time.perf_counter() - begin)
            tokens.append(token)
        return jnp.concatenate(tokens, axis=1), prefill, decode

    run()  # compiles
    tokens, prefill, decode = run()
    one_step = statistics.median(decode)

    def share(length: int, whole: float) -> float:
        tokens = (args.batch, length)
        x = rng.standard_normal((*tokens, moe.hidden_size), np.float32).astype(jnp.bfloat16)
        scores = rng.standard_normal((*tokens, moe.num_experts))
        idx = np.argsort(-scores, axis=-1)[..., : moe.num_experts_per_tok].astype(np.int32)
        weights = np.full(idx.shape, 1 / moe.num_experts_per_tok, np.float32)
        operands = [jax.device_put(value, by_sequence) for value in (x, idx, weights)]
        return median_time(lambda: experts_only(graphdef, state, *operands)) / whole

    c = model.config
    print(
        f"\n{c.family}-like: {c.num_layers} layers, {moe.num_experts} experts, "
        f"top-{moe.num_experts_per_tok}, H {moe.hidden_size}, I {moe.intermediate_size}; "
        f"{args.devices} {mesh.devices.flat[0].platform} device(s), loaded in {loading:.1f} s"
    )
    for name, length, seconds in (("prefill", args.prompt, prefill), ("decode", 1, one_step)):
        print(
            f"{name + ':':8} {args.batch * length / seconds:8.0f} tokens/s "
            f"({args.batch} x {length}), MoE layers {share(length, seconds):.0%} of the time"
        )
    print("prompt", *prompt[0, :8].tolist(), "... continues", *tokens[0, :12].tolist(), "...")
    return tokens


def median_time(call: Callable[[], Any], repetitions: int = 20) -> float:
    jax.block_until_ready(call())
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    families = sorted(random_checkpoint.CONFIGS)
    parser.add_argument("--family", choices=families, help="default: one after the other")
    parser.add_argument("--devices", type=int, default=1, help="GPUs, or host devices (default 1)")
    parser.add_argument("--batch", type=int, default=8, help="sequences (default 8)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt (default 32)")
    parser.add_argument("--new-tokens", type=int, default=32, help="to generate (default 32)")
    parser.add_argument(
        "--checkpoint", type=Path, help="a directory that this example wrote; default: a new one"
    )
    parser.add_argument(
        "--implementation", choices=("cpu", "xla", "sm100"), help="default: by platform"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.devices < 1 or args.batch % args.devices:
        parser.error(f"--batch {args.batch} does not divide over --devices {args.devices}")
    if min(args.prompt, args.new_tokens - 1) < 1:
        parser.error("--prompt takes at least 1 token, --new-tokens at least 2")
    jax.config.update("jax_num_cpu_devices", args.devices)  # counts where the platform is cpu
    if len(jax.devices()) < args.devices:
        parser.error(f"--devices {args.devices}, but jax has {len(jax.devices())}")

    if args.checkpoint is not None:
        generate(args.checkpoint, args)
        return
    for family in [args.family] if args.family else families:
        with tempfile.TemporaryDirectory() as directory:
            random_checkpoint.write(Path(directory), family, args.seed)
            generate(Path(directory), args)


if __name__ == "__main__":
    main()

"""One mixture-of-experts layer from dense bfloat16 weights: quantise, prepare, call, compare with
float64.

    python examples/quickstart.py

Runs on any machine; on one CPU device the layer is one custom call into the package's own kernel.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_megamoe as jm
from jax_megamoe import _native

TOKENS, EXPERTS, SLOTS, HIDDEN, INTERMEDIATE = 64, 16, 4, 1024, 512


def float64_layer(x, topk_idx, topk_weights, gate_up, down):
    """The layer in float64 from dequantised weights and tokens, without rounding in between."""
    y = np.zeros(x.shape)
    for token, slot in np.ndindex(topk_idx.shape):
        expert = topk_idx[token, slot]
        gate, up = np.split(gate_up[expert] @ x[token], 2)
        a = gate / (1 + np.exp(-gate)) * up * topk_weights[token, slot]
        y[token] += down[expert] @ a
    return y


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    gate_up = jax.random.normal(keys[0], (EXPERTS, 2 * INTERMEDIATE, HIDDEN), jnp.bfloat16) * 0.05
    down = jax.random.normal(keys[1], (EXPERTS, HIDDEN, INTERMEDIATE), jnp.bfloat16) * 0.05
    x = jax.random.normal(keys[2], (TOKENS, HIDDEN), jnp.bfloat16)
    logits = jax.random.normal(keys[3], (TOKENS, EXPERTS))
    topk_weights, topk_idx = jax.lax.top_k(jax.nn.softmax(logits), SLOTS)

    # FP4 weights, then, once, the layout of the implementation that runs here.
    weights = jm.ExpertWeights(*jm.quantize_fp4(gate_up), *jm.quantize_fp4(down))
    prepared = jm.prepare_weights(weights, None if jax.default_backend() == "cpu" else "xla")

    # The expert-parallel axis; one device is a mesh of size 1.
    mesh = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])

    @jax.jit
    def layer(x, topk_idx, topk_weights, weights):
        return jm.expert_parallel(x, topk_idx, topk_weights, weights, axis_name="ep", mesh=mesh)

    y = layer(x, topk_idx, topk_weights, prepared).block_until_ready()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        layer(x, topk_idx, topk_weights, prepared).block_until_ready()
        times.append(time.perf_counter() - start)

    exact = float64_layer(
        np.asarray(jm.dequantize_fp8(*jm.quantize_fp8(x)), np.float64),
        np.asarray(topk_idx),
        np.asarray(topk_weights, np.float64),
        np.asarray(jm.dequantize_fp4(*jm.quantize_fp4(gate_up)), np.float64),
        np.asarray(jm.dequantize_fp4(*jm.quantize_fp4(down)), np.float64),
    )
    error = np.linalg.norm(np.asarray(y, np.float64) - exact) / np.linalg.norm(exact)
    path = f", CPU path {_native.cpu_path()}" if prepared.implementation == "cpu" else ""
    print(f"implementation {prepared.implementation}{path}")
    print(f"{TOKENS} tokens, {EXPERTS} experts, top-{SLOTS}, H {HIDDEN}, I {INTERMEDIATE}")
    print(f"relative error against float64: {error:.4f} (the second FP8 rounding is most of it)")
    print(f"time per call: {1e6 * np.median(times):.0f} us (median of {len(times)})")


if __name__ == "__main__":
    main()

"""The fixed cost of a call: a layer too small to matter, against an FFI call that does nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_megamoe as jm
from benchmarking.timing import interleaved
from jax_megamoe import _native

EMPTY = "jax_megamoe.benchmark.empty"


def overhead(seconds: float) -> dict[str, float]:
    """Median seconds of the two calls, tracing excluded: one token, one expert of 32 x 32."""
    jax.ffi.register_ffi_target(EMPTY, _native.probe_call(), platform="cpu")
    size = 32
    dense = jnp.ones((1, 2 * size, size))
    plain = jm.ExpertWeights(*jm.quantize_fp4(dense), *jm.quantize_fp4(dense[:, :size]))
    weights = jm.prepare_weights(plain, "cpu")
    x = jnp.ones((1, size), jnp.bfloat16)
    idx, w = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.float32)
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("ep",), axis_types=auto, devices=jax.devices()[:1])
    # Both inside the same shard_map, and with the same operands: what differs is the handler.
    specs = (jax.P(),) * 3 + (jax.P("ep"),)

    def mapped(body: Any) -> Any:
        shard_map = jax.shard_map(
            body, mesh=mesh, in_specs=specs, out_specs=jax.P(), check_vma=False
        )
        return jax.jit(shard_map)

    def layer(x: Any, idx: Any, w: Any, weights: Any) -> Any:
        return jm.mega_moe(x, idx, w, weights, axis_name="ep")

    def empty(x: Any, idx: Any, w: Any, weights: Any) -> Any:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call(EMPTY, result)(x, idx, w, *jax.tree.leaves(weights))

    calls = {"layer": mapped(layer), "empty": mapped(empty)}
    # A thousand at a time: one call is near the resolution of everything else.
    many = 1000

    def repeated(call: Any) -> Any:
        def run() -> None:
            for _ in range(many):
                y = call(x, idx, w, weights)
            jax.block_until_ready(y)

        return run

    times = interleaved({name: repeated(call) for name, call in calls.items()}, seconds)
    assert np.isfinite(np.asarray(calls["layer"](x, idx, w, weights), np.float32)).all()
    return {name: elapsed / many for name, elapsed in times.items()}

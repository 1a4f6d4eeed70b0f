"""Expert parallelism on 8 host devices: experts over a mesh axis, tokens over both axes, same bits
as on one.

    python examples/expert_parallel.py

The same code runs on 8 GPUs or over several processes; only the mesh changes.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe as jm

CONFIG = jm.MegaMoeConfig(
    num_experts=16, hidden_size=512, intermediate_size=256, num_experts_per_tok=4, swiglu_limit=10.0
)


def main() -> None:
    if len(jax.devices()) < 8:
        raise SystemExit(f"this example needs 8 devices; jax sees {len(jax.devices())}")
    # 2 data-parallel groups of 4 ranks that share the experts.
    mesh = jax.make_mesh((2, 4), ("data", "ep"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    moe = jm.MegaMoe(CONFIG, mesh=mesh, rngs=nnx.Rngs(0))
    moe.prepare()

    key_x, key_router = jax.random.split(jax.random.key(1))
    x = jax.random.normal(key_x, (96, CONFIG.hidden_size), jnp.bfloat16)
    logits = jax.random.normal(key_router, (96, CONFIG.num_experts))
    topk_weights, topk_idx = jax.lax.top_k(jax.nn.softmax(logits), CONFIG.num_experts_per_tok)

    tokens = NamedSharding(mesh, P("data"))
    sharded = [jax.device_put(value, tokens) for value in (x, topk_idx, topk_weights)]
    y = nnx.jit(lambda moe, *tokens: moe(*tokens))(moe, *sharded)

    one = jax.make_mesh((1,), ("ep",), devices=jax.devices()[:1])
    alone = jm.MegaMoe(CONFIG, mesh=one, rngs=nnx.Rngs(0))
    reference = alone(x, topk_idx, topk_weights)
    same = np.array_equal(np.asarray(y).view(np.int16), np.asarray(reference).view(np.int16))
    print(f"mesh {dict(mesh.shape)}, result sharding {y.sharding.spec}")
    print(f"bits equal to one device: {same}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

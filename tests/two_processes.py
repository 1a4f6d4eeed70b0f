"""One of the processes of `test_multiprocess.py`: two devices, a mesh of four, gloo collectives.

Run as `python two_processes.py <address of process 0> <process> <folder> <what>`. It writes what it
holds of the result to the folder; files in the folder are also how the test and the processes
tell each other how far they are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")


def save_own_part(y: jax.Array, folder: Path, name: str) -> None:
    import numpy as np

    from contract import bits

    for shard in y.addressable_shards:
        start = shard.index[0].start or 0
        np.save(folder / f"{name}-{start}.npy", bits(np.asarray(shard.data)))


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def main() -> None:
    address, process, folder, what = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    jax.distributed.initialize(address, 2, process, heartbeat_timeout_seconds=10)

    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_megamoe
    from layer import small_case, weights_of

    assert jax.device_count() == 4 and jax.local_device_count() == 2
    mesh = jax.make_mesh((4,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,))
    case = small_case()

    def place(value: Any) -> jax.Array:
        """The whole array is on every host; each device gets its part."""
        value = np.asarray(value)
        sharding = NamedSharding(mesh, P("ep"))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    tokens = [place(value) for value in (case.x, case.topk_idx, case.topk_weights)]
    weights = jax.tree.map(place, weights_of(case))

    def layer(implementation: str, weights: Any = weights) -> Any:
        return jax.jit(
            lambda *operands: jax_megamoe.expert_parallel(
                *operands, axis_name="ep", mesh=mesh, implementation=implementation
            )
        )

    if what == "compute":
        for implementation in ("cpu", "xla"):
            y = layer(implementation)(*tokens, weights)
            save_own_part(y, folder, implementation)
        prepared = jax_megamoe.prepare_weights(weights, "cpu")
        save_own_part(layer("cpu")(*tokens, prepared), folder, "prepared")
        y = jax_megamoe.expert_parallel(*tokens, weights, axis_name="ep", mesh=mesh)
        save_own_part(y, folder, "eager")
        # Arrays of the host, equal on both: each device takes its part.
        host = (case.x, case.topk_idx, case.topk_weights, jax_megamoe.ExpertWeights(**case.weights))
        y = jax_megamoe.expert_parallel(*host, axis_name="ep", mesh=mesh)
        save_own_part(y, folder, "host")
        return
    call = layer("cpu")
    call(*tokens, weights).block_until_ready()
    (folder / f"first-{process}").touch()
    if process == 1:
        wait_for(folder / "never")  # the test kills it here
    wait_for(folder / "lost")
    try:
        call(*tokens, weights).block_until_ready()
    except Exception as error:
        (folder / "error").write_text(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()

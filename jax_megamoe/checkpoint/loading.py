"""`load_experts`: from files to prepared, sharded arrays, one expert at a time.

Each expert goes from its file through `prepare_expert` straight into its place in the arrays of the
devices that own it. Those arrays are donated to each store, so that on the device there is the
result and one expert, and on the host one expert.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from jax_megamoe import validation
from jax_megamoe import weights as weights_module
from jax_megamoe.checkpoint import recognise
from jax_megamoe.checkpoint.directory import Checkpoint
from jax_megamoe.checkpoint.experts import LayerReader
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.expert_parallel import mesh_of_call
from jax_megamoe.weights import ExpertWeights, PreparedWeights

logger = logging.getLogger("jax_megamoe")


def load_experts(
    path: str | Path,
    layer: int,
    *,
    mesh: Mesh | None = None,
    axis_name: validation.AxisName = "ep",
    implementation: str | None = None,
    config: MegaMoeConfig | None = None,
    quantize: bool = False,
    progress: bool | None = None,
) -> PreparedWeights:
    """The experts of one layer of a checkpoint, prepared and split over the expert-parallel axis.

    Reads only the experts of this process's devices. On the host it needs memory for about one
    expert, besides what the result takes where a device is the CPU.

    Args:
      path: a Hugging Face directory, its model.safetensors.index.json, or one .safetensors file.
      layer: the number of the layer, as in the names of its tensors.
      mesh: a mesh that has the axis; None: the mesh in context, and if there is none, the default
        device.
      axis_name: the expert-parallel axis.
      implementation: what to prepare for; None: by the platform of the mesh.
      config: sizes that the layer must have; None: those in the config.json beside the tensors, if
        there is one.
      quantize: quantise bfloat16, float16 and float32 experts to MXFP4; without it they are
        refused.
      progress: show a progress bar; None: if standard error is a terminal and it takes more than a
        second.

    Returns:
      PreparedWeights, for `MegaMoe(weights=...)` and `expert_parallel`; `unprepare_weights` gives
      the bits of the file.

    Raises:
      ValueError: a missing or damaged file or tensor, or sizes that contradict each other.
      TypeError, NotImplementedError: tensors of a type or format that is not supported. All name
        tensor and file.
    """
    loaded = load_all_experts(
        path,
        layers=[layer],
        mesh=mesh,
        axis_name=axis_name,
        implementation=implementation,
        config=config,
        quantize=quantize,
        progress=progress,
    )
    return loaded[layer]


def load_all_experts(
    path: str | Path,
    *,
    layers: Iterable[int] | None = None,
    mesh: Mesh | None = None,
    axis_name: validation.AxisName = "ep",
    implementation: str | None = None,
    config: MegaMoeConfig | None = None,
    quantize: bool = False,
    progress: bool | None = None,
) -> dict[int, PreparedWeights]:
    """The experts of several layers: as `load_experts`, with one progress bar.

    Args:
      layers: the numbers of the layers; None: all that have routed experts.
      path, mesh, axis_name, implementation, config, quantize, progress: as in `load_experts`.

    Returns:
      The weights by number of the layer, ascending.
    """
    mesh, implementation = _target(mesh, axis_name, implementation)
    with Checkpoint(path) as checkpoint:
        names = recognise.expert_names(checkpoint)
        wanted = sorted(names) if layers is None else _checked(layers)
        if not wanted and layers is None:
            raise ValueError(
                f"{checkpoint.source} has no tensor layers.N.*.experts.*, so no layer of it has "
                "routed experts. Pass the checkpoint of a mixture-of-experts model."
            )
        loads = [
            _LayerLoad(checkpoint, names, layer, mesh, axis_name, implementation, config, quantize)
            for layer in wanted
        ]
        total = sum(len(load.experts) for load in loads)
        with _progress_bar(total, progress) as bar, no_mesh():
            return {load.layer: load.run(bar.update) for load in loads}


class _LayerLoad:
    """The load of one layer; what can be refused before reading is refused when it is made."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: recognise.ExpertNames,
        layer: int,
        mesh: Mesh | None,
        axis_name: validation.AxisName,
        implementation: str,
        config: MegaMoeConfig | None,
        quantize: bool,
    ) -> None:
        self.layer = layer
        self._implementation = implementation
        layout, self._num_experts = recognise.recognise(checkpoint, names, layer)
        self._sharding = _sharding(self._num_experts, mesh, axis_name)
        self._owners = _owners(self._sharding, self._num_experts)
        self.experts = [expert for start, stop in self._owners for expert in range(start, stop)]
        if not self.experts:
            raise ValueError(
                f"the mesh is {mesh}, which has no device of this process; every process that "
                "loads needs one. Call load_experts only in the processes of the mesh."
            )
        self._reader = LayerReader(
            checkpoint, layout, self._num_experts, config, quantize, self.experts[0]
        )
        logger.info(
            "layer %d of %s: %s, experts %d, H %d, I %d, prepared for %s",
            layer,
            checkpoint.source,
            self._reader.format.title,
            self._num_experts,
            self._reader.hidden_size,
            self._reader.intermediate_size,
            implementation,
        )

    def run(self, done: Any) -> PreparedWeights:
        """Reads and places this process's experts; calls done(1) after each."""
        parts: list[PreparedWeights] = []
        for (start, stop), devices in self._owners.items():
            here: list[Any] = [None] * len(devices)
            for expert in range(start, stop):
                read = self._reader.read(expert)
                for i, device in enumerate(devices):
                    # Prepared where it will stay: an accelerator rearranges faster than the host.
                    placed, index = jax.device_put(read, device), expert - start
                    if here[i] is None:
                        here[i] = _first(placed, index, stop - start, self._implementation)
                    else:
                        here[i] = _store(here[i], placed, index, self._implementation)
                # One expert at a time also where stores run behind.
                jax.block_until_ready(here)
                done(1)
            parts += here

        def whole(*leaves: Array) -> Array:
            shape = (self._num_experts, *leaves[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self._sharding, list(leaves))

        weights: PreparedWeights = jax.tree.map(whole, *parts)
        return weights


def _target(
    mesh: Mesh | None, axis_name: validation.AxisName, implementation: str | None
) -> tuple[Mesh | None, str]:
    """The mesh to load to, and the implementation to prepare for."""
    validation.check_implementation(implementation)
    context = mesh_of_call(mesh)
    if context is not None and not isinstance(context, Mesh):
        raise ValueError(
            f"the mesh is {context}, which has no devices: load_experts places arrays, so it is "
            "called outside of traces and with a jax.sharding.Mesh. Pass mesh=jax.make_mesh(...)."
        )
    devices = [jax.devices()[0]] if context is None else list(context.devices.flat)
    validation.check_devices(devices, implementation)
    names = validation.axis_names(axis_name)
    if context is not None:
        validation.check_axis_in_mesh(names, context.axis_names)
    if implementation is None:
        implementation = weights_module.implementation_of_device(devices[0])
    return context, implementation


def _checked(layers: Iterable[int]) -> list[int]:
    layers = list(layers)
    for layer in layers:
        validation.check_integer("layer", layer)
    return sorted(set(layers))


def _sharding(num_experts: int, mesh: Mesh | None, axis_name: validation.AxisName) -> Sharding:
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    names = validation.axis_names(axis_name)
    ranks = math.prod(mesh.shape[name] for name in names)
    validation.check_experts_divide(num_experts, ranks, axis_name)
    return NamedSharding(mesh, P(names))


def _owners(sharding: Sharding, num_experts: int) -> dict[tuple[int, int], list[Any]]:
    """Ranges of experts, and the devices of this process that hold each."""
    owners: dict[tuple[int, int], list[Any]] = {}
    for device, (index,) in sharding.addressable_devices_indices_map((num_experts,)).items():  # type: ignore[misc]
        start, stop, _ = index.indices(num_experts)
        owners.setdefault((start, stop), []).append(device)
    return owners


@functools.partial(jax.jit, static_argnames=("count", "implementation"))
def _first(expert: ExpertWeights, index: int, count: int, implementation: str) -> PreparedWeights:
    """Arrays for `count` prepared experts, zeros but for one expert."""
    prepare = functools.partial(weights_module.prepare_expert, implementation=implementation)
    prepared = jax.eval_shape(prepare, expert)
    arrays: PreparedWeights = jax.tree.map(
        lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), prepared
    )
    return _stored(arrays, expert, index, implementation)


@functools.partial(jax.jit, static_argnames="implementation", donate_argnums=0)
def _store(
    arrays: PreparedWeights, expert: ExpertWeights, index: int, implementation: str
) -> PreparedWeights:
    """The arrays with one more expert in its place, in the same memory."""
    return _stored(arrays, expert, index, implementation)


def _stored(
    arrays: PreparedWeights, expert: ExpertWeights, index: int, implementation: str
) -> PreparedWeights:
    with jax.named_scope("jax_megamoe.load"):
        prepared = weights_module.prepare_expert(expert, implementation)
        weights: PreparedWeights = jax.tree.map(
            lambda array, leaf: jax.lax.dynamic_update_index_in_dim(array, leaf, index, 0),
            arrays,
            prepared,
        )
        return weights


def no_mesh() -> Any:
    """A context without the caller's mesh, on which programs for one of its devices are refused."""
    return jax.set_mesh(Mesh(np.empty((), dtype=object), ()))


def _progress_bar(total: int, progress: bool | None) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]  # here, so that importing the package stays quick

    return tqdm(
        total=total,
        desc="loading experts",
        unit="expert",
        disable=None if progress is None else not progress,
        delay=0 if progress else 1,
        dynamic_ncols=True,
    )

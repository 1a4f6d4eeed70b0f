"""A mesh as an attribute that can be pickled and copied.

A `jax.sharding.Mesh` names device objects of this process, which neither `pickle` nor
`copy.deepcopy` accepts. The handle names them by id instead, and finds them again where it is
loaded.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jax_megamoe import validation


@dataclasses.dataclass(frozen=True)
class MeshHandle:
    """Holds a mesh; equal and hashable as the mesh is."""

    mesh: Mesh | AbstractMesh | None

    def __deepcopy__(self, memo: Any) -> MeshHandle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self.mesh, Mesh):
            return MeshHandle, (self.mesh,)
        devices = self.mesh.devices
        ids = [device.id for device in devices.flat]
        platform = devices.flat[0].platform
        axes = (self.mesh.axis_names, self.mesh.axis_types)
        return _find_mesh, (platform, ids, devices.shape, *axes)


def _find_mesh(
    platform: str, ids: list[int], shape: tuple[int, ...], names: Any, types: Any
) -> MeshHandle:
    here = {device.id: device for device in jax.devices(platform)}
    missing = [i for i in ids if i not in here]
    validation.check_devices_here(missing, len(ids), platform, len(here))
    devices = np.array([here[i] for i in ids]).reshape(shape)
    return MeshHandle(Mesh(devices, names, axis_types=types))

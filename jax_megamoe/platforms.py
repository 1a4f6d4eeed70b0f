"""Which implementation a call runs, and refusing to lower it for a platform where it cannot run.

`implementation=None` with plain weights is decided when the program is lowered, by
`jax.lax.platform_dependent`, so that one traced function serves several platforms. Everything else
is one implementation; `require_platform` makes its lowering for another platform an error in words,
where XLA would only report a custom-call target that is not found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_megamoe import targets

_PLATFORMS = {"cpu": ("cpu",), "sm100": ("cuda",)}

_require_platform_p = Primitive("jax_megamoe_require_platform")


def require_platform(x: Array, implementation: str, *, by_platform: bool = False) -> Array:
    """x itself; NotImplementedError if the program is lowered where it cannot run, ValueError if
    the environment forces an instruction set that is not there.

    Args:
      by_platform: inside a branch of `jax.lax.platform_dependent`. A program for several platforms
        has all branches, lowered for all of them, so there the platform says nothing.
    """
    if implementation not in _PLATFORMS:
        return x
    result: Array = _require_platform_p.bind(
        x, implementation=implementation, by_platform=by_platform
    )
    return result


def context_devices(mesh: Any, *arrays: Any) -> Iterable[Any]:
    """The devices a call runs on, as far as they are known while tracing; empty where they are not.

    Those of the mesh given, else of the mesh in context, else of a concrete argument. A mesh in
    context is abstract inside a trace and names only a kind of device; this process' devices of
    that kind stand for it.
    """
    if isinstance(mesh, jax.sharding.Mesh):
        return list(mesh.devices.flat)
    context = jax.sharding.get_abstract_mesh() if mesh is None or mesh.empty else mesh
    kind = context.abstract_device
    if kind is not None:
        if kind.platform == "cpu":
            return []
        return [d for d in jax.devices() if d.device_kind == kind.device_kind]
    for array in arrays:
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            return list(array.devices())
    return []


def _lower_require_platform(ctx: Any, x: Any, *, implementation: str, by_platform: bool) -> Any:
    accepted = _PLATFORMS[implementation]
    refused = [p for p in (ctx.platforms or ctx.module_context.platforms) if p not in accepted]
    if refused and not by_platform:
        raise NotImplementedError(
            f'implementation="{implementation}" runs on platform {accepted[0]!r} only, but the '
            f"program is lowered for {refused[0]!r}. Use plain ExpertWeights with "
            'implementation=None (chosen by platform), or implementation="xla", or prepare the '
            "weights for the platform they run on."
        )
    if implementation == "cpu":  # None came to mean it only here
        targets.check_cpu_path()
    return [x]


_require_platform_p.def_impl(lambda x, **_: x)
_require_platform_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(_require_platform_p, _lower_require_platform)

"""Mixture-of-experts layers with FP4 expert weights for JAX, as XLA custom calls.

    y = jax_megamoe.expert_parallel(x, topk_idx, topk_weights, weights, axis_name="ep")

`reference.py` is the definition of what is computed; `validation.py` lists what is refused.
Importing starts no backend and needs no GPU. Flax is imported when `MegaMoe` or `linen` is first
used, and the readers of checkpoints when `checkpoint` is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jax_megamoe import _versions

_versions.check()  # before anything else loads, hence the imports below it

from jax_megamoe import targets  # noqa: E402
from jax_megamoe.config import MegaMoeConfig  # noqa: E402
from jax_megamoe.environment import print_environment  # noqa: E402
from jax_megamoe.expert_parallel import expert_parallel  # noqa: E402
from jax_megamoe.formats import (  # noqa: E402
    dequantize_fp4,
    dequantize_fp8,
    quantize_fp4,
    quantize_fp8,
)
from jax_megamoe.mega_moe import mega_moe  # noqa: E402
from jax_megamoe.weights import (  # noqa: E402
    ExpertWeights,
    PreparedWeights,
    prepare_expert,
    prepare_weights,
    unprepare_weights,
)

if TYPE_CHECKING:
    from jax_megamoe import checkpoint, linen, routing
    from jax_megamoe.modules import MegaMoe

logging.getLogger("jax_megamoe").addHandler(logging.NullHandler())
targets.register()

__version__ = "0.1.0"

__all__ = [
    "ExpertWeights",
    "MegaMoe",
    "MegaMoeConfig",
    "PreparedWeights",
    "checkpoint",
    "dequantize_fp4",
    "dequantize_fp8",
    "expert_parallel",
    "linen",
    "mega_moe",
    "prepare_expert",
    "prepare_weights",
    "print_environment",
    "quantize_fp4",
    "quantize_fp8",
    "routing",
    "targets",
    "unprepare_weights",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "MegaMoe":
        return importlib.import_module("jax_megamoe.modules").MegaMoe
    if name in ("checkpoint", "linen", "routing"):
        return importlib.import_module(f"jax_megamoe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

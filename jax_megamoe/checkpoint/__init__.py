"""Experts of published checkpoints, in and out.

    config = load_config("DeepSeek-V4-Flash")
    weights = load_experts("DeepSeek-V4-Flash", 3, mesh=mesh)
    moe = jax_megamoe.MegaMoe(config, mesh=mesh, weights=weights)

`safetensors_file.py` reads one file, `directory.py` finds the file of a tensor, `hf_config.py`
reads config.json, `recognise.py` tells the format from names, `experts.py` reads one expert,
`loading.py` brings experts to their devices, `saving.py` writes.
"""

from jax_megamoe.checkpoint.directory import Checkpoint
from jax_megamoe.checkpoint.hf_config import load_config
from jax_megamoe.checkpoint.loading import load_all_experts, load_experts
from jax_megamoe.checkpoint.saving import save_experts

__all__ = ["Checkpoint", "load_all_experts", "load_config", "load_experts", "save_experts"]

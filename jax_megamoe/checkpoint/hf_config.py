"""What config.json says of the experts: sizes, slots, activation, quantisation.

Published configs spell one thing in several ways; the spellings are here and nowhere else. The
activation is taken from a config only where the model family is known to compute exactly ours:
similar names hide different functions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jax_megamoe import validation
from jax_megamoe.checkpoint.directory import Checkpoint
from jax_megamoe.config import MegaMoeConfig

#: The spellings of each size. Those present must agree, except that the first one is I.
_KEYS = {
    "num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("moe_intermediate_size", "intermediate_size"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
}

#: Keys that name the activation of the experts.
_ACTIVATION_KEYS = (
    "hidden_act",
    "hidden_activation",
    "hidden_activations",
    "moe_hidden_act",
    "moe_activation",
    "expert_activation",
    "activation_function",
    "mlp_hidden_act",
)

#: Families whose experts are silu(gate) * up, without limits.
_PLAIN_FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe",
    "kimi_k2",
    "kimi_linear",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
)


def load_config(path: str | Path) -> MegaMoeConfig:
    """The configuration of the MoE layers of a checkpoint, for `MegaMoe` and `expert_parallel`.

    Args:
      path: as for `load_experts`; a config.json lies beside the tensors.

    Raises:
      ValueError: no config.json, or one that lacks a value or contradicts itself.
      NotImplementedError: an activation other than the three-parameter SwiGLU, or a model family
        whose activation is not known here.
    """
    with Checkpoint(path) as checkpoint:
        config = language_model(checkpoint)
        where = str(checkpoint.directory / "config.json")
        if config is None:
            raise ValueError(
                f"{where} does not exist, so the activation and the number of slots are unknown. "
                "Download it too, or make the MegaMoeConfig yourself and pass it as config=."
            )
        check_activation(config, where)
        values: dict[str, Any] = {name: _required(config, name, where) for name in _KEYS}
        values |= _swiglu(config, where)
        bias = any(_is_expert_bias(name) for name in checkpoint.names())
        try:
            return MegaMoeConfig(**values, use_bias=bias)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{where}: {error}") from None


def language_model(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The config of the language model, which multi-modal configs hold under "text_config"."""
    config = checkpoint.config
    if config is not None and isinstance(config.get("text_config"), dict):
        return {**config, **config["text_config"]}
    return config


def size(config: dict[str, Any] | None, name: str, where: str) -> int | None:
    """A size in the config; None where it is not given.

    Raises:
      ValueError: two spellings with two values, or no positive integer.
    """
    found = {key: config[key] for key in _KEYS[name] if config and config.get(key) is not None}
    if not found:
        return None
    (key, value), *others = found.items()
    for other, other_value in others:
        if other_value != value and name != "intermediate_size":
            raise ValueError(
                f"{where} says {key} = {value} and {other} = {other_value}; remove one."
            )
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{where} says {key} = {value!r}; a positive integer is accepted.")
    return value


def check_activation(config: dict[str, Any], where: str) -> None:
    """Refuses every activation named in the config that is not SwiGLU."""
    for key in _ACTIVATION_KEYS:
        name = config.get(key)
        if name is None:
            continue
        try:
            validation.check_activation_name(name)
        except NotImplementedError as error:
            raise NotImplementedError(f"{where} says {key} = {name!r}: {error}") from None


def check_quantization(config: dict[str, Any], where: str) -> None:
    """Refuses a config that calls the experts something else than MXFP4; says nothing about what it
    does not name.
    """
    said = config.get("quantization_config")
    said = said if isinstance(said, dict) else {}
    expert_dtype = said.get("expert_dtype", config.get("expert_dtype"))
    scale_fmt = said.get("scale_fmt", config.get("scale_fmt"))
    if expert_dtype not in (None, "fp4", "mxfp4"):
        raise NotImplementedError(
            f"{where} says expert_dtype = {expert_dtype!r}, but the expert tensors hold 4-bit "
            'codes; "fp4" is accepted. Use a checkpoint with MXFP4 experts.'
        )
    if expert_dtype is not None and scale_fmt not in (None, "ue8m0"):
        raise NotImplementedError(
            f'{where} says scale_fmt = {scale_fmt!r} for FP4 experts; "ue8m0" is accepted (powers '
            "of two, one for 32 weights)."
        )


def model_type(config: dict[str, Any] | None) -> str | None:
    """The model family, as transformers names it."""
    value = config.get("model_type") if config else None
    return value if isinstance(value, str) else None


def _swiglu(config: dict[str, Any], where: str) -> dict[str, float | None]:
    family = model_type(config)
    if family in ("deepseek_v4", "gpt_oss"):
        if "swiglu_limit" not in config:
            raise ValueError(
                f"{where} of a {family} model has no swiglu_limit (10 in DeepSeek-V4's, 7 in "
                "gpt-oss's own). Add it, null if there is none, or make the MegaMoeConfig "
                "yourself."
            )
        # gpt-oss's published configs do not have its two constants.
        alpha, beta = (1.702, 1.0) if family == "gpt_oss" else (1.0, 0.0)
        limit = config["swiglu_limit"]
        return {
            "swiglu_limit": None if limit is None else _number(limit, "swiglu_limit", where),
            "swiglu_alpha": _number(config.get("swiglu_alpha", alpha), "swiglu_alpha", where),
            "swiglu_beta": _number(config.get("swiglu_beta", beta), "swiglu_beta", where),
        }
    if family in _PLAIN_FAMILIES and config.get("hidden_act") is not None:
        unknown = [key for key in config if "swiglu" in key and config[key] is not None]
        if not unknown:
            return {"swiglu_limit": None, "swiglu_alpha": 1.0, "swiglu_beta": 0.0}
    raise NotImplementedError(
        f"{where} has model_type {family!r}, whose experts' activation is not known here: known "
        "are deepseek_v4, gpt_oss and, with hidden_act and without swiglu_* values, "
        f"{', '.join(_PLAIN_FAMILIES)}. If it is gate * sigmoid(alpha * gate) * (up + "
        "beta), make the MegaMoeConfig yourself."
    )


def _number(value: Any, key: str, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or math.isnan(value):
        raise ValueError(f"{where} says {key} = {value!r}; a number is accepted.")
    return float(value)


def _required(config: dict[str, Any], name: str, where: str) -> int:
    value = size(config, name, where)
    if value is None:
        raise ValueError(
            f"{where} has none of {', '.join(_KEYS[name])}. Add one, or make the MegaMoeConfig "
            "yourself."
        )
    return value


def _is_expert_bias(name: str) -> bool:
    return ".experts." in name and name.endswith("bias")

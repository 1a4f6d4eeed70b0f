"""The same experts in PyTorch: transformers' modules with dequantised weights, and the contract's
roundings.

The roundings are written with torch alone, from the contract, so that a comparison tells something.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import DeepseekV4Config, GptOssConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantised(codes: np.ndarray, scale: np.ndarray) -> torch.Tensor:
    """float32 [..., K] of packed codes [..., K/2] and scale bytes [..., K/32]."""
    packed = torch.from_numpy(np.asarray(codes).view(np.uint8).astype(np.int64))
    values = torch.stack([VALUES[packed & 15], VALUES[packed >> 4]], dim=-1).flatten(-2)
    factor = torch.from_numpy(np.asarray(scale).view(np.uint8).astype(np.float64) - 127).exp2()
    return (values.double() * factor.repeat_interleave(32, dim=-1)).float()


def rounded_to_fp8(x: torch.Tensor, floor: float) -> torch.Tensor:
    """x after a cast to E4M3 in groups of 32 with power-of-two scales: steps 1 and 5 of the
    contract.
    """
    groups = x.double().unflatten(-1, (-1, 32))
    ratio = groups.abs().amax(-1, keepdim=True).clamp(min=floor) / 448
    mantissa, exponent = torch.frexp(ratio)  # ratio = mantissa * 2^exponent, mantissa from 1/2 to 1
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=-126)
    scale = exponent.double().exp2()
    q = (groups / scale).float().to(torch.float8_e4m3fn)
    return (q.double() * scale).flatten(-2).float()


def _with_roundings(base: type[Any]) -> type[Any]:
    class Rounded(base):  # type: ignore[misc, valid-type]
        """The module with the contract's roundings between the two products (steps 3 to 5)."""

        def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
            a = super()._apply_gate(gate_up.bfloat16().float())
            return rounded_to_fp8(a, floor=0.0)

    return Rounded


def gpt_oss(weights: Any, rounded: bool = False, limit: float = 7.0) -> Any:
    """GptOssExperts with the weights of ExpertWeights: [E, K, N], gate and up columns in turn."""
    num, hidden, half = weights.down_proj.shape
    config = GptOssConfig(
        num_local_experts=num, hidden_size=hidden, intermediate_size=2 * half, swiglu_limit=limit
    )
    config._experts_implementation = "eager"
    module = (_with_roundings(GptOssExperts) if rounded else GptOssExperts)(config)
    gate_up = dequantised(weights.gate_up_proj, weights.gate_up_proj_scale_inv)
    down = dequantised(weights.down_proj, weights.down_proj_scale_inv)
    _set(module.gate_up_proj, _in_turn(gate_up).mT)
    _set(module.down_proj, down.mT)
    _set(module.gate_up_proj_bias, _in_turn(_tensor(weights.gate_up_proj_bias)))
    _set(module.down_proj_bias, _tensor(weights.down_proj_bias))
    return module.eval()


def deepseek_v4(weights: Any, rounded: bool = False, limit: float = 10.0) -> Any:
    """DeepseekV4Experts with the weights of ExpertWeights."""
    num, hidden, half = weights.down_proj.shape
    config = DeepseekV4Config(
        n_routed_experts=num,
        hidden_size=hidden,
        moe_intermediate_size=2 * half,
        swiglu_limit=limit,
    )
    config._experts_implementation = "eager"
    module = (_with_roundings(DeepseekV4Experts) if rounded else DeepseekV4Experts)(config)
    _set(module.gate_up_proj, dequantised(weights.gate_up_proj, weights.gate_up_proj_scale_inv))
    _set(module.down_proj, dequantised(weights.down_proj, weights.down_proj_scale_inv))
    return module.eval()


def run(module: Any, x: np.ndarray, topk_idx: np.ndarray, topk_weights: np.ndarray) -> np.ndarray:
    """The module on tokens that are rounded as step 1 of the contract says."""
    tokens = rounded_to_fp8(torch.from_numpy(np.asarray(x, np.float32)), floor=1e-4)
    idx = torch.from_numpy(np.asarray(topk_idx, np.int64))
    with torch.no_grad():
        return module(tokens, idx, torch.from_numpy(np.array(topk_weights))).numpy()


def distance(ours: Any, theirs: Any) -> float:
    """The largest ||a - b|| / ||b|| of a row."""
    one, other = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert one.shape == other.shape
    return float((np.linalg.norm(one - other, axis=-1) / np.linalg.norm(other, axis=-1)).max())


def _in_turn(rows: torch.Tensor) -> torch.Tensor:
    """Gate rows, then up rows, along axis 1: gate and up in turn."""
    gate, up = rows.chunk(2, dim=1)
    return torch.stack([gate, up], dim=2).flatten(1, 2)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, np.float32))


def _set(parameter: torch.Tensor, value: torch.Tensor) -> None:
    assert parameter.shape == value.shape
    with torch.no_grad():
        parameter.copy_(value)

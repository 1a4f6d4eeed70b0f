"""The sizes and the activation of one layer, as the modules take them.

Hashable and free of arrays, so that it may be a static argument and a key. It refuses impossible
values when it is made; what depends on a mesh or on arrays is checked where those are known.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from jax_megamoe import validation


@dataclasses.dataclass(frozen=True)
class MegaMoeConfig:
    """Configuration of a mixture-of-experts layer with FP4 expert weights.

    Attributes:
      num_experts: E, experts in all.
      hidden_size: H, a multiple of 32.
      intermediate_size: I, a multiple of 32.
      num_experts_per_tok: K, slots a token, 1 to 32.
      swiglu_limit: L, clamps the gate from above and up from both sides; None or inf: no limit.
      swiglu_alpha, swiglu_beta: the activation is gate * sigmoid(alpha * gate) * (up + beta).
      use_bias: whether the experts have biases.
      hidden_act: name of the activation in the checkpoint's config; only SwiGLU ("silu") is
        supported.

    Raises:
      ValueError: a size out of range.
      NotImplementedError: an activation other than SwiGLU.
    """

    num_experts: int
    hidden_size: int
    intermediate_size: int
    num_experts_per_tok: int
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    swiglu_beta: float = 0.0
    use_bias: bool = False
    hidden_act: str = "silu"

    def __post_init__(self) -> None:
        validation.check_activation_name(self.hidden_act)
        validation.check_swiglu(self.swiglu_limit, self.swiglu_alpha, self.swiglu_beta)
        validation.check_sizes(self.hidden_size, self.intermediate_size)
        validation.check_counts(self.num_experts, self.num_experts_per_tok)


class SwiGLU(NamedTuple):
    """The activation of a call: gate * sigmoid(alpha * gate) * (up + beta); limit inf: none."""

    limit: float = math.inf
    alpha: float = 1.0
    beta: float = 0.0


def swiglu(limit: float | None, alpha: float, beta: float) -> SwiGLU:
    """The three parameters, checked (ValueError, TypeError) and rounded to float32; None is inf."""
    validation.check_swiglu(limit, alpha, beta)
    given = (math.inf if limit is None else limit, alpha, beta)
    with np.errstate(over="ignore"):  # a limit beyond float32 is none
        return SwiGLU(*(float(np.float32(value)) for value in given))

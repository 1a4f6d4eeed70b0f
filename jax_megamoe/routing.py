"""Routers of published models, in plain JAX: from router logits to `topk_idx` and `topk_weights`.

Each follows the model's own definition, in float32 whatever comes in; which experts a token takes
must not hang on the rounding of a smaller type. A token whose logits hold NaN still gets ids of
experts (its weights are NaN, and so is its row of the layer's result), because ids index memory.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

_TINY = 1e-20  #: keeps the sum of DeepSeek's selected scores from being 0


def router_logits(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """x [..., H] times weight [E, H], plus bias [E]: float32 [..., E], the product in full
    precision.
    """
    with jax.named_scope("jax_megamoe.router"):
        x, weight = jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32)
        logits = jnp.matmul(x, weight.T, precision=jax.lax.Precision.HIGHEST)
        return logits if bias is None else logits + jnp.asarray(bias, jnp.float32)


def gpt_oss(logits: ArrayLike, num_experts_per_tok: int) -> tuple[Array, Array]:
    """gpt-oss: the largest logits, weighted by a softmax over the selected ones.

    Args:
      logits: [..., E], with the router's bias.
      num_experts_per_tok: K.

    Returns:
      topk_idx int32 [..., K] and topk_weights float32 [..., K], largest first.
    """
    logits = _float32(logits)
    _check_slots(num_experts_per_tok, logits.shape[-1])
    with jax.named_scope("jax_megamoe.router"):
        selected, idx = jax.lax.top_k(logits, num_experts_per_tok)
        return idx.astype(jnp.int32), jax.nn.softmax(selected, axis=-1)


def deepseek_v4(
    logits: ArrayLike,
    num_experts_per_tok: int,
    *,
    correction_bias: ArrayLike | None = None,
    scoring_func: str = "sqrtsoftplus",
    scaling_factor: float = 1.0,
    normalize: bool = True,
) -> tuple[Array, Array]:
    """DeepSeek-V4: the experts with the largest corrected scores, weighted by their uncorrected
    scores.

    Args:
      logits: [..., E].
      num_experts_per_tok: K.
      correction_bias: [E], added to the scores for the selection only.
      scoring_func: "sqrtsoftplus", "sigmoid" or "softmax".
      scaling_factor: multiplies the weights (routed_scaling_factor; 1.5 in DeepSeek-V4-Flash).
      normalize: divide the selected scores by their sum + 1e-20 first (norm_topk_prob).

    Returns:
      topk_idx int32 [..., K] and topk_weights float32 [..., K], by descending corrected score.

    Raises:
      NotImplementedError: another scoring function.
    """
    logits = _float32(logits)
    _check_slots(num_experts_per_tok, logits.shape[-1])
    with jax.named_scope("jax_megamoe.router"):
        scores = _scoring(scoring_func)(logits)
        _, idx = jax.lax.top_k(_corrected(scores, correction_bias), num_experts_per_tok)
        weights = jnp.take_along_axis(scores, idx, axis=-1)
        return idx.astype(jnp.int32), _weighted(weights, normalize, scaling_factor)


def deepseek_v4_hash(
    logits: ArrayLike,
    token_ids: ArrayLike,
    expert_table: ArrayLike,
    *,
    scoring_func: str = "sqrtsoftplus",
    scaling_factor: float = 1.0,
    normalize: bool = True,
) -> tuple[Array, Array]:
    """DeepSeek-V4's first layers: experts by a table of token ids, weighted by their scores.

    Args:
      logits: [..., E].
      token_ids: integers [...]; an id outside the table skips the token, as padding is.
      expert_table: integers [vocabulary, K] (`tid2eid`); an entry outside 0..E-1 skips its slot.
      scoring_func, scaling_factor, normalize: as in `deepseek_v4`.

    Returns:
      topk_idx int32 [..., K], -1 in skipped slots, and topk_weights float32 [..., K].
    """
    logits, table = _float32(logits), jnp.asarray(expert_table)
    token_ids = jnp.asarray(token_ids)
    for name, value in (("token_ids", token_ids), ("expert_table", table)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(
                f"{name} has dtype {value.dtype}; integers are accepted: cast it with "
                f"{name}.astype(jnp.int32)."
            )
    if token_ids.shape != logits.shape[:-1]:
        raise ValueError(
            f"token_ids has shape {token_ids.shape}, but logits has shape {logits.shape}; one id "
            "for each row of logits is accepted. Reshape token_ids to logits.shape[:-1]."
        )
    if table.ndim != 2:
        raise ValueError(
            f"expert_table has shape {table.shape}; [vocabulary, K] is accepted: a row of experts "
            "for each token id. A single row is expert_table[None]."
        )
    with jax.named_scope("jax_megamoe.router"):
        known = (token_ids >= 0) & (token_ids < table.shape[0])
        idx = table[jnp.where(known, token_ids, 0)]
        valid = known[..., None] & (idx >= 0) & (idx < logits.shape[-1])
        scores = _scoring(scoring_func)(logits)
        weights = jnp.take_along_axis(scores, jnp.where(valid, idx, 0), axis=-1)
        weights = jnp.where(valid, weights, 0.0)
        idx = jnp.where(valid, idx, -1).astype(jnp.int32)
        return idx, _weighted(weights, normalize, scaling_factor)


def deepseek_v3(
    logits: ArrayLike,
    num_experts_per_tok: int,
    *,
    correction_bias: ArrayLike | None = None,
    num_groups: int = 1,
    num_groups_per_tok: int = 1,
    scaling_factor: float = 1.0,
    normalize: bool = True,
) -> tuple[Array, Array]:
    """DeepSeek-V3: sigmoid scores, and experts only from the groups with the two best of them.

    Args:
      logits: [..., E].
      num_experts_per_tok: K.
      correction_bias: [E], added to the scores for both selections only.
      num_groups: groups that the experts form, in order (n_group).
      num_groups_per_tok: groups a token may use (topk_group).
      scaling_factor: multiplies the weights (routed_scaling_factor).
      normalize: divide the selected scores by their sum + 1e-20 first (norm_topk_prob).

    Returns:
      topk_idx int32 [..., K] and topk_weights float32 [..., K], by descending corrected score.
    """
    logits = _float32(logits)
    experts = logits.shape[-1]
    _check_slots(num_experts_per_tok, experts)
    if num_groups < 1 or experts % num_groups or experts // num_groups < min(2, experts):
        raise ValueError(
            f"num_groups is {num_groups}, but there are {experts} experts; a number that divides "
            "them into groups of at least 2 is accepted: the n_group of the checkpoint's config, "
            "or 1 for no groups."
        )
    if not 1 <= num_groups_per_tok <= num_groups:
        raise ValueError(
            f"num_groups_per_tok is {num_groups_per_tok}; from 1 to num_groups = {num_groups} are "
            "accepted: the topk_group of the checkpoint's config."
        )
    reachable = num_groups_per_tok * (experts // num_groups)
    _check_slots(num_experts_per_tok, reachable)
    with jax.named_scope("jax_megamoe.router"):
        scores = jax.nn.sigmoid(logits)
        corrected = _corrected(scores, correction_bias)
        groups = corrected.reshape(*corrected.shape[:-1], num_groups, experts // num_groups)
        best_two = jax.lax.top_k(groups, min(2, experts))[0].sum(axis=-1)
        _, chosen = jax.lax.top_k(best_two, num_groups_per_tok)
        allowed = (chosen[..., None] == jnp.arange(num_groups)).any(axis=-2)
        corrected = jnp.where(allowed[..., None], groups, -jnp.inf).reshape(corrected.shape)
        _, idx = jax.lax.top_k(corrected, num_experts_per_tok)
        weights = jnp.take_along_axis(scores, idx, axis=-1)
        return idx.astype(jnp.int32), _weighted(weights, normalize, scaling_factor)


def _sqrtsoftplus(logits: Array) -> Array:
    # Below -20, log1p(exp(x)) is exp(x) in float32; its square root does not underflow as early.
    tail = jnp.exp(0.5 * logits)
    return jnp.where(logits < -20, tail, jnp.sqrt(jax.nn.softplus(logits)))


_SCORING: dict[str, Callable[[Array], Array]] = {
    "sqrtsoftplus": _sqrtsoftplus,
    "sigmoid": jax.nn.sigmoid,
    "softmax": lambda logits: jax.nn.softmax(logits, axis=-1),
}


def _scoring(name: str) -> Callable[[Array], Array]:
    if name not in _SCORING:
        raise NotImplementedError(
            f"scoring_func is {name!r}; accepted are {', '.join(map(repr, _SCORING))}. Make "
            "the ids and weights of another router yourself: the layer takes any."
        )
    return _SCORING[name]


def _corrected(scores: Array, bias: ArrayLike | None) -> Array:
    return scores if bias is None else scores + jnp.asarray(bias, jnp.float32)


def _weighted(scores: Array, normalize: bool, scaling_factor: float) -> Array:
    if normalize:
        scores = scores / (scores.sum(axis=-1, keepdims=True) + _TINY)
    weighted: Array = scores * jnp.float32(scaling_factor)
    return weighted


def _float32(logits: ArrayLike) -> Array:
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating) or logits.ndim < 1:
        raise TypeError(
            f"logits has dtype {logits.dtype} and shape {logits.shape}; a floating-point array "
            "[..., E] is accepted: the router's scores before any softmax, cast with "
            "logits.astype(jnp.float32)."
        )
    return logits.astype(jnp.float32)


def _check_slots(slots: int, experts: int) -> None:
    if not 1 <= slots <= experts:
        raise ValueError(
            f"num_experts_per_tok is {slots}; from 1 to the {experts} experts a token may choose "
            "from are accepted. Take the checkpoint's num_experts_per_tok, and logits of all its "
            "experts."
        )

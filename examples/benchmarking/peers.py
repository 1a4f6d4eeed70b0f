"""What the layer is compared with: the same experts with bfloat16 weights, in JAX and in PyTorch.

All of them hold four times the bytes, dequantised outside the clock. `baseline` is the fastest
plain JAX form on a CPU: weights stored [K, N], a loop over the experts that the (known) routing
selects, rows padded to at least 2, float32 results. `torch-loop` and `torch-grouped` are the two
forms of Hugging Face's modules: a loop over the selected experts, and `torch._grouped_mm` over the
tokens sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_megamoe as jm

Call = Callable[[], Any]
Tokens = tuple[jax.Array, np.ndarray, np.ndarray]
TORCH = ("torch-loop", "torch-grouped")


class Baseline:
    def __init__(self, weights: jm.ExpertWeights) -> None:
        @jax.jit
        def transposed(codes: jax.Array, scale: jax.Array) -> jax.Array:
            return jm.dequantize_fp4(codes, scale, jnp.bfloat16).T

        self.weights = [
            (
                transposed(weights.gate_up_proj[e], weights.gate_up_proj_scale_inv[e]),
                transposed(weights.down_proj[e], weights.down_proj_scale_inv[e]),
            )
            for e in range(weights.gate_up_proj.shape[0])
        ]

    def call(self, tokens: Tokens) -> Call:
        """One batch, whose routing is known when it is compiled."""
        x, idx, w = tokens
        used = sorted(set(idx.flat))
        rows = []
        for expert in used:
            token, slot = np.nonzero(idx == expert)
            pad = max(0, 2 - len(token))  # a product of one row is slower than one of two
            rows.append((np.pad(token, (0, pad)), np.pad(slot, (0, pad)), len(token)))

        @jax.jit
        def layer(x: jax.Array, w: jax.Array, weights: list[Any]) -> jax.Array:
            y = jnp.zeros(x.shape, jnp.float32)
            for (token, slot, count), (gate_up, down) in zip(rows, weights, strict=True):
                products = jnp.dot(x[token], gate_up, preferred_element_type=jnp.float32)
                gate, up = jnp.split(products, 2, axis=1)
                a = (jax.nn.silu(gate) * up * w[token, slot][:, None]).astype(jnp.bfloat16)
                out = jnp.dot(a, down, preferred_element_type=jnp.float32)
                y = y.at[token[:count]].add(out[:count])
            return y.astype(jnp.bfloat16)

        selected = [self.weights[expert] for expert in used]
        return lambda: jax.block_until_ready(layer(x, w, selected))


class Torch:
    def __init__(self, weights: jm.ExpertWeights, threads: int) -> None:
        try:
            import torch
        except ImportError as error:
            raise SystemExit(
                "--implementations: torch-loop and torch-grouped need PyTorch, which is not "
                "installed. pip install 'jax_megamoe[test-torch]', or run `make test-torch` once "
                "and use .venv-torch/bin/python."
            ) from error
        torch.set_num_threads(threads)
        self.torch = torch

        def stacked(codes: Any, scale: Any) -> Any:
            """[E, N, K], filled expert by expert: a float32 copy of all would be large."""
            experts, rows, packed = codes.shape
            out = torch.empty(experts, rows, 2 * packed, dtype=torch.bfloat16)
            for e in range(experts):
                dense = np.asarray(jm.dequantize_fp4(codes[e], scale[e], jnp.float32))
                out[e] = torch.from_numpy(dense.copy())
            return out

        self.gate_up = stacked(weights.gate_up_proj, weights.gate_up_proj_scale_inv)
        self.down = stacked(weights.down_proj, weights.down_proj_scale_inv)

    def call(self, name: str, tokens: Tokens) -> Call:
        torch = self.torch
        x = torch.from_numpy(np.asarray(tokens[0].astype(jnp.float32))).bfloat16()
        idx, w = torch.from_numpy(tokens[1].astype(np.int64)), torch.from_numpy(tokens[2])
        form = {"torch-loop": self._loop, "torch-grouped": self._grouped}[name]

        def call() -> Any:
            with torch.inference_mode():
                return form(x, idx, w)

        return call

    def _activated(self, gate_up: Any) -> Any:
        gate, up = gate_up.chunk(2, dim=-1)
        return self.torch.nn.functional.silu(gate) * up

    def _loop(self, x: Any, idx: Any, w: Any) -> Any:
        linear = self.torch.nn.functional.linear
        y = self.torch.zeros_like(x)
        for expert in self.torch.unique(idx).tolist():
            token, slot = self.torch.where(idx == expert)
            a = self._activated(linear(x[token], self.gate_up[expert]))
            out = linear(a, self.down[expert]) * w[token, slot, None]
            y.index_add_(0, token, out.to(y.dtype))
        return y

    def _grouped(self, x: Any, idx: Any, w: Any) -> Any:
        torch = self.torch
        flat = idx.flatten()
        order = torch.argsort(flat)
        token = order // idx.shape[1]
        counts = torch.bincount(flat, minlength=self.down.shape[0])
        ends = torch.cumsum(counts, 0).to(torch.int32)
        a = self._activated(torch._grouped_mm(x[token], self.gate_up.mT, offs=ends))
        out = torch._grouped_mm(a, self.down.mT, offs=ends) * w.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, token, out.to(x.dtype))

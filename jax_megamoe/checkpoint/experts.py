"""Reads one expert of a layer, in whatever format, as the checkpoint weights of the contract on the
host.

Types and shapes are checked against the headers before a byte is read; what is read is at most one
expert, because the memory of a load is bounded by it. Layouts of kernels are not known here.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_megamoe import formats, validation
from jax_megamoe import weights as weights_module
from jax_megamoe.checkpoint import hf_config
from jax_megamoe.checkpoint.directory import Checkpoint
from jax_megamoe.checkpoint.recognise import DENSE, ExpertFormat, Part
from jax_megamoe.checkpoint.safetensors_file import TensorInfo
from jax_megamoe.config import MegaMoeConfig
from jax_megamoe.weights import ExpertWeights

_TYPES: dict[str, Any] = {
    "BF16": jnp.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "F4": np.int8,
    "F8_E8M0": jnp.float8_e8m0fnu,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "F64": np.float64,
}
_QUANTIZED_AT_ONCE = 1 << 22  # weights: bounds the float32 copies


class LayerReader:
    """The experts of one layer of a checkpoint.

    Args:
      checkpoint: where they are.
      layout: the format of the layer.
      num_experts: E.
      config: sizes that they must have; None: those in config.json, else those of the tensors.
      quantize: whether bfloat16, float16 and float32 experts are quantised; they are refused
        otherwise.
      expert: the expert whose tensors tell the sizes, one of this process's own.

    Attributes:
      num_experts, hidden_size, intermediate_size: E, H and I.

    Raises:
      ValueError, TypeError, NotImplementedError: naming the tensor and its file.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layout: ExpertFormat,
        num_experts: int,
        config: MegaMoeConfig | None = None,
        quantize: bool = False,
        expert: int = 0,
    ) -> None:
        self._checkpoint = checkpoint
        where = str(checkpoint.directory / "config.json")
        said = hf_config.language_model(checkpoint)
        if said is not None:
            hf_config.check_activation(said, where)
        self.format, self.num_experts = layout, num_experts
        if config is not None and config.num_experts != self.num_experts:
            raise ValueError(
                f"config.num_experts is {config.num_experts}, but the layer in "
                f"{checkpoint.source} has {self.num_experts} experts. Make the MegaMoeConfig from "
                "the checkpoint's own sizes."
            )
        first = self.format.gate_up[0]
        info = self._info(first.weight.replace("*", str(expert)))
        self._dense = info.dtype in DENSE
        if self._dense and not quantize:
            raise NotImplementedError(
                f"{self._where(first.weight, expert)} has dtype {info.dtype}: these experts are "
                "not quantised. Pass quantize=True to quantise them to MXFP4 on loading (to "
                "nearest, which costs accuracy), or use an MXFP4 checkpoint."
            )
        if not self._dense and said is not None:
            self._check_codes(first.weight, expert, info)
            hf_config.check_quantization(said, where)
        self.hidden_size, self.intermediate_size = self._sizes(first.weight, expert, info)
        self._check_sizes(config, said, where, self._where(first.weight, expert), info)
        self._bias_dtype = {
            part.bias: self._info(part.bias.replace("*", str(expert))).dtype
            for part in self.format.parts
            if part.bias
        }

    def read(self, expert: int) -> ExpertWeights:
        """One expert: NumPy arrays without the axis of experts, gate rows first, scales as uint8
        bytes.
        """
        hidden, intermediate = self.hidden_size, self.intermediate_size
        rows = 2 * intermediate // len(self.format.gate_up)
        gate_up = [self._matrix(part, expert, rows, hidden) for part in self.format.gate_up]
        codes, scale, bias = (_joined(values) for values in zip(*gate_up, strict=True))
        if self.format.interleaved:
            codes, scale, bias = map(_separated, (codes, scale, bias))
        if self._dense:
            codes, scale = _quantize(codes)
        down, down_scale, down_bias = self._matrix(self.format.down, expert, hidden, intermediate)
        if self._dense:
            down, down_scale = _quantize(down)
        return ExpertWeights(codes, scale, down, down_scale, bias, down_bias)

    def _matrix(
        self, part: Part, expert: int, rows: int, columns: int
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Weights, scale bytes and bias of one matrix, rows in the order of the checkpoint."""
        read = functools.partial(self._read, expert=expert)
        bias = None
        if part.bias:
            info = self._info(part.bias.replace("*", str(expert)))
            validation.check_bias(self._where(part.bias, expert), _TYPES.get(info.dtype, np.bool_))
            if info.dtype != self._bias_dtype[part.bias]:
                raise TypeError(
                    f"{self._where(part.bias, expert)} has dtype {info.dtype}, but other experts "
                    f"have {self._bias_dtype[part.bias]}; one dtype for all is accepted."
                )
            self._check_shape(part.bias, expert, info, (rows,), "one value a row")
            bias = read(part.bias)
        info = self._info(part.weight.replace("*", str(expert)))
        if self._dense:
            self._check_dense(part, expert, info)
            dense = (columns, rows) if self.format.transposed else (rows, columns)
            self._check_shape(part.weight, expert, info, dense, self._why())
            weights = read(part.weight)
            return (weights.T if self.format.transposed else weights), None, bias
        self._check_codes(part.weight, expert, info)
        if part.scale is None:
            raise ValueError(
                f"{self._where(part.weight, expert)} has dtype {info.dtype}, 4-bit codes, but "
                f"{self._checkpoint.source} has no scales for it "
                f"({part.weight.replace('*', str(expert))} with .scale, .weight_scale_inv or "
                "_scale_inv). The checkpoint is incomplete: download it again."
            )
        shape: tuple[int, ...] = (rows, columns if info.dtype == "F4" else columns // 2)
        if self.format.blocks:
            shape = (rows, columns // formats.GROUP, formats.GROUP // 2)
        scale_info = self._info(part.scale.replace("*", str(expert)))
        self._check_scale(part.scale, expert, scale_info, columns)
        self._check_shape(part.weight, expert, info, shape, self._why())
        packed = scale_info.dtype == "I32"
        groups = math.ceil(columns / 128) if packed else columns // formats.GROUP
        why = f"one scale for {formats.GROUP} weights"
        self._check_shape(part.scale, expert, scale_info, (rows, groups), why)
        codes = read(part.weight).view(np.int8).reshape(rows, columns // 2)
        scale = read(part.scale)
        validation.check_scale_values(self._where(part.scale, expert), scale)
        return codes, weights_module._bytes_of(codes, scale), bias

    def _read(self, name: str, expert: int) -> np.ndarray:
        if self.format.fused:
            return self._checkpoint.read(name, expert)
        return self._checkpoint.read(name.replace("*", str(expert)))

    def _info(self, name: str) -> TensorInfo:
        return self._checkpoint.info(name)

    def _where(self, name: str, expert: int) -> str:
        name = name.replace("*", str(expert))
        return f"{name} in {self._checkpoint.file_of(name)}"

    def _check_codes(self, name: str, expert: int, info: TensorInfo) -> None:
        where = self._where(name, expert)
        if info.dtype in DENSE:
            raise TypeError(
                f"{where} has dtype {info.dtype}, but other experts of the layer hold 4-bit "
                "codes. The checkpoint mixes formats; use one that has the same for all experts."
            )
        if info.dtype not in ("I8", "U8", "F4"):
            validation.check_codes(where, _TYPES.get(info.dtype, np.bool_))
        if self.format.blocks and info.dtype == "F4":
            raise TypeError(f"{where} has dtype F4; blocks of U8 bytes are accepted.")

    def _check_dense(self, part: Part, expert: int, info: TensorInfo) -> None:
        where = self._where(part.weight, expert)
        if info.dtype not in DENSE:
            raise TypeError(
                f"{where} has dtype {info.dtype}, but other experts of the layer are floating "
                "point. The checkpoint mixes formats; use one that has the same for all experts."
            )
        if part.scale is not None:
            raise TypeError(
                f"{where} has dtype {info.dtype}, but also scales, "
                f"{self._where(part.scale, expert)}. Scales belong to I8 codes, floating-point "
                "experts have none."
            )

    def _check_scale(self, name: str, expert: int, info: TensorInfo, k: int) -> None:
        dtype = _TYPES.get(info.dtype, np.bool_)
        validation.check_scale(
            self._where(name, expert), jax.ShapeDtypeStruct(info.shape, dtype), k
        )

    def _check_shape(
        self, name: str, expert: int, info: TensorInfo, shape: tuple[int, ...], why: str
    ) -> None:
        expected = (self.num_experts, *shape) if self.format.fused else shape
        if info.shape != expected:
            raise ValueError(
                f"{self._where(name, expert)} has shape {list(info.shape)}, but {list(expected)} "
                f"is needed: {why}. The checkpoint is damaged, or its format is not the one its "
                "names say."
            )

    def _why(self) -> str:
        return f"E = {self.num_experts}, H = {self.hidden_size}, I = {self.intermediate_size}"

    def _sizes(self, name: str, expert: int, info: TensorInfo) -> tuple[int, int]:
        """(H, I) from the first matrix."""
        shape = info.shape[1:] if self.format.fused else info.shape
        rank = 3 if self.format.blocks else 2
        if len(shape) != rank:
            raise ValueError(
                f"{self._where(name, expert)} has shape {list(info.shape)}; "
                f"{rank + self.format.fused} axes are accepted for {self.format.title}."
            )
        if self.format.transposed:
            shape = shape[::-1]
        rows, columns = shape[0], math.prod(shape[1:])
        if not self._dense and info.dtype != "F4":
            columns *= 2
        halves = 3 - len(self.format.gate_up)  # rows of one part, in units of I
        if rows % halves:
            raise ValueError(
                f"{self._where(name, expert)} has shape {list(info.shape)}: {rows} rows, but gate "
                "and up rows are as many."
            )
        return columns, rows // halves

    def _check_sizes(
        self,
        config: MegaMoeConfig | None,
        said: dict[str, Any] | None,
        where: str,
        tensor: str,
        info: TensorInfo,
    ) -> None:
        """Refuses sizes that are not those of the config, or that no layer has."""
        for name, found in (
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
        ):
            wanted, who = hf_config.size(said, name, where), where
            if config is not None:
                wanted, who = getattr(config, name), "the config passed"
            if wanted is not None and wanted != found:
                raise ValueError(
                    f"{tensor} has dtype {info.dtype} and shape {list(info.shape)}, which makes "
                    f"{name} {found}, but {who} says {wanted}. They are of different checkpoints, "
                    "or the tensor is not what its type says."
                )
        try:
            validation.check_sizes(self.hidden_size, self.intermediate_size)
        except ValueError as error:
            raise ValueError(f"{tensor} has shape {list(info.shape)}: {error}") from None


def _joined(values: tuple[Any, ...]) -> Any:
    if len(values) == 1 or values[0] is None:
        return values[0]
    if len({value.dtype for value in values}) > 1:
        values = tuple(value.astype(np.float32) for value in values)
    return np.concatenate(values)


def _separated(rows: Any) -> Any:
    """Alternating rows (gate, up, gate, ...) as gate rows, then up rows."""
    return None if rows is None else np.concatenate([rows[0::2], rows[1::2]])


def _quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """MXFP4 codes and scale bytes of a floating-point matrix, a few rows at a time."""
    rows, columns = matrix.shape
    step = min(rows, max(1, _QUANTIZED_AT_ONCE // columns))
    codes = np.empty((rows, columns // 2), np.int8)
    scale = np.empty((rows, columns // formats.GROUP), np.uint8)
    with jax.default_device(_host()):
        for start in range(0, rows, step):
            part = slice(start, min(start + step, rows))
            some_codes, some_scale = _quantize_jitted(np.ascontiguousarray(matrix[part]))
            codes[part] = np.asarray(some_codes)
            scale[part] = np.asarray(some_scale).view(np.uint8)
    return codes, scale


_quantize_jitted = jax.jit(formats.quantize_fp4)


def _host() -> Any:
    """The CPU as a device, so that quantising takes no accelerator memory; None (the default) where
    it is disabled.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None

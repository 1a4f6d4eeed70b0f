"""Which format the experts of a layer are stored in, told by the names of their tensors.

Formats differ in names, in one tensor per expert or per layer, and in the order of rows; all of
that becomes an `ExpertFormat`, which `experts.py` reads by. What fits none exactly is refused: a
wrong guess would load and run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from jax_megamoe.checkpoint import hf_config
from jax_megamoe.checkpoint.directory import Checkpoint

_EXPERT_NAME = re.compile(
    r"(?P<model>.*?)layers\.(?P<layer>\d+)\.(?P<block>\w+)\.experts\.(?P<rest>.+)"
)
_OWN_NAME = re.compile(r"(?P<expert>\d+)\.(?P<matrix>\w+)\.(?P<kind>\w+)")

#: Types of experts that are not quantised.
DENSE = ("BF16", "F16", "F32")

#: By layer and prefix ("model.layers.3.mlp.experts."), the rest of the experts' tensor names.
ExpertNames = dict[int, dict[str, set[str]]]

#: Names of the three matrices (gate, up, down) of one expert.
_MATRICES = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
#: What the scale of an expert's own matrix is called: by DeepSeek-V4, by Hugging Face.
_OWN_SCALES = ("scale", "weight_scale_inv")

_ACCEPTED = (
    "Accepted are experts.E.{w1,w3,w2}.weight with .scale or .weight_scale_inv (DeepSeek-V4), "
    "experts.{gate_up_proj,down_proj} with *_scale_inv (Hugging Face), "
    "experts.{gate_up_proj,down_proj}_blocks with *_scales and *_bias (gpt-oss), and the "
    "bfloat16 or float32 forms of the three with quantize=True"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """The tensors of one matrix: names in which "*" stands for the expert; without it, axis 0 is
    the expert.
    """

    weight: str
    scale: str | None = None
    bias: str | None = None

    def names(self, expert: int) -> list[str]:
        return [
            name.replace("*", str(expert)) for name in (self.weight, self.scale, self.bias) if name
        ]


@dataclasses.dataclass(frozen=True)
class ExpertFormat:
    """How the experts of one layer are stored.

    Attributes:
      title: for messages.
      gate_up: one part that holds gate and up rows, or two.
      down: the part of the second matrix.
      fused: tensors hold all experts, along axis 0.
      blocks: codes are [..., K/32, 16].
      interleaved: gate and up rows alternate (row 0 gate, row 1 up, ...) instead of following each
        other.
      transposed: matrices are [K, N] instead of [N, K].
    """

    title: str
    gate_up: tuple[Part, ...]
    down: Part
    fused: bool
    blocks: bool = False
    interleaved: bool = False
    transposed: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.gate_up, self.down)


def expert_names(checkpoint: Checkpoint) -> ExpertNames:
    """The tensors of routed experts in a checkpoint."""
    layers: ExpertNames = {}
    for name in checkpoint.names():
        match = _EXPERT_NAME.fullmatch(name)
        if match:
            prefix = name[: match.start("rest")]
            layers.setdefault(int(match["layer"]), {}).setdefault(prefix, set()).add(match["rest"])
    return layers


def recognise(checkpoint: Checkpoint, names: ExpertNames, layer: int) -> tuple[ExpertFormat, int]:
    """The format of the experts of a layer, and their number.

    Args:
      checkpoint: what is read.
      names: its `expert_names`.
      layer: the number of the layer.

    Raises:
      ValueError: no such layer, tensors missing, or names that fit no format.
      NotImplementedError: names of a format that is not supported.
    """
    if layer not in names:
        having = ", ".join(map(str, sorted(names))) or "none"
        raise ValueError(
            f"layer is {layer}, but {checkpoint.source} has no tensor layers.{layer}.*.experts.*; "
            f"layers with experts: {having}. {_ACCEPTED}."
        )
    by_prefix = names[layer]
    if len(by_prefix) > 1:
        one, other, *_ = sorted(by_prefix)
        raise ValueError(
            f"{checkpoint.source} has experts of layer {layer} under two prefixes, {one} and "
            f"{other}, and nothing says which are meant. Pass the path of a file or an index that "
            "has only one of them."
        )
    ((prefix, rest),) = by_prefix.items()
    if any(_OWN_NAME.fullmatch(name) for name in rest):
        return _own_tensors(checkpoint, prefix, rest)
    return _fused_tensors(checkpoint, prefix, rest)


def _own_tensors(checkpoint: Checkpoint, prefix: str, rest: set[str]) -> tuple[ExpertFormat, int]:
    """The format with tensors for each expert of its own."""
    matches = {name: _OWN_NAME.fullmatch(name) for name in rest}
    found = {(match["matrix"], match["kind"]) for match in matches.values() if match}
    experts = {int(match["expert"]) for match in matches.values() if match}
    matrices = next((names for names in _MATRICES if (names[0], "weight") in found), None)
    kinds = {kind for _, kind in found}
    scale = next((kind for kind in _OWN_SCALES if kind in kinds), None)
    wanted = {"weight"} | ({scale} if scale else set()) | ({"bias"} & kinds)
    strange = [name for name, match in matches.items() if not match or match["kind"] not in wanted]
    if matrices is not None:
        strange += [name for name, m in matches.items() if m and m["matrix"] not in matrices]
    if strange or matrices is None:
        raise _strange_names(checkpoint, prefix, strange or rest)

    number = _number_of_experts(checkpoint, max(experts) + 1)
    bias = "bias" in kinds

    def part(matrix: str) -> Part:
        stem = f"{prefix}*.{matrix}."
        return Part(
            stem + "weight", stem + scale if scale else None, stem + "bias" if bias else None
        )

    gate, up, down = map(part, matrices)
    layout = ExpertFormat(
        f"tensors of each expert ({'/'.join(matrices)})", (gate, up), down, fused=False
    )
    for expert in range(number):
        for name in (name for p in layout.parts for name in p.names(expert)):
            if name not in checkpoint:
                raise ValueError(
                    f"{checkpoint.source} has no tensor {name}, although there are {number} "
                    f"experts in this layer ({_who_says(checkpoint, number)}). The checkpoint is "
                    "incomplete: download it again."
                )
    if max(experts) >= number:
        raise ValueError(
            f"{checkpoint.source} has tensors {prefix}{max(experts)}.*, but "
            f"{_who_says(checkpoint, number)} gives {number} experts. Index and config.json are "
            "of different checkpoints."
        )
    return layout, number


def _fused_tensors(checkpoint: Checkpoint, prefix: str, rest: set[str]) -> tuple[ExpertFormat, int]:
    """The formats whose tensors hold all experts."""
    blocks = "gate_up_proj_blocks" in rest
    weight, scale = ("_blocks", "_scales") if blocks else ("", "_scale_inv")
    matrices = ("gate_up_proj", "down_proj")
    scaled = any(matrix + scale in rest for matrix in matrices)
    biased = any(matrix + "_bias" in rest for matrix in matrices)
    ends = [weight] + [scale] * (scaled or blocks) + ["_bias"] * biased
    wanted = [matrix + end for matrix in matrices for end in ends]
    strange = sorted(rest - set(wanted))
    if strange or "gate_up_proj" + weight not in rest:
        raise _strange_names(checkpoint, prefix, strange or rest)
    for name in wanted:
        if name not in rest:
            raise ValueError(
                f"{checkpoint.source} has no tensor {prefix}{name}, which belongs to "
                f"{prefix}gate_up_proj{weight}. The checkpoint is incomplete: download it again."
            )

    def part(matrix: str) -> Part:
        stem = prefix + matrix
        return Part(
            stem + weight,
            stem + scale if scaled or blocks else None,
            stem + "_bias" if biased else None,
        )

    gate_up, down = map(part, matrices)
    info = checkpoint.info(gate_up.weight)
    experts = info.shape[0] if info.shape else 0
    number = _number_of_experts(checkpoint, experts)
    if number != experts:
        raise ValueError(
            f"{gate_up.weight} in {checkpoint.file_of(gate_up.weight)} has shape "
            f"{list(info.shape)}: {experts} experts; {_who_says(checkpoint, number)} gives "
            f"{number}. They are of different checkpoints."
        )
    family = hf_config.model_type(hf_config.language_model(checkpoint))
    transposed = False
    if not blocks and info.dtype in DENSE:
        transposed = _is_transposed(checkpoint, gate_up.weight, down.weight)
    # gpt-oss alternates gate and up; its unquantised form is also transposed.
    if family == "gpt_oss" and not blocks and not transposed:
        raise ValueError(
            f"{gate_up.weight} in {checkpoint.file_of(gate_up.weight)} has shape "
            f"{list(info.shape)}, which no gpt-oss checkpoint has: its gate_up_proj is [E, H, "
            "2I], or gate_up_proj_blocks. Whether gate and up rows alternate cannot be told; use "
            "one of these two forms."
        )
    if transposed and family != "gpt_oss":
        raise NotImplementedError(
            f"{gate_up.weight} in {checkpoint.file_of(gate_up.weight)} has shape "
            f"{list(info.shape)}, that is [E, H, 2I]; this form is accepted of gpt-oss, but the "
            f"model_type is {family!r}, and whether gate and up columns alternate cannot be told. "
            "Put the config.json beside the tensors, or write them as [E, 2I, H], gate rows "
            "first."
        )
    title = "gpt-oss blocks" if blocks else "tensors of all experts"
    interleaved = blocks or transposed
    return (
        ExpertFormat(title, (gate_up,), down, True, blocks, interleaved, transposed),
        number,
    )


def _is_transposed(checkpoint: Checkpoint, gate_up: str, down: str) -> bool:
    """Whether unquantised matrices are [E, K, N]; both shapes together leave no doubt."""
    first, second = checkpoint.info(gate_up).shape, checkpoint.info(down).shape
    if len(first) == len(second) == 3:
        if first[2] == second[1] and first[1] == 2 * second[2]:
            return False
        if first[1] == second[2] and first[2] == 2 * second[1]:
            return True
    raise ValueError(
        f"{gate_up} in {checkpoint.file_of(gate_up)} has shape {list(first)} and {down} has shape "
        f"{list(second)}; [E, 2I, H] and [E, H, I] are accepted, or gpt-oss's [E, H, 2I] and [E, "
        "I, H]."
    )


def _number_of_experts(checkpoint: Checkpoint, found: int) -> int:
    said = hf_config.size(
        hf_config.language_model(checkpoint),
        "num_experts",
        str(checkpoint.directory / "config.json"),
    )
    return found if said is None else said


def _who_says(checkpoint: Checkpoint, number: int) -> str:
    config = checkpoint.directory / "config.json"
    return f"{config}" if checkpoint.config is not None else "the highest expert found"


def _strange_names(
    checkpoint: Checkpoint, prefix: str, strange: Iterable[str]
) -> NotImplementedError:
    name = sorted(strange)[0]
    full = f"{prefix}{name} in {checkpoint.file_of(prefix + name)}"
    if any(end in name for end in ("weight_scale_2", "global_scale", "input_scale")):
        return NotImplementedError(
            f"{full} belongs to NVFP4 (scales of float8_e4m3fn, one for 16 weights, under a "
            "global one). Mega MoE needs MXFP4: use an MXFP4 checkpoint, or load the bfloat16 "
            "one with quantize=True."
        )
    return NotImplementedError(
        f"{full} belongs to no format of experts that is known here. {_ACCEPTED}."
    )

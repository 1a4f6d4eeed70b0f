"""Every refusal of the project, in one place.

Functions here take shapes, dtypes and device descriptions, so that each can be tested without a
device; they decide nothing but whether to refuse, and run before any work. Three error types, by
rule: TypeError and ValueError for the caller's input, NotImplementedError for a device or format
this project does not support. The order in which callers use them is that of the PyTorch original:
device, weight type, axis, shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

GROUP = 32  #: elements along k that share one scale
IMPLEMENTATIONS = ("sm100", "cpu", "xla")
MAX_SLOTS = 32  #: largest K (slots per token)

AxisName = str | tuple[str, ...]


class TokenNames(NamedTuple):
    """What a caller's signature calls the three token arrays, for messages."""

    x: str = "x"
    topk_idx: str = "topk_idx"
    topk_weights: str = "topk_weights"


FUNCTION_NAMES = TokenNames()
MODULE_NAMES = TokenNames("hidden_states", "top_k_index", "top_k_weights")


def a_type(value: object) -> str:
    """A value's type with its article: "a list", "an ExpertWeights"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


class DeviceLike(Protocol):
    """What the device check reads of a jax.Device."""

    @property
    def platform(self) -> str: ...


# --- implementation and device ------------------------------------------------------------------


def check_implementation(implementation: str | None) -> None:
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation is {implementation!r}; accepted are "
            f"{', '.join(map(repr, IMPLEMENTATIONS))} and None (chosen by platform: cpu -> 'cpu', "
            "cuda -> 'sm100', any other -> 'xla')."
        )


def is_cuda(device: DeviceLike) -> bool:
    """Whether a device is an NVIDIA GPU (XLA calls its platform 'gpu' or 'cuda'; ROCm GPUs say
    'rocm').
    """
    if device.platform == "cuda":
        return True
    version = str(getattr(getattr(device, "client", None), "platform_version", ""))
    return device.platform == "gpu" and "rocm" not in version.lower()


def check_devices(devices: Iterable[DeviceLike], implementation: str | None) -> None:
    """Refuses CUDA devices whose compute capability major is not exactly 10, if they would run
    `sm100`.

    12.x ("consumer Blackwell") and 11.x are not SM100: they lack its tensor memory instructions.

    Raises:
      NotImplementedError: naming what was found and `implementation="xla"`.
    """
    if implementation not in (None, "sm100"):
        return
    for device in devices:
        if not is_cuda(device):
            continue
        capability = getattr(device, "compute_capability", None)
        if not is_sm100(capability):
            raise NotImplementedError(not_sm100_message(device, capability))


def is_sm100(capability: object) -> bool:
    """Whether a compute capability as jax spells it ("10.0") is of the SM100 family (10.x)."""
    major, dot, minor = str(capability).partition(".")
    return major == "10" and dot == "." and minor.isdecimal()


def not_sm100_message(device: object, capability: object) -> str:
    kind = getattr(device, "device_kind", None)
    found = "no compute capability" if capability is None else f"compute capability {capability}"
    return (
        "Mega MoE needs a Blackwell data-centre GPU (SM100: compute capability 10.x), but "
        f'{"a CUDA device" if kind is None else kind} has {found}. Use implementation="xla" on '
        "this device: the same results from plain XLA operations."
    )


def check_sm100_built(built: bool) -> None:
    if not built:
        raise NotImplementedError(
            'implementation="sm100", which None means on an NVIDIA GPU, cannot run: this '
            "jax_megamoe was built without its SM100 part. Install a wheel that has it, or build "
            "from source with `pip install . --config-settings=cmake.define.JAX_MEGAMOE_SM100=ON`; "
            'implementation="xla" runs on any device without it.'
        )


NO_WORKSPACE_MESSAGE = (
    'MegaMoe.setup cannot make the peer memory of implementation="sm100": this jax_megamoe has no '
    'workspace for it yet. Use implementation="xla", which needs no setup.'
)


# --- weights ------------------------------------------------------------------------------------


def check_codes(name: str, dtype: Any) -> None:
    """Refuses expert weights that are not FP4-packed int8."""
    dtype = np.dtype(dtype)
    if dtype == np.int8:
        return
    found = (
        f"Mega MoE requires FP4-packed expert weights (dtype=`int8`), but {name} has dtype {dtype}."
    )
    if dtype == np.uint8:
        way_out = f" View the same bytes as int8: {name} = {name}.view(jnp.int8)."
    elif dtype == jnp.float4_e2m1fn:
        # A NumPy array holds one code a byte; as a JAX array it holds two.
        way_out = (
            " View two codes as a byte, low nibble first: "
            f"{name} = jnp.asarray({name}).view(jnp.int8)."
        )
    elif dtype.name.startswith("float8"):
        way_out = (
            " FP8 experts are not supported: re-quantise them with jax_megamoe.quantize_fp4 (or "
            "MegaMoe.from_dense), or keep them in FP8 and use jax.lax.ragged_dot."
        )
    else:
        way_out = (
            " Quantise with jax_megamoe.quantize_fp4, or build the layer with MegaMoe.from_dense."
        )
    raise NotImplementedError(found + way_out)


_SCALE_DTYPES = (jnp.float8_e8m0fnu, np.uint8, np.float32, np.int32)


def check_scale(name: str, scale: Any, k: int) -> None:
    """Refuses NVFP4 scales and scales of a dtype or length that MXFP4 does not have.

    Args:
      name: the array's name, for the message.
      scale: anything with shape and dtype; the last axis runs over groups of 32 along k.
      k: number of weights (not bytes) along the last axis of the codes.
    """
    dtype = np.dtype(scale.dtype)
    length = scale.shape[-1] if len(scale.shape) else 0
    per_16 = k >= 2 * GROUP and length == k // 16 and dtype != np.int32
    if dtype == jnp.float8_e4m3fn or per_16:
        raise NotImplementedError(
            f"{name} has dtype {dtype} and {length} scales along k = {k}: that is NVFP4 "
            "(float8_e4m3fn scales, or one per 16 weights). Mega MoE needs MXFP4: UE8M0 scales, "
            f"one per 32 ({k // GROUP} here); dequantise and re-quantise with "
            "jax_megamoe.quantize_fp4."
        )
    if dtype not in [np.dtype(accepted) for accepted in _SCALE_DTYPES]:
        raise TypeError(
            f"{name} has dtype {dtype}; accepted are float8_e8m0fnu, uint8 (its bits), float32 "
            "(exact powers of two) and int32 (four scales packed along k)."
        )


def check_dequantizable(name: str, codes: Any, accepted: Sequence[Any], scale: Any) -> None:
    """Refuses what the dequantisers cannot read; the shape of the scales is theirs to check."""
    for what, value in ((name, codes), ("scale", scale)):
        check_array(what, value)
        if not value.shape:
            raise ValueError(f"{what} has no axes; one of codes, or of their scales, is needed.")
    types = [np.dtype(dtype) for dtype in accepted]
    if codes.dtype not in types:
        raise TypeError(
            f"{name} has dtype {codes.dtype}; {' and '.join(map(str, types))} are accepted: pass "
            "what the quantise function of the same format returned."
        )
    check_scale("scale", scale, codes.shape[-1] * (2 if np.dtype(np.int8) in types else 1))


def check_scale_values(name: str, scale: Any) -> None:
    """Refuses concrete float32 scales other than 2^-127..2^127 (tracers pass)."""
    if np.dtype(scale.dtype) != np.float32:
        return
    for index, values in _concrete_blocks(scale):
        bits = values.view(np.int32)
        exponent = bits >> 23
        good = ((bits & 0x7FFFFF) == 0) & (exponent >= 1) & (exponent <= 254) | (bits == 1 << 22)
        if not good.all():
            bad = tuple(int(i) for i in np.argwhere(~good)[0])
            where = tuple(start + i for start, i in zip(index, bad, strict=True))
            raise ValueError(
                f"{name}{list(where)} is {values[bad]!s}; float32 scales must be exact powers of "
                "two from 2^-127 to 2^127 (UE8M0). Re-quantise with jax_megamoe.quantize_fp4 "
                "rather than round."
            )


def _concrete_blocks(array: Any) -> Iterable[tuple[Sequence[int], np.ndarray]]:
    """(start index, values) of the parts of an array that this process can read; nothing for
    tracers.
    """
    if isinstance(array, np.ndarray):
        yield (0,) * array.ndim, np.ascontiguousarray(array)
    elif isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        for shard in array.addressable_shards:
            start = tuple(part.start or 0 for part in shard.index)
            yield start, np.ascontiguousarray(np.asarray(shard.data))


def check_bias(name: str, dtype: Any) -> None:
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(jnp.bfloat16)):
        raise TypeError(
            f"{name} has dtype {np.dtype(dtype)}; accepted are float32 and bfloat16: cast it with "
            f"{name}.astype(jnp.float32)."
        )


def check_weight_arrays(weights: Any) -> None:
    """Refuses fields of ExpertWeights or PreparedWeights that are no arrays; biases may be None."""
    for name in ("gate_up_proj", "down_proj"):
        check_array(name, getattr(weights, name))
        check_array(f"{name}_scale_inv", getattr(weights, f"{name}_scale_inv"))
        bias = getattr(weights, f"{name}_bias")
        if bias is not None:
            check_array(f"{name}_bias", bias)


def check_prepared_arrays(weights: Any, expected: Any) -> None:
    """Refuses prepared weights whose arrays are not those of their layout.

    Args:
      weights: PreparedWeights, its fields arrays.
      expected: what the layout has for these weights, with anything that has shape and dtype.
    """
    reason = (
        f"the layout of {weights.implementation!r} for H = {weights.hidden_size}, "
        f"I = {weights.intermediate_size} and the E of gate_up_proj {weights.gate_up_proj.shape}"
    )
    for matrix in ("gate_up_proj", "down_proj"):
        for name in (matrix, f"{matrix}_scale_inv", f"{matrix}_bias"):
            value, wanted = getattr(weights, name), getattr(expected, name)
            if value is None and name.endswith("_bias"):
                continue
            if name.endswith("_bias"):
                check_bias(name, value.dtype)
            elif value.dtype != wanted.dtype:
                raise TypeError(
                    f"{name} has dtype {value.dtype}; {wanted.dtype} is accepted: {reason}."
                )
            _check_shape(name, value, tuple(wanted.shape), reason)


def check_weight_types(weights: Any) -> None:
    """Checks the dtypes of weights in the checkpoint layout; NVFP4 is recognised by dtype or by
    count.
    """
    check_weight_arrays(weights)
    for name in ("gate_up_proj", "down_proj"):
        check_codes(name, getattr(weights, name).dtype)
    for name in ("gate_up_proj", "down_proj"):
        codes = getattr(weights, name)
        k = 2 * codes.shape[-1] if len(codes.shape) else 0
        check_scale(f"{name}_scale_inv", getattr(weights, f"{name}_scale_inv"), k)
    for name in ("gate_up_proj_bias", "down_proj_bias"):
        bias = getattr(weights, name)
        if bias is not None:
            check_bias(name, bias.dtype)


def check_weight_shapes(weights: Any, *, lead: int = 1) -> tuple[int, int]:
    """Checks the shapes of weights in the checkpoint layout; `lead` axes come before each matrix.

    Returns:
      (H, I).
    """
    for name in ("gate_up_proj", "down_proj"):
        _check_rank(name, getattr(weights, name), lead + 2)
    *experts, two_i, half_h = weights.gate_up_proj.shape
    hidden, intermediate = 2 * half_h, two_i // 2
    if two_i % 2:
        raise ValueError(
            f"gate_up_proj has {two_i} rows (shape {weights.gate_up_proj.shape}); an even number "
            "is accepted: I gate rows, then I up rows."
        )
    shape = tuple(weights.gate_up_proj.shape)
    check_sizes(hidden, intermediate, f" by gate_up_proj {shape}, which is [E, 2I, H/2]")
    _check_shape(
        "down_proj",
        weights.down_proj,
        (*experts, hidden, intermediate // 2),
        f"[E, H, I/2] with H = {hidden} and I = {intermediate} from gate_up_proj "
        f"{weights.gate_up_proj.shape}",
    )
    for name in ("gate_up_proj", "down_proj"):
        codes, scale = getattr(weights, name), getattr(weights, f"{name}_scale_inv")
        k = 2 * codes.shape[-1]
        groups, how = k // GROUP, ""
        if np.dtype(scale.dtype) == np.int32:
            groups = math.ceil(groups / 4)
            how = ", four packed in an int32 (one an element: cast them with .astype(jnp.uint8))"
        _check_shape(
            f"{name}_scale_inv",
            scale,
            (*codes.shape[:-1], groups),
            f"one scale for {GROUP} weights of {name} {codes.shape}{how}",
        )
    for name, rows in (("gate_up_proj_bias", two_i), ("down_proj_bias", hidden)):
        bias = getattr(weights, name)
        if bias is not None:
            _check_shape(name, bias, (*experts, rows), f"one value for each row of {name[:-5]}")
    return hidden, intermediate


def check_integer(name: str, value: Any) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); an integer is accepted.")


def check_sizes(hidden: int, intermediate: int, source: str = "") -> None:
    """Refuses H and I that are no multiples of 32; `source` says where they were read."""
    for letter, name, value in (
        ("H", "hidden size", hidden),
        ("I", "intermediate size", intermediate),
    ):
        check_integer(f"{letter} ({name})", value)
        if value <= 0 or value % GROUP:
            raise ValueError(
                f"{letter} ({name}) is {value}{source}; a positive multiple of {GROUP} is "
                f"accepted, since {GROUP} values share one scale. Pad the weights with zeros."
            )


def check_counts(num_experts: int, num_slots: int) -> None:
    check_integer("num_experts", num_experts)
    check_integer("num_experts_per_tok", num_slots)
    if num_experts < 1:
        raise ValueError(f"num_experts is {num_experts}; at least 1 is accepted.")
    if not 1 <= num_slots <= MAX_SLOTS:
        raise ValueError(
            f"num_experts_per_tok is {num_slots}; from 1 to {MAX_SLOTS} slots a token are accepted."
        )


def check_preparable(weights: Any, expert_weights: type[Any], prepared_weights: type[Any]) -> None:
    """Refuses what cannot be prepared: weights already prepared, and anything that is not
    ExpertWeights.
    """
    if isinstance(weights, prepared_weights):
        raise ValueError(
            f"weights are already prepared (for implementation={weights.implementation!r}, layout "
            f"version {weights.layout_version}); preparing twice would scramble them. Convert "
            "with prepare_weights(unprepare_weights(weights), implementation)."
        )
    if not isinstance(weights, expert_weights):
        raise TypeError(
            f"weights is {a_type(weights)}; an ExpertWeights is accepted: "
            "ExpertWeights(gate_up_proj, gate_up_proj_scale_inv, down_proj, down_proj_scale_inv)."
        )


def check_prepared(
    prepared_for: str, layout_version: int, current_version: int, implementation: str | None
) -> None:
    """Refuses weights prepared for another implementation or by another version of its layout."""
    if implementation is not None and implementation != prepared_for:
        raise ValueError(
            f"implementation is {implementation!r}, but the weights were prepared for "
            f"{prepared_for!r}. Convert with prepare_weights(unprepare_weights(weights), "
            f"{implementation!r}), or leave implementation=None."
        )
    if layout_version != current_version:
        raise ValueError(
            f"the weights were prepared in layout version {layout_version} of {prepared_for!r}, "
            f"and this jax_megamoe uses version {current_version}. Prepare again from the "
            "checkpoint, or unprepare them with the release that made them."
        )


# --- the axis -----------------------------------------------------------------------------------


def axis_names(axis_name: AxisName | None) -> tuple[str, ...]:
    """The axis as a tuple of names; refuses none at all."""
    given = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    names = tuple(name for name in given if isinstance(name, str) and name)
    if not names or len(names) < len(given):
        raise ValueError(
            f"axis_name is {axis_name!r}: Mega MoE needs an expert-parallel mesh axis, which "
            "stands in for the process group of the PyTorch layer. Pass its name, e.g. "
            'axis_name="ep", and a mesh that has it, e.g. jax.make_mesh((jax.device_count(),), '
            '("ep",)); one device is a mesh of size 1.'
        )
    if len(set(names)) < len(names):
        raise ValueError(
            f"axis_name is {axis_name!r}, which names an axis twice; each once is accepted."
        )
    return names


def check_mesh(mesh: Any) -> None:
    """Refuses what is no mesh, such as a list of devices."""
    if mesh is not None and not isinstance(mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        raise TypeError(
            f"mesh has type {type(mesh).__name__}; a jax.sharding.Mesh or None (the one in "
            'context) is accepted: jax.make_mesh((jax.device_count(),), ("ep",)); devices= takes '
            "some of them."
        )


def check_mesh_in_context(mesh: Any, context: Any) -> None:
    """Refuses a mesh other than the one that jax.set_mesh has entered."""
    given = mesh.abstract_mesh if isinstance(mesh, jax.sharding.Mesh) else mesh
    if not context.empty and given != context:
        raise ValueError(
            f"mesh is {given}, but the mesh in context (jax.set_mesh) is {context}; within it, "
            "that one is accepted. Leave mesh=None, or call outside of jax.set_mesh."
        )


def check_axis_in_mesh(axis_name: AxisName | None, mesh_axes: Sequence[str] | None) -> None:
    """Refuses an axis that the mesh has not, and having no mesh at all (`mesh_axes=None`)."""
    names = axis_names(axis_name)
    if not mesh_axes:
        raise ValueError(
            f"no mesh was given and none is in context, so axis_name={axis_name!r} names nothing. "
            "The axis stands in for the process group of the PyTorch layer: pass "
            f"mesh=jax.make_mesh((jax.device_count(),), ({names[0]!r},)), or enter one with "
            "jax.set_mesh(mesh)."
        )
    missing = [name for name in names if name not in mesh_axes]
    if missing:
        raise ValueError(
            f"axis_name={axis_name!r}, but the mesh has the axes {tuple(mesh_axes)}: "
            f"{missing[0]!r} is not among them. The expert-parallel axis stands in for the "
            "process group; name one of the mesh's axes, or pass a mesh that has it."
        )


def check_axis_is_manual(axis_name: AxisName | None, manual_axes: Iterable[str]) -> None:
    """Refuses `mega_moe` outside a shard_map over its axis."""
    names = axis_names(axis_name)
    missing = [name for name in names if name not in set(manual_axes)]
    if missing:
        raise ValueError(
            f"axis_name={axis_name!r}, but {missing[0]!r} is not a manual axis here (manual are "
            f"{tuple(manual_axes)}): mega_moe works on the local arrays of a jax.shard_map over "
            "the expert-parallel axis, which stands in for the process group. Call it inside "
            "that shard_map, or use expert_parallel (global arrays, it enters shard_map itself)."
        )


def check_axis_is_whole(axis_name: AxisName, manual_axes: Iterable[str]) -> None:
    """Refuses `expert_parallel` where some axes of a several-axis name are manual and some not."""
    names = axis_names(axis_name)
    manual = [name for name in names if name in set(manual_axes)]
    if manual and len(manual) < len(names):
        raise ValueError(
            f"axis_name={axis_name!r}, but only {tuple(manual)} of these axes are manual here: the "
            "experts are split over all of them at once. Make all of them manual in the enclosing "
            "jax.shard_map, or none."
        )


def check_experts_divide(num_experts: int, axis_size: int, axis_name: AxisName) -> None:
    if num_experts % axis_size:
        raise ValueError(
            f"E = {num_experts} experts do not divide over the {axis_size} ranks of axis "
            f"{axis_name!r}: each rank owns E / R experts. Use a mesh axis whose size divides E."
        )


# --- tokens -------------------------------------------------------------------------------------


def check_tokens(
    x: Any,
    topk_idx: Any,
    topk_weights: Any,
    hidden: int,
    num_slots: int | None = None,
    names: TokenNames = FUNCTION_NAMES,
) -> None:
    """Checks dtypes, then shapes, of x [..., H], topk_idx [..., K] and topk_weights [..., K]."""
    named = tuple(zip(names, (x, topk_idx, topk_weights), strict=True))
    for name, value in named:
        check_array(name, value)
    check_token_dtypes(x.dtype, topk_idx.dtype, topk_weights.dtype, names)
    for name, value in named:
        if len(value.shape) < 2:
            raise ValueError(
                f"{name} has shape {value.shape}; at least two axes are accepted: tokens, then "
                f"{'H' if name == names.x else 'K'}."
            )
    if x.shape[-1] != hidden:
        raise ValueError(
            f"{names.x} has H = {x.shape[-1]} channels (shape {x.shape}), but the weights have "
            f"H = {hidden}; equal ones are accepted."
        )
    if topk_idx.shape != topk_weights.shape:
        raise ValueError(
            f"{names.topk_idx} has shape {topk_idx.shape} and {names.topk_weights} has shape "
            f"{topk_weights.shape}; they must be equal: [T, K]."
        )
    if topk_idx.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"{names.topk_idx} has tokens {topk_idx.shape[:-1]} (shape {topk_idx.shape}), but "
            f"{names.x} has tokens {x.shape[:-1]} (shape {x.shape}); one row of slots for each "
            "token is accepted."
        )
    slots = topk_idx.shape[-1]
    if not 1 <= slots <= MAX_SLOTS:
        raise ValueError(
            f"{names.topk_idx} has K = {slots} slots a token (shape {topk_idx.shape}); from 1 to "
            f"{MAX_SLOTS} are accepted."
        )
    if num_slots is not None and slots != num_slots:
        raise ValueError(
            f"{names.topk_idx} has K = {slots} slots a token (shape {topk_idx.shape}), but the "
            f"layer's config has num_experts_per_tok = {num_slots}."
        )


def check_array(name: str, value: Any) -> None:
    """Refuses what is no array, such as lists, None and another framework's tensors."""
    if not isinstance(getattr(value, "dtype", None), np.dtype) or not hasattr(value, "shape"):
        raise TypeError(
            f"{name} is {a_type(value)}; a JAX or NumPy array is accepted: "
            + (
                "give one."
                if value is None
                else f"convert it with jnp.asarray({name}), a torch tensor with "
                f"jnp.from_dlpack({name})."
            )
        )


def check_token_dtypes(
    x: Any, topk_idx: Any, topk_weights: Any, names: TokenNames = FUNCTION_NAMES
) -> None:
    if np.dtype(x) != jnp.bfloat16:
        raise TypeError(
            f"{names.x} has dtype {np.dtype(x)}; bfloat16 is accepted: cast it with "
            f"{names.x}.astype(jnp.bfloat16)."
        )
    if np.dtype(topk_idx) not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise TypeError(
            f"{names.topk_idx} has dtype {np.dtype(topk_idx)}; int32 and int64 are accepted: cast "
            f"it with {names.topk_idx}.astype(jnp.int32)."
        )
    accepted = [np.dtype(t) for t in (np.float32, jnp.bfloat16, np.float16)]
    if np.dtype(topk_weights) not in accepted:
        raise TypeError(
            f"{names.topk_weights} has dtype {np.dtype(topk_weights)}; float32, bfloat16 and "
            f"float16 are accepted: cast it with {names.topk_weights}.astype(jnp.float32)."
        )


# --- modules ------------------------------------------------------------------------------------


def check_fits_config(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Refuses weights of other sizes than a layer's config gives."""
    if found != expected:
        raise ValueError(
            f"{name} is {found}, but the layer's config gives {expected}. Make the MegaMoeConfig "
            "from the checkpoint's own sizes."
        )


def check_bias_given(name: str, given: bool, use_bias: bool) -> None:
    """Refuses biases that a layer's config does not have, and their absence where it has."""
    if given != use_bias:
        found = "given" if given else "missing"
        raise ValueError(
            f"{name} is {found}, but the layer's config has use_bias={use_bias}. Set "
            f"use_bias={given}, or {'leave the bias out' if given else 'give the bias'}."
        )


def check_dense(name: str, dtype: Any) -> None:
    """Refuses experts to be quantised that are not floating point."""
    if not jnp.issubdtype(dtype, jnp.floating) or np.dtype(dtype).itemsize < 2:
        raise TypeError(
            f"{name} has dtype {np.dtype(dtype)}; float32, bfloat16 and float16 are accepted. "
            "Experts that are quantised already go in as weights=ExpertWeights(...)."
        )


def check_prepare_target(asked: str | None, made_for: str | None) -> None:
    """Refuses to prepare a module for another implementation than it was made for."""
    if asked is not None and made_for is not None and asked != made_for:
        raise ValueError(
            f"implementation is {asked!r}, but this MegaMoe was made with "
            f"implementation={made_for!r}, which could not run weights prepared for another. "
            "Leave one of the two None."
        )


def check_capacity(max_tokens_per_rank: int) -> None:
    check_integer("max_tokens_per_rank", max_tokens_per_rank)
    if max_tokens_per_rank < 1:
        raise ValueError(f"max_tokens_per_rank is {max_tokens_per_rank}; at least 1 is accepted.")


def check_weights_named(missing: list[str], held: Iterable[str]) -> None:
    """Refuses a module that lacks some of its weight arrays."""
    if missing:
        raise ValueError(
            f"the module has no {', '.join(missing)} (its weights are {sorted(held)}). Give it all "
            "arrays of one form: those of ExpertWeights, or those that prepare() makes."
        )


def check_held_array(name: str, value: Any) -> None:
    """Refuses a module's weight that is no array, as after an update with a deeper tree."""
    if not isinstance(getattr(value, "dtype", None), np.dtype):
        raise TypeError(
            f"{name} holds {a_type(value)}; an array is accepted. A checkpoint restored "
            "without a target is a tree with one level more than the module: restore with "
            "nnx.state(module) as the target."
        )


def check_one_form(forms: Sequence[object]) -> None:
    """Refuses a module whose weights come in two forms."""
    if len(forms) > 1:
        raise ValueError(
            f"the module holds both {forms[0]} and {forms[1]}; exactly one form is accepted. "
            "Construct a new module and restore only one of them."
        )


def check_restored_form(held: object, found: object, way_out: str, where: str = "") -> None:
    """Refuses to fill a module's weights from those of another form."""
    if held != found:
        at = f" (at {where})" if where else ""
        raise ValueError(f"the state holds {found}, but the module holds {held}{at}. {way_out}.")


def check_collection(name: str, variables: Any) -> None:
    """Refuses Linen variables without the collection of the weights."""
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"variables is {a_type(variables)}; a mapping is accepted: all that moe.init returns."
        )
    if name not in variables:
        raise ValueError(
            f"variables has the collections {list(variables)}, but no {name!r}, which holds the "
            "weights of Mega MoE. Pass all that moe.init returns, or "
            f"{{{name!r}: {{layer name: jax_megamoe.linen.collection(weights)}}}}."
        )


def check_devices_here(missing: list[int], wanted: int, platform: str, here: int) -> None:
    """Refuses to unpickle a mesh whose devices this process does not have."""
    if missing:
        raise ValueError(
            f"the pickled module's mesh has {wanted} {platform} devices, of which id {missing[0]} "
            f"is not among the {here} of this process. Pickle a module made with mesh=None, which "
            "takes the mesh in context, or save its state with Orbax."
        )


def check_weights_or_rngs(weights: Any, rngs: Any) -> None:
    if weights is None and rngs is None:
        raise ValueError(
            "neither weights nor rngs was given; pass weights=ExpertWeights(...), or "
            "rngs=nnx.Rngs(seed) for random weights."
        )
    if rngs is not None and not hasattr(rngs, "params"):
        raise TypeError(
            f"rngs has type {type(rngs).__name__}; an nnx.Rngs is accepted: rngs=nnx.Rngs(0)."
        )


def check_config(config: Any, config_type: type[Any]) -> None:
    if not isinstance(config, config_type):
        raise TypeError(
            f"config has type {type(config).__name__}; a MegaMoeConfig is accepted: "
            "MegaMoeConfig(num_experts, hidden_size, intermediate_size, num_experts_per_tok)."
        )


# --- activation, transforms ---------------------------------------------------------------------


def check_activation_name(name: str) -> None:
    if name not in ("swiglu", "silu", "swish"):
        raise NotImplementedError(
            f"the activation {name!r} is not supported. Supported is the three-parameter SwiGLU, "
            "gate * sigmoid(swiglu_alpha * gate) * (up + swiglu_beta) with both clamped by "
            "swiglu_limit (DeepSeek-V4, gpt-oss); another activation is never run as plain "
            "SwiGLU."
        )


def check_swiglu(limit: float | None, alpha: float, beta: float) -> None:
    for name, value in (("swiglu_alpha", alpha), ("swiglu_beta", beta), ("swiglu_limit", limit)):
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{name} is a traced array ({value}); a Python number is accepted, since it is "
                "compiled into the call. Mark it static in jax.jit."
            )
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not number:
            raise TypeError(
                f"{name} is {a_type(value)}; a Python number is accepted"
                f"{' or None' if name == 'swiglu_limit' else ''}."
            )
    if limit is not None and (math.isnan(limit) or limit < 0):
        raise ValueError(
            f"swiglu_limit is {limit}; a number >= 0, inf or None (no limit) is accepted."
        )
    largest = float(np.finfo(np.float32).max)
    for name, value in (("swiglu_alpha", alpha), ("swiglu_beta", beta)):
        if value is None or not abs(value) <= largest:
            raise ValueError(f"{name} is {value}; a finite float32 number is accepted.")


DIFFERENTIATION_MESSAGE = (
    "Mega MoE is inference only: it has no derivative (its weights are FP4 and every step "
    "rounds). Put jax.lax.stop_gradient around its inputs to differentiate the rest of the "
    "model, or train with a bfloat16 mixture of experts."
)

VMAP_OVER_WEIGHTS_MESSAGE = (
    "jax.vmap over the expert weights of Mega MoE is not supported; over tokens, their expert ids "
    "and routing weights it is. Fold the batch of weights into the expert axis instead: "
    "concatenate the experts and offset the ids (topk_idx; top_k_index of MegaMoe)."
)


def _check_rank(name: str, array: Any, rank: int) -> None:
    if len(array.shape) != rank:
        raise ValueError(
            f"{name} has {len(array.shape)} axes (shape {array.shape}); {rank} are accepted."
        )


def _check_shape(name: str, array: Any, expected: tuple[int, ...], reason: str) -> None:
    if tuple(array.shape) != expected:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}, but {expected} is needed: {reason}."
        )

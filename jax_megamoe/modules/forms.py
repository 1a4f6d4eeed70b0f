"""The two forms in which a module holds its experts, told apart by its arrays' names alone.

Checkpoint form: the names of `ExpertWeights`. Prepared form: those names with the
implementation and its layout version appended, `gate_up_proj_cpu_v1`. The names are what makes
restoring into another layout fail by structure, in every tool that compares structures; the
functions here say the same in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax

from jax_megamoe import validation
from jax_megamoe.weights import FIELDS, ExpertWeights, PreparedWeights

_NAME = re.compile(rf"({'|'.join(FIELDS)})(?:_([a-z0-9]+)_v(\d+))?")


class Form(NamedTuple):
    """What weights are prepared for; both None in checkpoint form."""

    implementation: str | None = None
    version: int | None = None

    @property
    def suffix(self) -> str:
        return "" if self.implementation is None else f"_{self.implementation}_v{self.version}"

    def __str__(self) -> str:
        if self.implementation is None:
            return "weights in the checkpoint layout"
        return f"weights prepared for {self.implementation!r} in layout version {self.version}"


def named_arrays(weights: ExpertWeights | PreparedWeights) -> dict[str, Any]:
    """The arrays of the weights under the names of their form; an absent bias has no name."""
    form = Form()
    if isinstance(weights, PreparedWeights):
        form = Form(weights.implementation, weights.layout_version)
    arrays = {name: getattr(weights, name) for name in FIELDS}
    return {name + form.suffix: array for name, array in arrays.items() if array is not None}


def weights_of(
    arrays: Mapping[str, Any], sizes: tuple[int, int]
) -> ExpertWeights | PreparedWeights:
    """The weights whose arrays a module holds: the inverse of `named_arrays`; sizes are (H, I).

    Raises:
      ValueError: arrays of two forms, or not all of one.
      TypeError: something that is not an array.
    """
    form = form_of(arrays)
    required = [name + form.suffix for name in FIELDS if not name.endswith("_bias")]
    validation.check_weights_named([name for name in required if name not in arrays], arrays)
    for name, array in arrays.items():
        validation.check_held_array(name, array)
    fields = {name: arrays.get(name + form.suffix) for name in FIELDS}
    if form.implementation is None or form.version is None:
        return ExpertWeights(**fields)
    return PreparedWeights(
        **fields,
        implementation=form.implementation,
        layout_version=form.version,
        hidden_size=sizes[0],
        intermediate_size=sizes[1],
    )


def is_weight_name(name: str) -> bool:
    """Whether an array of this name belongs to the weights of some form."""
    return _NAME.fullmatch(name) is not None


def form_of(names: Iterable[str]) -> Form:
    """The one form of some weight names (ValueError: two); checkpoint form if none is given."""
    forms = sorted({_form_of_name(name) for name in names}, key=str)
    validation.check_one_form(forms)
    return forms[0] if forms else Form()


def check_name_fits(name: str, held: Iterable[str]) -> None:
    """Refuses to add a weight array of another form to those held."""
    held = list(held)
    if held:
        _check_same_form(form_of(held), _form_of_name(name))


def check_restore(target: Any, found: Any) -> None:
    """Refuses, in words, a checkpoint that holds expert weights in another form than the target.

    Orbax refuses it too, by listing paths; call this first for the reason and the way out.

    Args:
      target: what is to be filled: `nnx.state(model)`, or Linen variables.
      found: what there is: the tree of the checkpoint's metadata, e.g.
        `StandardCheckpointer().metadata(path).item_metadata.tree`, or a restored tree.

    Raises:
      ValueError: at some path both hold expert weights, in different forms.
    """
    found_forms = _forms_by_path(found)
    for path, form in _forms_by_path(target).items():
        _check_same_form(form, found_forms.get(path, form), path)


def _form_of_name(name: str) -> Form:
    match = _NAME.fullmatch(name)
    assert match is not None, name
    implementation, version = match.group(2), match.group(3)
    return Form() if implementation is None else Form(implementation, int(version))


def _forms_by_path(tree: Any) -> dict[str, Form]:
    names: dict[str, set[str]] = {}
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        parts = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
        for depth, part in enumerate(parts):
            if is_weight_name(part):
                names.setdefault("/".join(parts[:depth]), set()).add(part)
    return {path: form_of(held) for path, held in names.items()}


def _check_same_form(held: Form, found: Form, where: str = "") -> None:
    if found.implementation is None:
        way_out = "Restore before prepare(), then call prepare()"
    elif held.implementation == found.implementation:
        way_out = (
            "Prepare again from the original checkpoint, or load this one with the release that "
            "made it and save the module's expert_weights()"
        )
    else:
        way_out = (
            f"Restore into a module that has called prepare({found.implementation!r}); its "
            "expert_weights() are the checkpoint layout"
        )
    validation.check_restored_form(held, found, way_out, where)

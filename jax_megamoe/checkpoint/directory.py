"""A checkpoint as a set of named tensors, wherever its files put them.

It decides which files belong to the checkpoint; what the tensors mean is `recognise.py`'s business.
Files are opened when a tensor of theirs is first wanted, since a process of many needs only the
shards of its own experts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from jax_megamoe.checkpoint.safetensors_file import SafetensorsFile, TensorInfo

INDEX = "model.safetensors.index.json"
_PAGES_KEPT = (
    64 << 20
)  # bytes read before mappings are let go: their pages count as this process's memory


class Checkpoint:
    """The tensors of a Hugging Face directory, or of a single safetensors file, by name.

    Args:
      path: a directory with `model.safetensors.index.json` and its shards, or with one .safetensors
        file; or the path of the index or of a file.

    Attributes:
      config: the content of the config.json beside the tensors; None if there is none.

    Raises:
      ValueError: no checkpoint there, or a damaged one.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self._files: dict[str, SafetensorsFile] = {}
        self._mapped = 0
        self.source = _find(path)
        self.directory = self.source.parent
        if self.source.name.endswith(".json"):
            self._file_of = _read_index(self.source)
        else:
            self._file_of = dict.fromkeys(self._file(self.source.name).tensors, self.source.name)
        config = self.directory / "config.json"
        self.config = _read_json(config) if config.exists() else None

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor, or, for an unknown name, the one that should list it."""
        return self.directory / self._file_of[name] if name in self._file_of else self.source

    def info(self, name: str) -> TensorInfo:
        """Type and shape of a tensor.

        Raises:
          ValueError: its file is missing, damaged, or does not hold it.
        """
        if name not in self._file_of:
            raise ValueError(f"{self.source} has no tensor {name}.")
        file_name = self._file_of[name]
        if not (self.directory / file_name).exists():
            raise ValueError(
                f"{self.directory / file_name} is missing; it should hold the tensor {name}, by "
                f"{self.source}. Download this file too."
            )
        file = self._file(file_name)
        if name not in file.tensors:
            raise ValueError(
                f"{file.path} does not hold the tensor {name}, which {self.source} says it does. "
                "Index and files are of different checkpoints: download them again."
            )
        return file.tensors[name]

    def read(self, name: str, expert: int | None = None) -> np.ndarray:
        """A tensor, or of a tensor [E, ...] the part of one expert; F4 comes as bytes, int8 [...,
        K/2].
        """
        self.info(name)
        array = self._file(self._file_of[name]).read(name, expert)
        self._mapped += array.nbytes
        if self._mapped > _PAGES_KEPT:
            self._unmap()
        return array

    def close(self) -> None:
        """Lets go of all files."""
        self._unmap()
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unmap(self) -> None:
        for file in self._files.values():
            file.unmap()
        self._mapped = 0

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            self._files[name] = SafetensorsFile(self.directory / name)
        return self._files[name]


def _find(path: Path) -> Path:
    if not path.exists():
        raise ValueError(
            f"path is {path}, and nothing is there; a checkpoint directory or a .safetensors file "
            "is accepted. Models are downloaded by huggingface_hub.snapshot_download, which "
            "returns such a directory."
        )
    if path.is_file():
        if path.name.endswith((".safetensors", ".index.json")):
            return path
        raise ValueError(
            f"path is {path}; a .safetensors file, a .safetensors.index.json or a directory is "
            "accepted. Other formats (.bin, .pt, .gguf) have to be converted to safetensors "
            "first."
        )
    files = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    whole = path / "model.safetensors"
    if index.exists() and whole.exists():
        raise ValueError(
            f"{path} holds both {INDEX} and model.safetensors, two checkpoints. Pass the path of "
            "one of them."
        )
    if index.exists():
        return index
    if len(files) == 1:
        return files[0]
    found = (
        f"{len(files)} .safetensors files without it" if files else "no .safetensors file at all"
    )
    raise ValueError(
        f"{path} has no {INDEX}, and {found}. Accepted is the index with its shards, or exactly "
        "one file; download the index too, or pass the path of one file."
    )


def _read_index(path: Path) -> dict[str, str]:
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(
            f'{path} has no "weight_map" from tensors to files, so it is not the index of a '
            "checkpoint. Download it again."
        )
    for name, file in weight_map.items():
        if (
            not isinstance(file, str)
            or Path(file).name != file
            or not file.endswith(".safetensors")
        ):
            raise ValueError(
                f"{path} puts the tensor {name} into {file!r}; the name of a .safetensors file in "
                "the same directory is accepted."
            )
    return weight_map


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; an object is accepted.")
    return content

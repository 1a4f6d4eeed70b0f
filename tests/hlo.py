"""Reads the collectives out of a compiled program's HLO text: what they move, and between whom.

XLA writes groups of devices in four ways; `test_expert_parallel.py` tests all of them.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

_COLLECTIVE = re.compile(r"= (.*?) ((?:all|reduce|collective)-[a-z-]+?)(?:-start)?\(")
_BITS = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Collective:
    name: str
    bytes: int  # of the result on one device
    groups: list[list[int]]  # device numbers; a permutation's pairs are groups too

    def spans(self, axis: str, mesh: dict[str, int]) -> bool:
        """Whether some group holds devices of different coordinates along an axis of the mesh."""
        place = list(mesh).index(axis)
        coordinates = np.unravel_index(np.arange(math.prod(mesh.values())), tuple(mesh.values()))
        return any(len(set(coordinates[place][group])) > 1 for group in self.groups)


def collectives(hlo: str) -> list[Collective]:
    found = []
    for line in hlo.splitlines():
        match = _COLLECTIVE.search(line)
        if match and "-done(" not in line:
            found.append(Collective(match[2], _bytes(match[1]), _groups(line)))
    return found


def _bytes(shapes: str) -> int:
    total = 0
    for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        bits = 8 if dtype == "pred" else int(_BITS.search(dtype)[0])  # type: ignore[index]
        total += bits * math.prod(int(n) for n in sizes.split(",") if n) // 8
    return total


def _groups(line: str) -> list[list[int]]:
    if found := re.search(r"replica_groups=mesh\[(\S+)\] \{(.*?)\}", line):
        # All devices as a mesh, and the axes along which the groups lie.
        names, sizes = zip(*re.findall(r"('\w+')=(\d+)", found[1]), strict=True)
        shape = [int(size) for size in sizes]
        along = [names.index(axis) for axis in found[2].split(",")]
        ids = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), along, range(-len(along), 0))
        return ids.reshape(-1, math.prod(shape[place] for place in along)).tolist()
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        shape, source = ([int(n) for n in found[i].split(",")] for i in (1, 2))
        ids = np.arange(math.prod(source)).reshape(source)
        if found[3]:
            ids = ids.transpose([int(n) for n in found[3].split(",")])
        return ids.reshape(shape).tolist()
    found = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}", line)
    assert found, f"no groups of devices in: {line}"
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", found[1])]

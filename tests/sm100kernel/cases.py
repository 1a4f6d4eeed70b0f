"""Which layers the numerics tests run: the lists of values that must be met, a covering set of
layers that meets each of them and every pair (tile configuration, number of ranks), and the product
of the lists for the long form. Decides inputs only; `test_sm100_covering.py` says what must hold.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from data import Case, exact_case, random_case

TILES, RANKS = (128, 192), (1, 2, 4)
WIDTHS = (128, 160, 256, 352, 512, 768, 1024)  # H and I; 160 and 352 are odd multiples of 32
EXPERTS = (1, 2, 4, 8, 16, 32)
SLOTS = (1, 2, 3, 4, 5, 6, 7, 8, 32)
TOKENS = (0, 1, 3, 16, 17, 64, 129, 300)
ACTIVATIONS = (
    dict(),
    dict(limit=1000.3),
    dict(alpha=1.702, beta=1.0),
    dict(limit=64.3, alpha=1.702, beta=1.0),
    dict(limit=0.0),
)
ROUTINGS = ("any", "one expert", "few experts", "one rank")


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer and how it is run. `tokens` of all ranks together, unequally spread."""

    tile: int
    ranks: int
    hidden: int
    intermediate: int
    experts: int
    slots: int
    tokens: int
    activation: dict[str, float] = dataclasses.field(default_factory=dict)
    bias: bool = False
    routing: str = "any"
    row_groups: int = 1
    stages: int = 3

    def counts(self) -> list[int]:
        return shares(self.tokens, self.ranks)

    def case(self, seed: int, *, exact: bool) -> Case:
        make = exact_case if exact else random_case
        case = make(
            seed, tokens=self.tokens, hidden=self.hidden, intermediate=self.intermediate,
            experts=self.experts, slots=self.slots, bias=self.bias, **self.activation,
        )  # fmt: skip
        return dataclasses.replace(case, topk_idx=self.routed(case.topk_idx))

    def routed(self, ids: np.ndarray) -> np.ndarray:
        """Skewed as `routing` says; skipped slots stay skipped. Exact data stay exact: every
        expert's weights are exact for every token.
        """
        if self.routing == "one expert":
            to = np.full_like(ids, self.experts - 1)
        elif self.routing == "few experts":
            to = ids % max(1, self.experts // 4)
        elif self.routing == "one rank":
            local = self.experts // self.ranks
            to = ids % local + (self.ranks - 1) * local
        else:
            to = ids
        return np.where((ids >= 0) & (ids < self.experts), to, ids)

    def name(self) -> str:
        extra = "".join(f"-{k}{v:g}" for k, v in self.activation.items())
        return (
            f"n{self.tile}-R{self.ranks}-H{self.hidden}-I{self.intermediate}-E{self.experts}"
            f"-K{self.slots}-T{self.tokens}{extra}{'-bias' * self.bias}-{self.routing}"
        ).replace(" ", "_")


def shares(tokens: int, ranks: int) -> list[int]:
    """Unequal: the last rank gets what is left, a rank of four nothing."""
    counts = [tokens * (2 * r + 1) // (ranks * ranks) for r in range(ranks)]
    if ranks == 4:
        counts[1] = 0
    counts[-1] += tokens - sum(counts)
    return counts


A = ACTIVATIONS
COVERING = (
    Layer(128, 1, 128, 128, 1, 1, 1, A[0]),
    Layer(192, 1, 256, 160, 2, 2, 3, A[1], bias=True, stages=6),
    Layer(128, 2, 160, 256, 4, 3, 16, A[2], routing="one rank"),
    Layer(192, 2, 256, 256, 8, 4, 17, A[3], bias=True, row_groups=4),
    Layer(128, 4, 256, 128, 16, 5, 64, A[4], routing="few experts", row_groups=2, stages=2),
    # All that is left of these results is the second product's bias.
    Layer(192, 1, 160, 128, 1, 1, 129, A[4], bias=True, stages=2),
    Layer(192, 4, 128, 256, 32, 6, 129, A[1], bias=True, stages=2, row_groups=8),
    Layer(128, 1, 256, 256, 32, 7, 300, A[3], routing="one expert", stages=8),
    Layer(192, 1, 128, 160, 16, 8, 300, A[2], bias=True, routing="few experts"),
    Layer(128, 2, 128, 128, 4, 32, 17, A[0], bias=True, routing="one expert"),
    Layer(192, 4, 160, 128, 4, 32, 64, A[4], routing="one rank"),
    Layer(192, 2, 256, 256, 2, 1, 0),
    Layer(128, 4, 256, 160, 8, 2, 3, A[2], bias=True),
)
# The only ones wider than 256.
LARGER = {
    "wide hidden": Layer(128, 2, 1024, 512, 4, 2, 64, A[1], bias=True, stages=8),
    "wide intermediate": Layer(192, 1, 512, 1024, 4, 3, 129, A[3], bias=True, stages=6),
    "odd multiples of 32": Layer(192, 2, 352, 352, 8, 4, 129, A[2], routing="few experts"),
    "seven and a half tiles": Layer(128, 1, 768, 768, 2, 1, 300, A[0], routing="one expert"),
}


def product() -> Iterator[Layer]:
    """The product of tiles, ranks, tokens, slots, experts and widths up to 256; the remaining lists
    take turns, so that each of their values meets every value of the others.
    """
    number = 0
    for tile, ranks, tokens, slots, experts in itertools.product(
        TILES, RANKS, TOKENS, SLOTS, EXPERTS
    ):
        if experts % ranks:
            continue
        number += 1
        widths = [w for w in WIDTHS if w <= 256]
        yield Layer(
            tile, ranks, widths[number % 3], widths[number // 3 % 3], experts, slots, tokens,
            ACTIVATIONS[number % len(ACTIVATIONS)], bias=number // 2 % 2 == 1,
            routing=ROUTINGS[number // 5 % 4], row_groups=(1, 2, 8)[number // 7 % 3],
            stages=(2, 3, 6)[number // 11 % 3],
        )  # fmt: skip

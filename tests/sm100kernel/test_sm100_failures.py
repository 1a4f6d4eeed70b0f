"""Bounded waits: a peer that never comes, one that comes late, one that enqueued another call. The
first failure is reported, poisons every rank, and no result of such a call looks like a number.
"""

from __future__ import annotations

from typing import Any

import changed
import numpy as np
import pytest
from harness import Ranks, ptx, split
from numerics import activation, assert_same_bits, bits

from data import Case, exact_case

pytestmark = pytest.mark.sm100

KINDS = {1: "metadata", 2: "rows", 3: "lists", 4: "tiles", 5: "ring", 6: "done", 7: "mismatch"}
SHORT = 3_000_000


def layer() -> Case:
    return exact_case(31, tokens=12, hidden=128, intermediate=128, experts=4, slots=2)


def ranks_of(case: Case, **keywords: Any) -> Ranks:
    return Ranks(
        case.weights, ranks=2, slots=2, max_tokens=8, rules="strict", timeout=SHORT, **keywords
    )


def arrays_of(case: Case) -> list[list[np.ndarray]]:
    return [split(a, [5, 7]) for a in (case.x, case.topk_idx, case.topk_weights)]


def failure(ranks: Ranks, r: int) -> dict[str, Any]:
    """The poison word of rank r, decoded; {} while it is alive."""
    at = ranks.workspaces[r].address + ranks.layout["poison"]
    word = int.from_bytes(ranks.sim.machine.read(at, 8), "little")
    if word == 0:
        return {}
    kind, rank, peer, group = word.to_bytes(8, "little")[:4]
    return dict(kind=KINDS[kind], rank=rank, peer=peer, group=group, epoch=word >> 32)


def reported(ranks: Ranks, r: int) -> int:
    return int(ranks.reports[r].get()[0])


def assert_waited_for(found: dict[str, Any], *, rank: int, peer: int, epoch: int) -> None:
    """Simulated time jumps while nobody moves, so that either the wait for the peer's metadata or
    the one for this rank's own lists, which has twice the limit, looks at the clock first.
    """
    first = dict(kind="metadata", peer=peer) if found["kind"] == "metadata" else dict(kind="lists")
    assert found == {**found, **first, "rank": rank, "epoch": epoch}


def all_nan(y: np.ndarray) -> bool:
    return bool(((bits(y) & 0x7FFF) > 0x7F80).all())


@pytest.mark.parametrize("policy", ["random", "latest"])
def test_a_peer_that_never_comes_is_named_and_the_result_is_nan(policy: str) -> None:
    case = layer()
    ranks = ranks_of(case, policy=policy)
    x, idx, routing = arrays_of(case)
    launch, y = ranks.start(0, x[0], idx[0], routing[0], **activation(case))
    ranks.sim.run(launch)
    assert_waited_for(failure(ranks, 0), rank=0, peer=1, epoch=1)
    assert reported(ranks, 0) != 0 and reported(ranks, 1) == 0, "the failing rank reports"
    assert failure(ranks, 1) == failure(ranks, 0), "the peer is poisoned"
    assert all_nan(y.get())
    # Nothing of it was ever stored in the peer's slots, and the call does not count as completed.
    for r in range(2):
        at = ranks.workspaces[r].address
        assert ranks.sim.machine.read(at + ranks.layout["epoch"], 4) == bytes(4)
        slots = ranks.layout["ring"] - ranks.layout["slots"]
        assert not any(ranks.sim.machine.read(at + ranks.layout["slots"], slots))


def test_a_late_peer_finds_its_workspace_poisoned_and_ends() -> None:
    case = layer()
    ranks = ranks_of(case)
    x, idx, routing = arrays_of(case)
    for r in range(2):  # one after the other: the second starts when the first has given up
        launch, y = ranks.start(r, x[r], idx[r], routing[r], **activation(case))
        ranks.sim.run(launch)
        assert all_nan(y.get()), r
    assert failure(ranks, 1)["rank"] == 0, "the first failure stays on record"
    assert reported(ranks, 0) == reported(ranks, 1) != 0, "both hosts learn it"


def test_a_dead_rank_sends_nothing_and_the_flags_of_its_failed_call_count_for_nothing() -> None:
    """The call's number has not advanced: all flags of the failed call would fit the next one."""
    case = layer()
    ranks = ranks_of(case)
    arrays = arrays_of(case)
    for _ in range(2):  # all flags are up, as after a call whose last wait failed
        ranks(*arrays, **activation(case))
    lay = ranks.layout
    for r in range(2):
        at = ranks.workspaces[r].address
        ranks.sim.machine.write(at + lay["epoch"], (1).to_bytes(4, "little"))
    dead = ranks.workspaces[0].address
    ranks.sim.machine.write(dead + lay["poison"], (6 | 1 << 16 | 2 << 32).to_bytes(8, "little"))
    peer = ranks.workspaces[1].address
    before = ranks.sim.machine.read(peer, lay["bytes"])
    other = exact_case(32, tokens=5, hidden=128, intermediate=128, experts=4, slots=2)
    launch, y = ranks.start(0, other.x, other.topk_idx, other.topk_weights, **activation(case))
    ranks.sim.run(launch)
    assert all_nan(y.get())
    assert ranks.sim.machine.read(peer, lay["bytes"]) == before, "the peer's memory is untouched"
    assert reported(ranks, 0) == 6 | 1 << 16 | 2 << 32


def test_a_peer_that_comes_within_the_limit_changes_nothing() -> None:
    case = layer()
    ranks = ranks_of(case, policy="latest")
    y = ranks(*arrays_of(case), **activation(case))
    assert_same_bits(np.concatenate(y), case.oracle())
    assert failure(ranks, 0) == failure(ranks, 1) == {}


LATE = {  # where rank 1 is slow
    "at its start": ("kernel.cu", "  set_up(c);\n"),
    "with its expert ids": ("dispatch.cuh", "  dispatch_metadata(c);\n"),
    "with its rows": ("dispatch.cuh", "  dispatch_rows(c);\n"),
    "with a row group": ("dispatch.cuh", "    arrive_and_raise(c, c.at<uint32_t>(p.layout.row_arr"),
    "with its lists": ("build_lists.cuh", "  uint32_t turn = 0;\n"),
    "at its end": ("kernel.cu", "  if (c.warp >= kFirstCombineWarp)"),
}


def slow(where: str, ns: int) -> list[str]:
    condition = "group == 1" if where == "with a row group" else "true"
    return [ptx(), changed.program(changed.delay(*LATE[where], condition, ns))]


@pytest.mark.parametrize("where", LATE)
def test_a_slow_peer_costs_time_and_nothing_else(where: str) -> None:
    case = exact_case(33, tokens=12, hidden=128, intermediate=128, experts=8, slots=2, bias=True)
    for seed, policy in enumerate(("random", "latest")):
        ranks = Ranks(
            case.weights, ranks=2, slots=2, max_tokens=8, rules="strict", races=True,
            program=slow(where, 500_000),
            policy=policy, seed=seed, lag=1, ring_units=2,
        )  # fmt: skip
        for _ in range(2):
            y = ranks(*arrays_of(case), row_groups=2, **activation(case))
            assert_same_bits(np.concatenate(y), case.oracle())


@pytest.mark.parametrize("where", LATE)
def test_a_peer_slower_than_the_limit_is_reported_and_no_number_is_wrong(where: str) -> None:
    case = exact_case(33, tokens=12, hidden=128, intermediate=128, experts=8, slots=2, bias=True)
    want = split(case.oracle(), [5, 7])
    ranks = Ranks(
        case.weights, ranks=2, slots=2, max_tokens=8, rules="strict", timeout=100_000,
        program=slow(where, 100_000_000),
    )  # fmt: skip
    for r, y in enumerate(ranks(*arrays_of(case), row_groups=2, **activation(case))):
        rows = np.isnan(y.astype(np.float32)).any(1)
        assert_same_bits(y[~rows], want[r][~rows])
    assert failure(ranks, 0)


def test_a_peer_that_enqueued_another_call_is_reported_and_never_combined() -> None:
    case = layer()
    ranks = ranks_of(case)
    x, idx, routing = arrays_of(case)
    started = [
        ranks.start(r, x[r], idx[r], routing[r], call_site=10 + r, **activation(case))
        for r in range(2)
    ]
    ranks.sim.run(*(launch for launch, _ in started))
    assert all(all_nan(y.get()) for _, y in started)
    kinds = {failure(ranks, r)["kind"] for r in range(2)}
    assert kinds == {"mismatch"}


@pytest.mark.parametrize("call", [2, 3])
def test_a_peer_that_stops_after_some_calls_is_noticed(call: int) -> None:
    case = layer()
    ranks = ranks_of(case)
    for _ in range(call - 1):
        assert_same_bits(np.concatenate(ranks(*arrays_of(case), **activation(case))), case.oracle())
    x, idx, routing = arrays_of(case)
    launch, y = ranks.start(1, x[1], idx[1], routing[1], **activation(case))
    ranks.sim.run(launch)
    assert all_nan(y.get())
    assert_waited_for(failure(ranks, 1), rank=1, peer=0, epoch=call)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1_000, 4_000, 10_000, 20_000, 40_000])
def test_waits_that_give_up_too_early_never_give_a_wrong_number(limit: int, seed: int) -> None:
    """Any wait may time out at any moment: a rank that ends without a failure has right numbers."""
    case = layer()
    ranks = ranks_of(case, seed=seed, policy="random", sms=6, lag=1, ring_units=2, stages=2)
    ranks.timeout = limit
    want = split(case.oracle(), [5, 7])
    for _ in range(3):
        results = ranks(*arrays_of(case), **activation(case))
        for r, y in enumerate(results):
            rows = np.isnan(y.astype(np.float32)).any(1)
            assert_same_bits(y[~rows], want[r][~rows])
            assert failure(ranks, r) or not rows.any()
        if failure(ranks, 0) or failure(ranks, 1):
            return

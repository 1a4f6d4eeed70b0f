"""Mistakes planted in the kernel's source, one synchronisation point each: (name, file, text, text
instead), with delays where a mistake shows only when somebody is slow. A mistake counts as caught
when, within a few seeds, the simulator reports an error or a result differs from the oracle.
`test_sm100_planted.py` runs them.
"""

from __future__ import annotations

import dataclasses

import changed
from changed import Change


@dataclasses.dataclass(frozen=True)
class Mistake:
    name: str
    file: str
    text: str
    instead: str
    delays: tuple[Change, ...] = ()

    def program(self) -> str:
        return changed.program(Change(self.file, self.text, self.instead), *self.delays)


PLANTED = [
    # --- dispatch
    Mistake(
        "dispatch warps do not wait for each other before they arrive",
        "dispatch.cuh",
        "  ptx::named_barrier(kBarDispatch, 32 * kDispatchWarps);\n",
        "",
    ),
    Mistake(
        "arrivals are relaxed",
        "ptx.cuh",
        "atom.acq_rel.gpu.global.inc",
        "atom.relaxed.gpu.global.inc",
    ),
    Mistake(
        "every CTA raises the flags",
        "dispatch.cuh",
        "if (participants > 1 && c.lane == 0)",
        "if (false)",
    ),
    Mistake(
        "no system fence before the flags",
        "dispatch.cuh",
        "  ptx::fence_system();\n",
        "",
    ),
    Mistake(
        "one counter for all row groups",
        "dispatch.cuh",
        "p.layout.row_arr + group * kLine",
        "p.layout.row_arr",
    ),
    Mistake(
        "a row goes to its first rank only",
        "dispatch.cuh",
        "c.lane == __ffs(same) - 1",
        "c.lane == 0",
    ),
    # --- lists
    Mistake(
        "no wait for metadata",
        "build_lists.cuh",
        "sum_warps(c, wait_metadata(c) ? 0 : 1, turn++).all != 0",
        "false",
    ),
    Mistake(
        "metadata of another call is taken",
        "build_lists.cuh",
        "return flag_epoch(word) == c.epoch;",
        "return flag_epoch(word) >= c.epoch;",
    ),
    Mistake(
        "warp sums without a barrier",
        "build_lists.cuh",
        "ptx::store_shared(scratch + 4 * (c.warp - kFirstBuilderWarp), value);\n"
        "  ptx::named_barrier(kBarEpilogues, kBuilders);\n",
        "ptx::store_shared(scratch + 4 * (c.warp - kFirstBuilderWarp), value);\n",
    ),
    Mistake("one scratch row for all sums", "build_lists.cuh", "32 * (turn & 1)", "0 * (turn & 1)"),
    Mistake(
        "the list's base is read before it is written",
        "build_lists.cuh",
        "  ptx::named_barrier(kBarEpilogues, kBuilders);\n  const uint32_t base",
        "  const uint32_t base",
    ),
    Mistake(
        "the tag before the entries",
        "build_lists.cuh",
        "  ptx::named_barrier(kBarEpilogues, kBuilders);\n  if (thread == 0) {\n    c.at<uint32_t>",
        "  if (thread == 0) {\n    c.at<uint32_t>",
        delays=(changed.LATER_BUILDERS_WRITE_LATE,),
    ),
    Mistake(
        "the tag is no release", "ptx.cuh", "st.release.gpu.global.u64", "st.relaxed.gpu.global.u64"
    ),
    Mistake("tile counters are never cleared", "build_lists.cuh", "    count[i] = 0;\n", ""),
    Mistake("ring counters are never cleared", "build_lists.cuh", "    read[i] = 0;\n", ""),
    Mistake(
        "this call's counters are cleared",
        "build_lists.cuh",
        "next = c.parity() ^ 1",
        "next = c.parity()",
    ),
    # --- schedule
    Mistake(
        "the schedule does not wait for the lists",
        "schedule_role.cuh",
        "x < c.p.local_experts && ok; x += 32) {\n    ok =",
        "x < 0; x += 32) {\n    ok =",
    ),
    Mistake(
        "tags are read without acquire",
        "ptx.cuh",
        "ld.acquire.gpu.global.u64",
        "ld.relaxed.gpu.global.u64",
    ),
    Mistake(
        "epilogues do not wait for the schedule",
        "kernel.cu",
        "    build_lists_role(c);\n    wait_schedule(c);\n",
        "    build_lists_role(c);\n",
    ),
    Mistake(
        "only the leader learns the schedule",
        "schedule_role.cuh",
        "if (c.lane < 2) ptx::mbarrier_arrive",
        "if (c.lane < 1) ptx::mbarrier_arrive",
    ),
    # --- loaders
    Mistake(
        "gathers do not wait for the rows",
        "loaders.cuh",
        "      ready = wait_rows(c, unit.expert);\n    }\n    if (poisoned",
        "    }\n    if (poisoned",
    ),
    Mistake(
        "gathers do not wait for the first product",
        "loaders.cuh",
        "      wait_tiles(c, tasks.task.unit, tasks.first_tiles());\n"
        "    } else if (unit.expert >= ready) {\n"
        "      ready = wait_rows(c, unit.expert);\n    }\n    if (poisoned",
        "    } else if (unit.expert >= ready) {\n"
        "      ready = wait_rows(c, unit.expert);\n    }\n    if (poisoned",
    ),
    Mistake(
        "half of the first product's tiles are enough",
        "waits.cuh",
        "ptx::load_acquire_gpu(count) == 2 * tiles",
        "ptx::load_acquire_gpu(count) >= tiles",
    ),
    Mistake(
        "one row group's flag is taken for all groups",
        "waits.cuh",
        "end = min(end, row_group_end(",
        "end = max(end, row_group_end(",
    ),
    Mistake(
        "the epilogues do not wait for the rows",
        "kernel.cu",
        "if (tasks.unit.expert >= ready) ready = wait_rows(c, tasks.unit.expert);",
        "(void)ready;",
    ),
    Mistake("no proxy fence before gathers", "loaders.cuh", "    ptx::fence_async_global();", ""),
    Mistake(
        "scales do not wait for rows",
        "loaders.cuh",
        "      ready = wait_rows(c, unit.expert);\n    }\n    const uint64_t",
        "    }\n    const uint64_t",
    ),
    Mistake(
        "scales do not wait for the first product",
        "loaders.cuh",
        "      wait_tiles(c, tasks.task.unit, tasks.first_tiles());\n"
        "    } else if (unit.expert >= ready) {\n"
        "      ready = wait_rows(c, unit.expert);\n    }\n    const uint64_t",
        "    } else if (unit.expert >= ready) {\n"
        "      ready = wait_rows(c, unit.expert);\n    }\n    const uint64_t",
    ),
    Mistake(
        "no proxy fence after scale words",
        "loaders.cuh",
        "        ptx::fence_async_shared();\n",
        "",
    ),
    Mistake(
        "weights overwrite a stage in use",
        "loaders.cuh",
        "      wait_empty(c, at);\n      const uint32_t full",
        "      const uint32_t full",
    ),
    Mistake(
        "tokens overwrite a stage in use",
        "loaders.cuh",
        "      wait_empty(c, at);\n      if (c.lane == 0) arrive_full",
        "      if (c.lane == 0) arrive_full",
    ),
    Mistake(
        "scale words overwrite a stage in use",
        "loaders.cuh",
        "        wait_empty(c, at);\n        const uint32_t to",
        "        const uint32_t to",
    ),
    Mistake(
        "unpacked bytes are expected of FP4 boxes",
        "loaders.cuh",
        "2 * (kWeightBytes + kScaleBytes)",
        "2 * (2 * kWeightBytes + kScaleBytes)",
    ),
    Mistake(
        "one CTA's bytes are expected",
        "loaders.cuh",
        "2 * (kWeightBytes + kScaleBytes)",
        "(kWeightBytes + kScaleBytes)",
    ),
    Mistake(
        "the leader expects its own gathers only",
        "loaders.cuh",
        "(gathers(unit.rows, 0, odd) + gathers(unit.rows, 1, odd))",
        "gathers(unit.rows, 0, odd)",
    ),
    Mistake(
        "a stage is full one arrival too early",
        "barriers.h",
        "kFullArrivals = 8",
        "kFullArrivals = 7",
    ),
    Mistake(
        "empty stages by the wrong parity",
        "loaders.cuh",
        "8 * at.stage, at.phase ^ 1)",
        "8 * at.stage, at.phase)",
    ),
    Mistake(
        "CTAs end while commits are on their way",
        "loaders.cuh",
        "s < p.stages; ++s, at.advance",
        "s < 0; ++s, at.advance",
    ),
    Mistake(
        "row flags are read without acquire",
        "ptx.cuh",
        "ld.acquire.sys.global.u32",
        "ld.relaxed.sys.global.u32",
    ),
    Mistake(
        "tile counters are read without acquire",
        "ptx.cuh",
        "ld.acquire.gpu.global.u32",
        "ld.relaxed.gpu.global.u32",
    ),
    # --- product
    Mistake(
        "an accumulator is overwritten before it is read",
        "product.cuh",
        "    ptx::mbarrier_wait(c.word(kTmemEmpty) + 8 * accumulator, (i / 2 & 1) ^ 1);\n",
        "",
    ),
    Mistake("accumulators by the wrong parity", "product.cuh", "(i / 2 & 1) ^ 1", "(i / 2 & 1)"),
    Mistake(
        "stages are used before they are full",
        "product.cuh",
        "      ptx::mbarrier_wait(c.word(kFull) + 8 * at.stage, at.phase);\n",
        "",
    ),
    Mistake(
        "full stages by the wrong parity",
        "product.cuh",
        "kFull) + 8 * at.stage, at.phase)",
        "kFull) + 8 * at.stage, at.phase ^ 1)",
    ),
    Mistake(
        "stages are never given back",
        "product.cuh",
        "      ptx::commit_to_pair(c.word(kEmpty) + 8 * at.stage);\n",
        "",
    ),
    Mistake(
        "stages are given back to the leader only",
        "ptx.cuh",
        "static_cast<uint16_t>(3)",
        "static_cast<uint16_t>(1)",
    ),
    Mistake(
        "accumulators do not start at zero",
        "product.cuh",
        "k != 0 || g != 0);",
        "true);",
    ),
    Mistake(
        "one group's scales for all",
        "product.cuh",
        "instruction_descriptor(columns, g), sfa",
        "instruction_descriptor(columns, 0), sfa",
    ),
    Mistake(
        "the product does not fence behind the epilogues",
        "product.cuh",
        "      ptx::tmem_fence_after();  // behind",
        "      // behind",
    ),
    # --- epilogues
    Mistake(
        "epilogue 1 does not wait for the accumulator",
        "epilogue1.cuh",
        "  ptx::mbarrier_wait(c.word(kTmemFull) + 8 * e.group, phase);\n",
        "",
    ),
    Mistake(
        "epilogue 2 does not wait for the accumulator",
        "epilogue2.cuh",
        "  ptx::mbarrier_wait(c.word(kTmemFull) + 8 * e.group, phase);\n",
        "",
    ),
    Mistake(
        "epilogue 1 does not fence behind the product",
        "epilogue1.cuh",
        "8 * e.group, phase);\n  ptx::tmem_fence_after();",
        "8 * e.group, phase);",
    ),
    Mistake(
        "loads of tensor memory are not waited for",
        "ptx.cuh",
        '"tcgen05.wait::ld.sync.aligned;"',
        '""',
    ),
    Mistake(
        "an accumulator is released without a fence",
        "epilogue.cuh",
        "  ptx::tmem_fence_before();\n",
        "",
    ),
    Mistake(
        "an accumulator is released by one CTA's warps",
        "barriers.h",
        "kTmemEmptyArrivals = 8",
        "kTmemEmptyArrivals = 4",
    ),
    Mistake(
        "activations are read before they are staged",
        "epilogue1.cuh",
        "bias, gate, up);\n    e.sync();",
        "bias, gate, up);",
    ),
    Mistake("one staging buffer", "epilogue.cuh", "chunk % 2 * kChunk", "0 * kChunk"),
    Mistake(
        "the ring is overwritten before it is read",
        "epilogue1.cuh",
        "tasks.task.unit >= p.ring_units && e.lane == 0",
        "false",
    ),
    Mistake(
        "half of the second product's tiles free the ring",
        "epilogue1.cuh",
        "ptx::load_acquire_gpu(read) == 2 * tasks",
        "ptx::load_acquire_gpu(read) >= 1 * tasks",
    ),
    Mistake(
        "a tile is counted before it is stored",
        "epilogue1.cuh",
        "  e.sync();\n  if (e.thread == 0 && !poisoned(c)) ptx::add",
        "  if (e.thread == 0 && !poisoned(c)) ptx::add",
    ),
    Mistake(
        "tiles are counted without release",
        "ptx.cuh",
        "red.release.gpu.global.add",
        "red.relaxed.gpu.global.add",
    ),
    Mistake(
        "outputs are read before they are staged",
        "epilogue2.cuh",
        "bias, high);\n    e.sync();",
        "bias, high);",
    ),
    Mistake(
        "a tile's places are overwritten by the next",
        "epilogue2.cuh",
        "  e.sync();  // before the rows' places are overwritten\n",
        "",
    ),
    Mistake(
        "places are used before they are known",
        "epilogue2.cuh",
        "  e.sync();\n  const uint32_t first",
        "  const uint32_t first",
    ),
    # --- the end
    Mistake(
        "done before all roles have ended",
        "kernel.cu",
        "  __syncthreads();  // the join: all roles of this CTA have ended\n",
        "",
    ),
    Mistake("done without a system fence", "combine.cuh", "  ptx::fence_system();\n", ""),
    Mistake(
        "every CTA says done", "combine.cuh", "if (__shfl_sync(~0u, last, 0) == 0) return;", ""
    ),
    Mistake("no wait for done flags", "combine.cuh", "  wait_done(c);\n", ""),
    Mistake(
        "a rank waits for itself only",
        "combine.cuh",
        "wait_until(c, Wait::kDone, d,",
        "d == c.p.rank && wait_until(c, Wait::kDone, d,",
    ),
    Mistake(
        "the call's number stays",
        "combine.cuh",
        "if (ends_call && c.lane == 0 && !bad)",
        "if (false)",
    ),
    Mistake(
        "the pair starts without waiting for each other",
        "kernel.cu",
        "  ptx::cluster_barrier();  // the other CTA's barriers are ready, too\n",
        "",
        delays=(changed.SECOND_CTA_STARTS_LATE,),
    ),
    Mistake(
        "tensor memory is not freed",
        "kernel.cu",
        "  if (c.warp == 0) ptx::tmem_free",
        "  if (false) ptx::tmem_free",
    ),
]

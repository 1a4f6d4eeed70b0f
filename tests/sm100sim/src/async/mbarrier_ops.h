// Operations on mbarriers, for instructions and for completing tasks alike.
#pragma once

#include "machine/exec.h"

namespace sm100sim {

/// The live barrier at a byte offset of a CTA's shared memory; throws Fault when there is none or
/// the CTA has ended.
Mbarrier& live_mbarrier(Cta& cta, uint32_t offset, int lane = -1);

/// tx-count += expect, then -= complete, then `arrivals` arrivals, atomically; completes the phase
/// when both counts are zero. `drop` also lowers the expected count of later phases.
void apply(World& world, Cta& cta, uint32_t offset, int64_t expect, int64_t complete,
           int32_t arrivals, bool drop, int lane = -1);

}  // namespace sm100sim

// fence, membar and the proxy fences. Execution is one total order, so fences matter to the checks:
// proxy fences publish generic writes to asynchronous engines, the others are edges of the race
// detector.

#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"

namespace sm100sim {
namespace {

Flow fence(Exec& e, const Instr& i) {
  race_fence(e, i.order, i.scope);
  return Flow::kNext;
}
void build_fence(Build& b) {
  b.out.fn = fence;
  b.out.order = order_of(b.get("sem", "acq_rel"));
  b.out.scope = scope_of(b.get("scope"));
}
void build_membar(Build& b) {
  const std::string l = b.get("level");
  b.out.fn = fence;
  b.out.order = kSc;
  b.out.scope = l == "cta" ? kScopeCta : l == "gl" ? kScopeGpu : kScopeSys;
}

Flow proxy_fence(Exec& e, const Instr&) {
  ++e.world.event;
  for_lanes(e.mask, [&](int l) {
    e.world.proxy_fences[e.warp.uid][static_cast<size_t>(l)] = e.world.event;
  });
  return Flow::kNext;
}

Flow init_fence(Exec& e, const Instr&) {
  // Publishes mbarrier.init to the cluster when followed by a (relaxed) cluster arrive.
  e.warp.init_fenced |= e.mask;
  race_fence(e, kRelease, kScopeCluster);
  return Flow::kNext;
}
Flow nothing(Exec&, const Instr&) { return Flow::kNext; }

constexpr Form kForms[] = {
    {"fence {sem:sc,acq_rel,acquire,release} <scope:@scope>", 0, 0, Class::kFence, build_fence},
    {"fence <sem:acquire,release> "
     "<sync_restrict:sync_restrict::shared::cta,sync_restrict::shared::cluster> <scope:cluster>",
     0, 0, Class::kFence, build_fence},
    {"membar <level:cta,gl,sys>", 0, 0, Class::kFence, build_membar},
    {"fence <mbarrier_init> <release> <cluster>", 0, 0, Class::kFence,
     [](Build& b) { b.out.fn = init_fence; }},
    {"fence <proxy> <async>", 0, 0, Class::kFence, [](Build& b) { b.out.fn = proxy_fence; }},
    {"fence <proxy> <kind:async::generic> <sem:acquire,release> "
     "<sync_restrict:sync_restrict::shared::cta,sync_restrict::shared::cluster> <cluster>",
     0, 0, Class::kFence, [](Build& b) { b.out.fn = proxy_fence; }},
    {"fence <proxy> <async> <space:global,shared::cta,shared::cluster>", 0, 0, Class::kFence,
     [](Build& b) { b.out.fn = proxy_fence; }},
    {"fence <proxy> <alias>", 0, 0, Class::kFence, [](Build& b) { b.out.fn = nothing; }},
    {"fence <proxy> <tensormap> ", 0, 0, Class::kFence, [](Build& b) { b.out.fn = nothing; }},
    {"fence <proxy> <kind:tensormap::generic> <sem:acquire,release> <scope:@scope>", 0, 2,
     Class::kFence, [](Build& b) { b.out.fn = nothing; }},
    {"membar <proxy> <kind:alias,async,async.global>", 0, 0, Class::kFence,
     [](Build& b) { b.out.fn = b.get("kind") == "alias" ? nothing : proxy_fence; }},
};

}  // namespace

void forms_fence(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

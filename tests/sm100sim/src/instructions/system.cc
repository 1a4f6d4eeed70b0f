// setmaxnreg, programmatic launch, sleeping: instructions about the machine rather than data.

#include "instructions/lanes.h"
#include "machine/engine.h"

namespace sm100sim {
namespace {

Flow nanosleep(Exec& e, const Instr& i) {
  Fragment& f = *e.frag;
  if (f.resumed) {
    f.resumed = false;
    return Flow::kNext;
  }
  const Reg& a = e.src(i.a);
  e.need(a, "a sleeping time", 4);
  uint64_t ns = 0;
  for_lanes(e.mask, [&](int l) {
    ns = std::max<uint64_t>(ns, std::min<uint64_t>(a.v[l] & 0xffffffff, 1'000'000));
  });
  f.resumed = true;
  f.wait.until = e.world.time_ns + 1 + e.world.rng() % (2 * ns + 1);
  return e.wait(WaitKind::kSleep);
}

// Register redistribution: the pool belongs to the CTA; an increase waits until enough has been
// given back.
Flow setmaxnreg(Exec& e, const Instr& i) {
  e.require_aligned();
  const uint32_t n = static_cast<uint32_t>(i.imm);
  const uint32_t now = e.warp.setmaxnreg;
  if (i.flags) {
    if (n < now)
      throw Fault("setmaxnreg", format("setmaxnreg.inc to %u, the warp has %u already", n, now),
                  first_lane(e.mask));
    const uint64_t need = static_cast<uint64_t>(n - now) * kLanes;
    if (e.cta.reg_pool < need) return e.wait(WaitKind::kRegisters, &e.cta, need, e.cta.reg_pool);
    e.cta.reg_pool -= need;
  } else {
    if (n > now)
      throw Fault("setmaxnreg", format("setmaxnreg.dec to %u, the warp has only %u", n, now),
                  first_lane(e.mask));
    e.cta.reg_pool += static_cast<uint64_t>(now - n) * kLanes;
    wake_cta_kind(e.cta, WaitKind::kRegisters);
    event(e.world);
  }
  e.warp.setmaxnreg = n;
  return Flow::kNext;
}
void build_setmaxnreg(Build& b) {
  b.out.fn = setmaxnreg;
  b.out.flags = b.get("way") == "inc";
  if (b.op(0).kind != Operand::kInt) b.fail("the register count must be an immediate");
  b.out.imm = b.op(0).imm;
  if (b.out.imm < 24 || b.out.imm > 256 || b.out.imm % 8 != 0)
    b.fail("the register count must be a multiple of 8 in 24..256");
}

Flow depend(Exec& e, const Instr& i) {
  Grid& g = e.grid;
  if (i.flags) {  // wait
    if (g.programmatic_after && !g.programmatic_after->done)
      return e.wait(WaitKind::kGridDependency);
    return Flow::kNext;
  }
  if (!e.cta.launched_dependents) {
    e.cta.launched_dependents = true;
    if (++g.launch_dependents_ctas == g.config.grid[0] * g.config.grid[1] * g.config.grid[2]) {
      g.dependents_released = true;
      event(e.world);
    }
  }
  return Flow::kNext;
}

constexpr Form kForms[] = {
    {"nanosleep <type:u32>", 1, 1, Class::kControl,
     [](Build& b) {
       b.out.fn = nanosleep;
       b.out.a = b.value(0, "u32");
     }},
    {"setmaxnreg <way:inc,dec> <sync> <aligned> <type:u32>", 1, 1, Class::kOther, build_setmaxnreg},
    {"griddepcontrol <what:wait,launch_dependents>", 0, 0, Class::kOther,
     [](Build& b) {
       b.out.fn = depend;
       b.out.flags = b.get("what") == "wait";
     }},
};

}  // namespace

void forms_system(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

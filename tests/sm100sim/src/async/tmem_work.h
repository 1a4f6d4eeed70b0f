// Tensor memory and shared memory as tcgen05 operations reach them: the ports of src/tensorcore
// with the machine's checks, and the work in flight on each SM's tensor memory. Which pairs of
// operations keep order without help is decided here (PTX ISA "Memory Consistency Model for
// tcgen05").
#pragma once

#include "machine/exec.h"
#include "tensorcore/ports.h"

namespace sm100sim {

/// Names a CTA in the allocation map of its SM.
inline int tmem_owner(const Cta& cta) { return static_cast<int>(cta.warps.at(0)->uid); }

/// The CTAs that an operation of this cta_group works on: {executing} or {even rank, odd rank}.
struct Group {
  Cta* ctas[2] = {nullptr, nullptr};
  int size = 1;
};
Group group_of(const Exec& e, int cta_group, int lane);

class MachineShared final : public tensorcore::SharedPort {
 public:
  explicit MachineShared(const Group& group) : group_(group) {}
  uint16_t read(int cta, uint32_t address, void* out, int bytes) override;

 private:
  Group group_;
};

class MachineTmem final : public tensorcore::TmemPort {
 public:
  explicit MachineTmem(const Group& group) : group_(group) {}
  void read(int cta, int lane, int column, int columns, uint32_t* words, uint8_t* poison) override;
  void write(int cta, int lane, int column, int columns, const uint32_t* words,
             const uint8_t* poison) override;

 private:
  tensorcore::Tmem& memory(int cta, int lane, int column, int columns) const;
  Group group_;
};

enum class TmemActor : uint8_t { kMma, kCopy, kLoad, kStore };

/// Checks what a new operation touches against the work in flight and the fences executed, and
/// registers it as work of `task`.
void enter_tmem(Exec& e, int lane, TmemActor actor, const Group& group,
                const std::vector<tensorcore::TmemRect>& rects, const TaskRef& task);
/// Called when the operation has happened: notes the access, for the fence rules.
void leave_tmem(World& world, const Group& group, const std::vector<tensorcore::TmemRect>& rects,
                Warp* warp, int lane, const Task* task);

}  // namespace sm100sim

// Turns parsed PTX into executable programs for one device: variables get addresses, functions get
// frames, statements get handlers. What a statement means is in src/instructions; this file only
// lays things out and finds reconvergence points.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/ast.h"
#include "machine/program.h"
#include "memory/space.h"

namespace sm100sim {

struct World;

struct SharedSlot {
  uint32_t offset, size;
  bool dynamic;
};

struct ModuleImage {
  ModuleText text;
  std::string source;
  int device = 0;
  std::map<std::string, std::unique_ptr<Program>> programs;
  std::map<std::string, Block*> globals;     // .global and .const variables
  std::map<std::string, SharedSlot> shared;  // module-level and function-level shared variables
  uint32_t dynamic_align = 16;
  uint32_t dynamic_start(const Program& p) const {
    return (p.static_shared + dynamic_align - 1) / dynamic_align * dynamic_align;
  }
  std::string place(const Program& p, int statement) const;
};

std::unique_ptr<ModuleImage> link_module(World& world, int device, const std::string& ptx);
void unload_module(World& world, ModuleImage& module);

/// Bytes of local memory a thread needs to run `p` with everything it calls (recursion: a fixed
/// allowance).
uint32_t local_bytes_with_calls(const ModuleImage& module, const Program& p);

/// For each statement index: where the paths out of a divergent branch there meet again.
std::vector<int> immediate_postdominators(const Program& p);

}  // namespace sm100sim

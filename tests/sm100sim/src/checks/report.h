// What a launch can be accused of. An error ends the launch that made it; a warning names the rule
// that only `strict` enforces. The words, the place (PTX line and text, source line, CTA, warp,
// lane) and the address are put together here.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace sm100sim {

struct Report {
  std::string
      kind;  // short and stable, for tests: "out-of-bounds", "poison", "race", "deadlock", ...
  std::string rule;  // the named rule, when only one rule set objects
  bool warning = false;
  std::string message;
  std::string kernel;
  int ptx_line = 0;
  std::string ptx_text;
  std::string source;  // "file:line" when the PTX has .loc
  int device = -1, cta = -1, warp = -1, lane = -1;
  uint64_t address = 0;
  std::string text() const;
};

/// Thrown inside handlers and task actions; the scheduler adds the place.
struct Fault : std::runtime_error {
  Fault(std::string kind, const std::string& message, int lane = -1, uint64_t address = 0)
      : std::runtime_error(message), kind(std::move(kind)), lane(lane), address(address) {}
  std::string kind;
  int lane;
  uint64_t address;
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace sm100sim

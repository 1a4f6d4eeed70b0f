// Memory orders and scopes as the decoded instruction keeps them.
#pragma once

#include <cstdint>
#include <string>

namespace sm100sim {

enum Order : uint8_t {
  kWeak,
  kVolatile = 1,
  kRelaxed = 1,
  kAcquire = 2,
  kRelease = 3,
  kAcqRel = 4,
  kSc = 5
};
enum Scope : uint8_t { kScopeNone, kScopeCta, kScopeCluster, kScopeGpu, kScopeSys };

inline uint8_t order_of(const std::string& s) {
  return s == "volatile" || s == "mmio" || s == "relaxed" ? kRelaxed
         : s == "acquire"                                 ? kAcquire
         : s == "release"                                 ? kRelease
         : s == "acq_rel"                                 ? kAcqRel
         : s == "sc"                                      ? kSc
                                                          : kWeak;
}
inline uint8_t scope_of(const std::string& s) {
  return s == "cta"       ? kScopeCta
         : s == "cluster" ? kScopeCluster
         : s == "gpu"     ? kScopeGpu
         : s == "sys"     ? kScopeSys
                          : kScopeNone;
}

}  // namespace sm100sim

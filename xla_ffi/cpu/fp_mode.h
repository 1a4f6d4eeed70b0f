// The floating-point mode that every computing thread sets and restores: round to nearest even,
// exceptions masked, denormals flushed on input and output.
//
// XLA's threads run in this mode already and a stand-alone test does not; the results must not
// depend on which. Written with instructions instead of an x86 header, so that it compiles
// everywhere.
#pragma once

#include <stdint.h>

namespace megamoe::cpu {

class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() {
    asm volatile("stmxcsr %0" : "=m"(saved_));
    set(0x1f80u | 0x8000u | 0x0040u);  // all exceptions masked, FTZ, DAZ
  }
  ~FlushDenormals() { set(saved_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(uint64_t{1} << 24);  // FZ
  }
  ~FlushDenormals() { set(saved_); }
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static void set(uint32_t mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
  uint32_t saved_;
#elif defined(__aarch64__)
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
  uint64_t saved_;
#endif
};

}  // namespace megamoe::cpu

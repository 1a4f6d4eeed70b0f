// The sums of the tensor core. Default is the published bit-level model of the hardware (MMA-Sim, arXiv 2511.10909): all terms of one
// instruction aligned to the largest exponent, cut to F fractional bits toward zero, added exactly, converted once. kExact is the same sum
// in float64 rounded to nearest once, to tell a wrong kernel from lost bits.
#pragma once

#include <cstdint>

#include "numerics/format.h"

namespace sm100sim::tensorcore {

enum class Arithmetic : uint8_t { kModel, kExact };

// How one kind adds: F fractional bits, and whether groups of 16 products are added exactly before scaling (FP4 kinds).
struct SumRule {
  int fraction_bits;
  bool grouped;
};

// One row of A against `n` columns of B. Arrays of B and all per-column arrays are contiguous over columns (k-major: [k][n]).
struct RowProblem {
  int k, n;
  const double* a;               // [k]
  const int16_t* a_exponent;     // [k]
  const double* b;               // [k][n_stride]
  const int16_t* b_exponent;     // [k][n_stride]
  int n_stride;
  int scales;                    // scale factors along K: 0 = unscaled, 1, 2, 4
  const double* a_scale;         // [scales]; NaN allowed
  const double* b_scale;         // [scales][n_stride]
  const int16_t* a_scale_exponent;
  const int16_t* b_scale_exponent;
  SumRule rule;
  numerics::Format d;            // kF32 or kF16
};

// `c` (codes of d, in 32-bit words) is replaced by the result; use zeros for D = A*B. `scale_input_d` divides c by 2^n.
void dot_row(const RowProblem& problem, Arithmetic arithmetic, int scale_input_d, uint32_t* c);

}  // namespace sm100sim::tensorcore

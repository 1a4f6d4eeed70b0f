// The sums of the tensor core. Default is the published bit-level model of the hardware (MMA-Sim,
// arXiv 2511.10909, and its public source): all terms of one instruction are aligned to the largest
// exponent, cut to F fractional bits toward zero, added exactly and converted once. kExact is the
// same sum in float64, rounded to nearest once: it tells a wrong kernel from lost bits.
#pragma once

#include <cstdint>

#include "numerics/format.h"

namespace sm100sim::tensorcore {

enum class Arithmetic : uint8_t {
  kModel,
  kExact,
  kModelByTerm,  // kModel without its shortcuts: equal results, an oracle for tests
};

inline constexpr int kBlock =
    32;  // columns handled together; buffers of columns are padded to a multiple

// One row of A against n columns of B. Per-column arrays are contiguous over columns; B and its
// scales have n_stride columns a line.
struct RowProblem {
  int k, n, n_stride;
  const double* a;            // [k]
  const int16_t* a_exponent;  // [k]
  int a_lowest_bit;
  bool a_special;             // NaN or infinity in the row, or NaN in its scales
  const double* b;            // [k][n_stride]
  const int16_t* b_exponent;  // [k][n_stride], n_stride a multiple of kBlock
  const int16_t* b_lowest_bit;
  const uint8_t* b_special;  // per column, likewise
  int scales;                // along K: 0 = unscaled, else 1, 2 or 4
  const double* a_scale;     // [scales]
  const int16_t* a_scale_exponent;
  const double* b_scale;  // [scales][scale_stride]
  const int16_t* b_scale_exponent;
  int scale_stride;   // a multiple of kBlock
  bool grouped;       // FP4 kinds: exact sums of 16 products, then scaled
  int fraction_bits;  // F
  bool half_result;   // D is f16
};

// F of the published model: 35 for the FP4 kinds, 25 otherwise.
int model_fraction_bits(bool grouped);

// c[r] (codes of D, one a 32-bit word; zeros for D = A*B) becomes the result of problems[r]; it
// counts 2^-scale_input_d. Several rows at once, because a block of B then stays in the cache; all
// have the same k and n.
void dot_rows(const RowProblem* problems, int rows, Arithmetic arithmetic, int scale_input_d,
              uint32_t* const* c);

// An exact sum to the code of D: toward zero to f32, to nearest even to f16. A zero sum is +0;
// overflow is infinity.
uint32_t round_result(double exact, bool half);

// kind::i8: s32 accumulators, wrapping or saturating.
void dot_row_integer(const double* a, const double* b, int k, int n, int n_stride, bool saturate,
                     uint32_t* c);

}  // namespace sm100sim::tensorcore

// The vector loops of the arithmetic model for one row and kBlock columns of a kind whose products
// are scaled alike (all but the FP4 kinds). They handle finite numbers in the common exponent range
// and say which columns they left.
#pragma once

#include <cstdint>

#include "tensorcore/arithmetic.h"

namespace sm100sim::tensorcore {

// Sums of products without cutting: out[j] = sum over i < k of a[i] * b[i][j].
void dot_exact(int k, const double* a, const double* b, int n_stride, double* out);

// D = A*B + c for columns j0 .. j0 + kBlock - 1; c holds kBlock codes of f32 or f16. left[j] = 1
// where c[j] is untouched and must be computed by the slow way.
void block_sum(const RowProblem& problem, int j0, uint32_t* c, uint8_t* left);

}  // namespace sm100sim::tensorcore

// The model column by column, in the words of its definition (any NaN, infinity and exponent), the
// FP4 kinds with their groups of 16, and the float64 mode. The common case is block_sum.cc. See
// arithmetic.h.
#include "tensorcore/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "numerics/convert.h"
#include "tensorcore/block_sum.h"
#include "tensorcore/operand.h"

namespace sm100sim::tensorcore {
namespace {

using numerics::Format;

constexpr int kZeroTerm = -133;  // exponent with which a zero term joins the maximum
constexpr uint32_t kNan32 = 0x7FFFFFFF;
constexpr uint32_t kNan16 = 0x7FFF;

struct Accumulator {
  double value;
  int exponent;  // kZeroExponent for zero
};

Accumulator accumulator(uint32_t code, bool half, int scale_input_d) {
  if (!half && !scale_input_d) {
    const int field = static_cast<int>(code >> 23 & 0xFF);
    const bool zero = (code & 0x7FFFFFFF) == 0;
    return {std::bit_cast<float>(code), zero ? kZeroExponent : std::max(field, 1) - 127};
  }
  const double value = numerics::decode(half ? Format::kF16 : Format::kF32, code);
  if (value == 0) return {0, kZeroExponent};
  if (!std::isfinite(value)) return {value, 0};
  return {std::ldexp(value, -scale_input_d),
          std::max(std::ilogb(value), half ? -14 : -126) - scale_input_d};
}

double scale_of(const RowProblem& p, int group, int groups, int j, int* exponent) {
  if (!p.scales) return *exponent = 0, 1;
  const int s = group * p.scales / groups;
  *exponent = p.a_scale_exponent[s] + p.b_scale_exponent[s * p.scale_stride + j];
  return p.a_scale[s] * p.b_scale[s * p.scale_stride + j];
}

// A group of 16 products is added exactly before scaling in the FP4 kinds; elsewhere every product
// is its own term.
int group_count(const RowProblem& p) { return p.grouped ? p.k / 16 : p.k; }

// One column, term by term.
uint32_t column(const RowProblem& p, int j, Accumulator c) {
  const int groups = group_count(p), per_group = p.k / groups;
  double terms[64 + 1];
  int exponents[64 + 1];
  double plain = c.value;  // decides NaN and infinity
  for (int g = 0; g < groups; ++g) {
    int exponent;
    const double scale = scale_of(p, g, groups, j, &exponent);
    double product = 0;
    for (int i = g * per_group; i < (g + 1) * per_group; ++i) {
      const size_t at = static_cast<size_t>(i) * p.n_stride + j;
      product += p.a[i] * p.b[at];
      if (!p.grouped) exponent += p.a_exponent[i] + p.b_exponent[at];
    }
    terms[g] = product * scale;  // exact: few significant bits
    exponents[g] = terms[g] == 0 ? kZeroTerm : exponent;
    plain += terms[g];
  }
  if (std::isnan(plain)) return p.half_result ? kNan16 : kNan32;
  if (std::isinf(plain))
    return (p.half_result ? 0x7C00u : 0x7F800000u) |
           (plain < 0 ? (p.half_result ? 0x8000u : 0x80000000u) : 0u);
  terms[groups] = c.value;
  exponents[groups] = c.value == 0 ? kZeroTerm : c.exponent;
  const int top = *std::max_element(exponents, exponents + groups + 1);
  double sum = 0;
  for (int i = 0; i <= groups; ++i) sum += std::trunc(std::ldexp(terms[i], p.fraction_bits - top));
  return round_result(std::ldexp(sum, top - p.fraction_bits), p.half_result);
}

uint32_t float64(const RowProblem& p, int j, Accumulator c) {
  const int groups = p.grouped ? p.k / 16 : 1, per_group = p.k / groups;
  double sum = c.value;
  for (int g = 0; g < groups; ++g) {
    int unused;
    double product = 0;
    for (int i = g * per_group; i < (g + 1) * per_group; ++i)
      product += p.a[i] * p.b[static_cast<size_t>(i) * p.n_stride + j];
    sum += product * scale_of(p, g, groups, j, &unused);
  }
  return static_cast<uint32_t>(numerics::encode(p.half_result ? Format::kF16 : Format::kF32, sum));
}

// kBlock columns of an FP4 kind: the groups' sums as vectors, the rest per column.
void block_grouped(const RowProblem& p, int j0, int count, uint32_t* c) {
  const int groups = group_count(p);
  double partial[4][kBlock];
  for (int g = 0; g < groups; ++g)
    dot_exact(16, p.a + g * 16, p.b + static_cast<size_t>(g) * 16 * p.n_stride + j0, p.n_stride,
              partial[g]);
  for (int j = 0; j < count; ++j) {
    const Accumulator own = accumulator(c[j], false, 0);
    double terms[4];
    int top = own.exponent;
    for (int g = 0; g < groups; ++g) {
      int exponent;
      terms[g] = partial[g][j] * scale_of(p, g, groups, j0 + j, &exponent);
      if (terms[g] != 0) top = std::max(top, exponent);
    }
    if (p.a_special || p.b_special[j0 + j] || !std::isfinite(own.value) || top < kZeroTerm) {
      c[j] = column(p, j0 + j, own);
      continue;
    }
    const double lift =
        std::bit_cast<double>(static_cast<int64_t>(p.fraction_bits - top + 1023) << 52);
    double sum = std::trunc(own.value * lift);
    for (int g = 0; g < groups; ++g) sum += std::trunc(terms[g] * lift);
    c[j] = round_result(sum / lift, false);
  }
}

}  // namespace

int model_fraction_bits(bool grouped) { return grouped ? 35 : 25; }

uint32_t round_result(double exact, bool half) {
  if (exact == 0) return 0;
  if (half) return static_cast<uint32_t>(numerics::encode(Format::kF16, exact));
  const double magnitude = std::fabs(exact);
  if (magnitude >= 0x1p128) return exact < 0 ? 0xFF800000 : 0x7F800000;
  if (magnitude >= 0x1p-126) {  // clear the bits that f32 lacks; the conversion is exact then
    const uint64_t cut = std::bit_cast<uint64_t>(exact) & ~((uint64_t{1} << 29) - 1);
    return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(cut)));
  }
  return static_cast<uint32_t>(
      numerics::encode(Format::kF32, exact, {.round = numerics::Round::kTowardZero}));
}

namespace {

// Columns j0 .. j0 + count - 1 of one row.
void columns(const RowProblem& p, Arithmetic arithmetic, int scale_input_d, int j0, int count,
             uint32_t* c) {
  if (arithmetic == Arithmetic::kExact) {
    for (int j = 0; j < count; ++j)
      c[j] = float64(p, j0 + j, accumulator(c[j], p.half_result, scale_input_d));
  } else if (p.grouped && arithmetic == Arithmetic::kModel) {
    block_grouped(p, j0, count, c);
  } else if (scale_input_d || arithmetic == Arithmetic::kModelByTerm) {
    for (int j = 0; j < count; ++j)
      c[j] = column(p, j0 + j, accumulator(c[j], p.half_result, scale_input_d));
  } else {
    uint32_t codes[kBlock] = {};
    uint8_t left[kBlock];
    std::copy_n(c, count, codes);
    block_sum(p, j0, codes, left);
    for (int j = 0; j < count; ++j)
      c[j] = left[j] ? column(p, j0 + j, accumulator(c[j], p.half_result, 0)) : codes[j];
  }
}

}  // namespace

void dot_rows(const RowProblem* problems, int rows, Arithmetic arithmetic, int scale_input_d,
              uint32_t* const* c) {
  for (int j0 = 0; j0 < problems[0].n; j0 += kBlock)
    for (int r = 0; r < rows; ++r)
      columns(problems[r], arithmetic, scale_input_d, j0, std::min(kBlock, problems[r].n - j0),
              c[r] + j0);
}

void dot_row_integer(const double* a, const double* b, int k, int n, int n_stride, bool saturate,
                     uint32_t* c) {
  for (int j = 0; j < n; ++j) {
    int64_t sum = static_cast<int32_t>(c[j]);
    for (int i = 0; i < k; ++i)
      sum += static_cast<int64_t>(a[i]) *
             static_cast<int64_t>(b[static_cast<size_t>(i) * n_stride + j]);
    if (saturate)
      sum = std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(),
                                std::numeric_limits<int32_t>::max());
    c[j] = static_cast<uint32_t>(sum);
  }
}

}  // namespace sm100sim::tensorcore

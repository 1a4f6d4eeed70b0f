// Two ways to the same sum, chosen per block of columns:
//   exact   no term of the block has a bit below the cut: one float64 chain;
//   cut     every term is cut on its own. Products of two narrow formats are exact in 53 bits, so are sums of cut terms.
// Written for the vectoriser: fixed trip counts, no branches inside; compiled for several instruction sets, picked at load time.
#include "tensorcore/block_sum.h"

#include <bit>
#include <cstring>

#include "tensorcore/operand.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SM100SIM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SM100SIM_CLONES
#endif

namespace sm100sim::tensorcore {
namespace {

// What the first pass finds per column.
struct Block {
  double own[kBlock];   // the accumulator
  double unit[kBlock];  // product -> units of the cut
  double back[kBlock];  // units -> value
  double lift[kBlock];  // accumulator -> units
  bool exact;
};

SM100SIM_CLONES
void product_exponents(int k, const int16_t* __restrict a, const int16_t* __restrict b, int n_stride, int16_t* __restrict out) {
  int16_t best[kBlock];
  for (int j = 0; j < kBlock; ++j) best[j] = 2 * kZeroExponent;
  for (int i = 0; i < k; ++i) {
    const int16_t e = a[i];
    const int16_t* __restrict line = b + static_cast<size_t>(i) * n_stride;
    for (int j = 0; j < kBlock; ++j) {
      const int16_t sum = static_cast<int16_t>(e + line[j]);
      best[j] = sum > best[j] ? sum : best[j];
    }
  }
  std::memcpy(out, best, sizeof best);
}

SM100SIM_CLONES
void dot_cut(int k, const double* __restrict a, const double* __restrict b, int n_stride, const double* __restrict unit,
             double* __restrict out) {
  double sum[kBlock] = {};
  for (int i = 0; i < k; ++i) {
    const double x = a[i];
    const double* __restrict line = b + static_cast<size_t>(i) * n_stride;
    for (int j = 0; j < kBlock; ++j) sum[j] += __builtin_trunc(x * line[j] * unit[j]);
  }
  std::memcpy(out, sum, sizeof sum);
}

// Exponents, units and whether the block is exact. `own` holds the accumulators' values; zeros and NaN tell by their bits.
SM100SIM_CLONES
void prepare(const int16_t* __restrict products, const int16_t* __restrict b_scale, const int16_t* __restrict b_lowest,
             const uint8_t* __restrict b_special, int a_scale, int a_lowest, int smallest, int fraction_bits,
             Block* __restrict out, uint8_t* __restrict left) {
  int inexact = 0;
  for (int j = 0; j < kBlock; ++j) {
    const uint64_t bits = std::bit_cast<uint64_t>(out->own[j]);
    const int field = static_cast<int>(bits >> 52 & 0x7FF);
    const int scale = a_scale + b_scale[j];
    int own = field - 1023;
    own = own < smallest ? smallest : own;
    own = field == 0 ? kZeroExponent : own;
    const int product = products[j] + scale;
    int top = product > own ? product : own;
    const bool nothing = top < kZeroExponent / 2;  // all terms are zero: the sum is +0
    left[j] = (!nothing && top < -133) | (b_special[j] != 0) | (field == 0x7FF);
    top = nothing | (left[j] != 0) ? 0 : top;
    inexact |= (left[j] == 0) & (a_lowest + b_lowest[j] + scale < top - fraction_bits);
    const int64_t lift = fraction_bits - top;
    const int64_t unit = nothing | (left[j] != 0) ? 0 : lift + scale;
    out->lift[j] = std::bit_cast<double>((lift + 1023) << 52);
    out->back[j] = std::bit_cast<double>((1023 - lift) << 52);
    out->unit[j] = std::bit_cast<double>((unit + 1023) << 52);
  }
  out->exact = inexact == 0;
}

// Cuts the accumulator, adds, and rounds toward zero to f32.
SM100SIM_CLONES
void finish_f32(const Block& block, const double* __restrict sum, uint32_t* __restrict c, uint8_t* __restrict left) {
  for (int j = 0; j < kBlock; ++j) {
    const double own = __builtin_trunc(block.own[j] * block.lift[j]);
    const double exact = (sum[j] + own) * block.back[j];
    const double magnitude = exact < 0 ? -exact : exact;
    const bool zero = magnitude == 0;
    const bool far = (!zero) & ((magnitude < 0x1p-126) | !(magnitude < 0x1p128));
    const uint64_t cut = std::bit_cast<uint64_t>(exact) & ~((uint64_t{1} << 29) - 1);
    const uint32_t code = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(cut)));
    left[j] = left[j] | far;
    c[j] = left[j] ? c[j] : zero ? 0 : code;
  }
}

const int16_t kNoScale[kBlock] = {};

}  // namespace

SM100SIM_CLONES
void dot_exact(int k, const double* __restrict a, const double* __restrict b, int n_stride, double* __restrict out) {
  double sum[kBlock] = {};
  for (int i = 0; i < k; ++i) {
    const double x = a[i];
    const double* __restrict line = b + static_cast<size_t>(i) * n_stride;
    for (int j = 0; j < kBlock; ++j) sum[j] += x * line[j];
  }
  std::memcpy(out, sum, sizeof sum);
}

void block_sum(const RowProblem& p, int j0, uint32_t* c, uint8_t* left) {
  Block block;
  int16_t products[kBlock];
  double sum[kBlock];
  if (p.a_special) {
    std::memset(left, 1, kBlock);
    return;
  }
  for (int j = 0; j < kBlock; ++j)
    block.own[j] = p.half_result ? numerics::decode(numerics::Format::kF16, c[j]) : std::bit_cast<float>(c[j]);
  product_exponents(p.k, p.a_exponent, p.b_exponent + j0, p.n_stride, products);
  prepare(products, p.scales ? p.b_scale_exponent + j0 : kNoScale, p.b_lowest_bit + j0, p.b_special + j0,
          p.scales ? p.a_scale_exponent[0] : 0, p.a_lowest_bit, p.half_result ? -14 : -126, p.fraction_bits, &block, left);
  if (block.exact) {
    dot_exact(p.k, p.a, p.b + j0, p.n_stride, sum);
    for (int j = 0; j < kBlock; ++j) sum[j] *= block.unit[j];
  } else {
    dot_cut(p.k, p.a, p.b + j0, p.n_stride, block.unit, sum);
  }
  if (p.half_result) {
    for (int j = 0; j < kBlock; ++j)
      if (!left[j]) c[j] = round_result((sum[j] + __builtin_trunc(block.own[j] * block.lift[j])) * block.back[j], true);
  } else {
    finish_f32(block, sum, c, left);
  }
}

}  // namespace sm100sim::tensorcore

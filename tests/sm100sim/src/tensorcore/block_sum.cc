// Two ways to the same sum, chosen per block of columns:
//   exact   no term of the block has a bit below the cut: one float64 chain;
//   cut     every term is cut on its own. Products of two narrow formats are exact in 53 bits, so
//   are sums of cut terms.
// Written with vectors of 8 columns (GCC vector extensions), compiled for several instruction sets
// and picked at load time.
#include "tensorcore/block_sum.h"

#include <cstring>

#include "numerics/convert.h"
#include "tensorcore/operand.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SM100SIM_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
// Vectors are passed inside this file only: their calling convention may differ between instruction
// sets.
#pragma GCC diagnostic ignored "-Wpsabi"
#else
#define SM100SIM_CLONES
#endif

namespace sm100sim::tensorcore {
namespace {

using numerics::Format;

// Comparisons are done on 32-bit lanes in 32-byte vectors: wider ones are taken apart by the
// compiler.
using Doubles = double __attribute__((vector_size(64)));
using Longs = int64_t __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using Shorts = int16_t __attribute__((vector_size(16)));
using Shorts32 = int16_t __attribute__((vector_size(32)));
using Bytes = int8_t __attribute__((vector_size(8)));

constexpr int kLanes = 8, kVectors = kBlock / kLanes;

template <typename Vector>
inline Vector load(const void* from) {
  Vector out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

inline Ints widen(const int16_t* from) { return __builtin_convertvector(load<Shorts>(from), Ints); }
inline Doubles power(Ints exponent) {
  return reinterpret_cast<Doubles>(__builtin_convertvector(exponent + 1023, Longs) << 52);
}
// Toward zero. Terms have at most F + 2 = 27 bits.
inline Doubles cut(Doubles x) {
  return __builtin_convertvector(__builtin_convertvector(x, Ints), Doubles);
}

// What the first pass finds per column.
struct Block {
  Doubles own[kVectors];   // the accumulator
  Doubles unit[kVectors];  // product -> units of the cut
  Doubles lift[kVectors];  // accumulator -> units
  Doubles back[kVectors];  // units -> value
  Ints left[kVectors];     // all ones: not handled here
  bool exact;
};

SM100SIM_CLONES
void product_exponents(int k, const int16_t* a, const int16_t* b, int n_stride, int16_t* out) {
  Shorts32 best[2] = {Shorts32{} + int16_t{2 * kZeroExponent},
                      Shorts32{} + int16_t{2 * kZeroExponent}};
  for (int i = 0; i < k; ++i) {
    const int16_t* line = b + static_cast<size_t>(i) * n_stride;
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const Shorts32 sum = load<Shorts32>(line + 16 * h) + a[i];
      best[h] = sum > best[h] ? sum : best[h];
    }
  }
  std::memcpy(out, best, sizeof best);
}

// Exponents, units, and whether the block is exact. `codes` are the accumulators as f32.
SM100SIM_CLONES
void prepare(const int16_t* products, const uint32_t* codes, const int16_t* b_scale,
             const int16_t* b_lowest, const uint8_t* b_special, int a_scale, int a_lowest,
             int smallest, int fraction_bits, Block* block) {
  Ints inexact{};
  for (int v = 0; v < kVectors; ++v) {
    const int j = v * kLanes;
    const Ints code = load<Ints>(codes + j);
    block->own[v] = __builtin_convertvector(reinterpret_cast<Floats>(code), Doubles);
    const Ints field = code >> 23 & 0xFF;
    Ints own = field - 127;
    own = own < smallest ? Ints{} + smallest : own;
    own = (code & 0x7FFFFFFF) == 0 ? Ints{} + kZeroExponent : own;
    const Ints scale = widen(b_scale + j) + a_scale;
    const Ints product = widen(products + j) + scale;
    Ints top = product > own ? product : own;
    const Ints special = __builtin_convertvector(load<Bytes>(b_special + j), Ints) != 0;
    const Ints nothing = top < kZeroExponent / 2;  // all terms are zero: the sum is +0
    const Ints left = special | (field == 0xFF) | (~nothing & (top < -133));
    const Ints use = ~(left | nothing);
    top &= use;
    inexact |= use & (widen(b_lowest + j) + a_lowest + scale < top - fraction_bits);
    const Ints lift = fraction_bits - top;
    block->lift[v] = power(lift);
    block->back[v] = power(-lift);
    block->unit[v] = power((lift + scale) & use);
    block->left[v] = left;
  }
  int any = 0;
  for (int i = 0; i < kLanes; ++i) any |= inexact[i];
  block->exact = any == 0;
}

SM100SIM_CLONES
void dot_cut(int k, const double* a, const double* b, int n_stride, const Doubles* unit,
             Doubles* out) {
  Doubles sum[kVectors] = {};
  for (int i = 0; i < k; ++i) {
    const double* line = b + static_cast<size_t>(i) * n_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[v] += cut(load<Doubles>(line + v * kLanes) * a[i] * unit[v]);
  }
  std::memcpy(out, sum, sizeof sum);
}

SM100SIM_CLONES
void dot_whole(int k, const double* a, const double* b, int n_stride, Doubles* out) {
  Doubles sum[kVectors] = {};
  for (int i = 0; i < k; ++i) {
    const double* line = b + static_cast<size_t>(i) * n_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] += load<Doubles>(line + v * kLanes) * a[i];
  }
  std::memcpy(out, sum, sizeof sum);
}

// Adds the cut accumulator and rounds toward zero to f32.
SM100SIM_CLONES
void finish_f32(const Block& block, const Doubles* sum, uint32_t* c, uint8_t* left) {
  for (int v = 0; v < kVectors; ++v) {
    const int j = v * kLanes;
    const Doubles exact = (sum[v] + cut(block.own[v] * block.lift[v])) * block.back[v];
    const Longs bits = reinterpret_cast<Longs>(exact);
    const Ints field = __builtin_convertvector(bits >> 52, Ints) & 0x7FF;
    const Ints zero = field == 0;  // no sum is so small that its double is subnormal
    const Ints skip =
        block.left[v] |
        (~zero & ((field < 1023 - 126) | (field > 1023 + 127)));  // subnormal or too large for f32
    const Floats rounded = __builtin_convertvector(
        reinterpret_cast<Doubles>(bits & ~((int64_t{1} << 29) - 1)), Floats);
    const Ints code = reinterpret_cast<Ints>(rounded) & ~zero;
    const Ints out = skip ? load<Ints>(c + j) : code;
    std::memcpy(c + j, &out, sizeof out);
    const Bytes flags = __builtin_convertvector(skip, Bytes);
    std::memcpy(left + j, &flags, sizeof flags);
  }
}

const int16_t kNoScale[kBlock] = {};

}  // namespace

void dot_exact(int k, const double* a, const double* b, int n_stride, double* out) {
  Doubles sum[kVectors];
  dot_whole(k, a, b, n_stride, sum);
  std::memcpy(out, sum, sizeof sum);
}

void block_sum(const RowProblem& p, int j0, uint32_t* c, uint8_t* left) {
  if (p.a_special) {
    std::memset(left, 1, kBlock);
    return;
  }
  Block block;
  int16_t products[kBlock];
  Doubles sum[kVectors];
  uint32_t wide[kBlock];
  if (p.half_result)
    for (int j = 0; j < kBlock; ++j)
      wide[j] = static_cast<uint32_t>(numerics::convert(Format::kF32, Format::kF16, c[j]));
  product_exponents(p.k, p.a_exponent, p.b_exponent + j0, p.n_stride, products);
  prepare(products, p.half_result ? wide : c, p.scales ? p.b_scale_exponent + j0 : kNoScale,
          p.b_lowest_bit + j0, p.b_special + j0, p.scales ? p.a_scale_exponent[0] : 0,
          p.a_lowest_bit, p.half_result ? -14 : -126, p.fraction_bits, &block);
  if (block.exact) {
    dot_whole(p.k, p.a, p.b + j0, p.n_stride, sum);
    for (int v = 0; v < kVectors; ++v) sum[v] *= block.unit[v];
  } else {
    dot_cut(p.k, p.a, p.b + j0, p.n_stride, block.unit, sum);
  }
  if (p.half_result) {
    for (int j = 0; j < kBlock; ++j) {
      const int v = j / kLanes, l = j % kLanes;
      left[j] = block.left[v][l] != 0;
      const double own = __builtin_trunc(block.own[v][l] * block.lift[v][l]);
      if (!left[j]) c[j] = round_result((sum[v][l] + own) * block.back[v][l], true);
    }
  } else {
    finish_f32(block, sum, c, left);
  }
}

}  // namespace sm100sim::tensorcore

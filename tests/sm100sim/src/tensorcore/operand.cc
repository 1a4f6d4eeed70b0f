// Operand walks and decoding. See operand.h.
#include "tensorcore/operand.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include "tensorcore/tmem.h"

namespace sm100sim::tensorcore {
namespace {

using numerics::Format;

// One code, decoded.
struct Decoded {
  double value;
  int16_t exponent;
  int16_t lowest_bit;
  bool special;
};

Decoded decode_code(Format format, uint32_t code) {
  const double value = numerics::decode(format, code);
  if (!std::isfinite(value)) return {value, 0, kNoLowestBit, true};
  if (value == 0) return {value, kZeroExponent, kNoLowestBit, false};
  const int smallest = 1 - numerics::info(format).bias;
  const int exponent = std::max(std::ilogb(value), smallest);
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint64_t significand =
      (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;  // narrow formats are normal doubles
  const int lowest = std::ilogb(value) - 52 + std::countr_zero(significand);
  return {value, static_cast<int16_t>(exponent), static_cast<int16_t>(lowest), false};
}

// All codes of formats of up to 16 bits.
const Decoded* table(Format format) {
  static std::unique_ptr<Decoded[]> tables[16];
  static std::once_flag once[16];
  const int index = static_cast<int>(format);
  std::call_once(once[index], [&] {
    const uint32_t count = 1u << numerics::info(format).bits;
    tables[index] = std::make_unique<Decoded[]>(count);
    for (uint32_t code = 0; code < count; ++code) tables[index][code] = decode_code(format, code);
  });
  return tables[index].get();
}

struct Sink {
  const OperandShape& shape;
  Operand* out;
  const Decoded* codes;

  Sink(const OperandShape& s, Operand* o) : shape(s), out(o), codes(nullptr) {
    if (!s.integer && s.format != Format::kTf32) codes = table(s.format);
  }

  void put(int row, int k, uint32_t code) {
    const size_t at =
        static_cast<size_t>(row) * out->row_step + static_cast<size_t>(k) * out->k_step;
    if (shape.integer) {
      out->value[at] = shape.is_signed ? static_cast<int8_t>(code) : static_cast<uint8_t>(code);
      return;
    }
    const Decoded one = codes ? codes[code] : decode_code(Format::kTf32, code);
    out->value[at] = shape.negate ? -one.value : one.value;
    out->exponent[at] = one.exponent;
    out->lowest_bit[row] = std::min(out->lowest_bit[row], one.lowest_bit);
    out->special[row] |= one.special;
  }

  void chunk(int row, int k0, const uint8_t* bytes, uint16_t poison) {
    if (poison) out->poisoned[row] = 1;
    switch (shape.container_bits) {
      case 4:
        for (int i = 0; i < 32; ++i) put(row, k0 + i, bytes[i / 2] >> (i % 2 * 4) & 0xF);
        return;
      case 16:
        for (int i = 0; i < 8; ++i) put(row, k0 + i, bytes[2 * i] | bytes[2 * i + 1] << 8);
        return;
      case 32:
        for (int i = 0; i < 4; ++i) {
          uint32_t word;
          std::memcpy(&word, bytes + 4 * i, 4);
          put(row, k0 + i, word);
        }
        return;
      default:
        break;
    }
    const int bits = shape.integer ? 8 : numerics::info(shape.format).bits;
    if (bits == 8) {
      for (int i = 0; i < 16; ++i) put(row, k0 + i, bytes[i]);
    } else if (bits == 4) {  // 8 bytes of nibbles, low first, then padding
      for (int i = 0; i < 16; ++i) put(row, k0 + i, bytes[i / 2] >> (i % 2 * 4) & 0xF);
    } else {  // 12 bytes of 6-bit codes, low first, then padding
      for (int i = 0; i < 16; ++i) {
        const int at = 6 * i;
        const uint32_t pair = bytes[at / 8] | (at / 8 + 1 < 12 ? bytes[at / 8 + 1] << 8 : 0);
        put(row, k0 + i, pair >> (at % 8) & 0x3F);
      }
    }
  }
};

// Bytes from one line of an atom to the next.
uint32_t pitch(SwizzleMode mode) {
  switch (mode) {
    case SwizzleMode::kNone:
      return 16;
    case SwizzleMode::k32B:
      return 32;
    case SwizzleMode::k64B:
      return 64;
    default:
      return 128;
  }
}

// Bytes of a 16-byte chunk that carry data: the padding of unpacked types is never read.
int data_bytes(const OperandShape& shape) {
  if (shape.container_bits != 8 || shape.integer) return 16;
  return 2 * numerics::info(shape.format).bits;
}

}  // namespace

Operand::Operand(int rows_, int k_, bool k_contiguous)
    : rows(rows_), k(k_), row_step(k_contiguous ? k_ : 1), k_step(k_contiguous ? 1 : rows_) {
  value.assign(static_cast<size_t>(rows) * k, 0);
  exponent.assign(value.size(), kZeroExponent);
  lowest_bit.assign(rows, kNoLowestBit);
  special.assign(rows, 0);
  poisoned.assign(rows, 0);
}

uint32_t swizzle_address(SwizzleMode mode, uint32_t address, uint32_t base_offset) {
  const uint32_t phase = address - (base_offset << 7);
  switch (mode) {
    case SwizzleMode::kNone:
      return address;
    case SwizzleMode::k32B:
      return address ^ (phase >> 3 & 0x10);
    case SwizzleMode::k64B:
      return address ^ (phase >> 3 & 0x30);
    case SwizzleMode::k128B:
      return address ^ (phase >> 3 & 0x70);
    case SwizzleMode::k128BAtom32B:
      return address ^ (phase >> 2 & 0x60);
  }
  return address;
}

uint32_t k_major_chunk(const MatrixDescriptor& d, int row, int chunk) {
  const uint32_t step = d.swizzle == SwizzleMode::kNone ? d.leading : 16;
  const uint32_t linear = d.start + row % 8 * pitch(d.swizzle) + row / 8 * d.stride + chunk * step;
  return swizzle_address(d.swizzle, linear, d.base_offset) & 0x3FFFF;
}

uint32_t mn_major_chunk(const MatrixDescriptor& d, int row_chunk, int k) {
  if (d.swizzle == SwizzleMode::kNone)
    return (d.start + k % 8 * 16 + k / 8 * d.leading + row_chunk * d.stride) & 0x3FFFF;
  const int chunks = static_cast<int>(pitch(d.swizzle)) / 16;
  const int depth = d.swizzle == SwizzleMode::k128BAtom32B ? 4 : 8;
  const uint32_t linear = d.start + row_chunk % chunks * 16 + row_chunk / chunks * d.leading +
                          k % depth * pitch(d.swizzle) + k / depth * d.stride;
  return swizzle_address(d.swizzle, linear, d.base_offset) & 0x3FFFF;
}

void fetch_shared(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta,
                  SharedPort& port, int first, Operand* out) {
  Sink sink(shape, out);
  uint8_t bytes[16] = {};
  const int per_chunk = 128 / shape.container_bits;
  if (!shape.mn_major) {
    const int wanted = data_bytes(shape);
    for (int row = 0; row < shape.rows; ++row)
      for (int chunk = 0; chunk * per_chunk < shape.k; ++chunk) {
        const uint16_t poison =
            port.read(cta, k_major_chunk(descriptor, row, chunk), bytes, wanted);
        sink.chunk(first + row, chunk * per_chunk, bytes, poison);
      }
    return;
  }
  const int width = shape.container_bits / 8;
  for (int k = 0; k < shape.k; ++k)
    for (int row_chunk = 0; row_chunk * per_chunk < shape.rows; ++row_chunk) {
      const uint16_t poison = port.read(cta, mn_major_chunk(descriptor, row_chunk, k), bytes, 16);
      for (int i = 0; i < per_chunk && row_chunk * per_chunk + i < shape.rows; ++i) {
        const int row = first + row_chunk * per_chunk + i;
        uint32_t code = 0;
        std::memcpy(&code, bytes + i * width, width);
        sink.put(row, k, code);
        if (poison >> (i * width) & ((1 << width) - 1)) out->poisoned[row] = 1;
      }
    }
}

void fetch_tmem(uint32_t address, const OperandShape& shape, int cta, const std::vector<int>& lanes,
                TmemPort& port, Operand* out) {
  Sink sink(shape, out);
  const int columns = shape.k * shape.container_bits / 32;  // 8, always
  std::vector<uint32_t> words(columns);
  std::vector<uint8_t> poison(columns);
  const bool bytewise = shape.container_bits == 8;
  const int bits =
      bytewise && !shape.integer ? numerics::info(shape.format).bits : shape.container_bits;
  for (size_t row = 0; row < lanes.size(); ++row) {
    port.read(cta, lanes[row], address_column(address), columns, words.data(), poison.data());
    for (int i = 0; i < columns; ++i) {
      if (poison[i]) out->poisoned[row] = 1;
      const int per_word = 32 / shape.container_bits;
      for (int j = 0; j < per_word; ++j) {
        uint32_t code = shape.container_bits == 32 ? words[i]
                                                   : words[i] >> (j * shape.container_bits) &
                                                         ((1u << shape.container_bits) - 1);
        if (bytewise && bits == 4) code = code >> 2 & 0xF;
        if (bytewise && bits == 6) code &= 0x3F;
        sink.put(static_cast<int>(row), i * per_word + j, code);
      }
    }
  }
}

void shared_footprint(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta,
                      std::vector<SharedRange>* out) {
  const int per_chunk = 128 / shape.container_bits;
  std::vector<uint32_t> chunks;
  const int outer = shape.mn_major ? shape.k : shape.rows,
            inner = shape.mn_major ? shape.rows : shape.k;
  for (int i = 0; i < outer; ++i)
    for (int chunk = 0; chunk * per_chunk < inner; ++chunk)
      chunks.push_back(shape.mn_major ? mn_major_chunk(descriptor, chunk, i)
                                      : k_major_chunk(descriptor, i, chunk));
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  for (uint32_t at : chunks) {
    if (!out->empty() && out->back().cta == cta && out->back().address + out->back().bytes == at)
      out->back().bytes += 16;
    else
      out->push_back({cta, at, 16});
  }
}

}  // namespace sm100sim::tensorcore

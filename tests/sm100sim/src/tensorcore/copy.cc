// See copy.h. The source is a K-major matrix of 16-byte chunks, walked like an MMA operand.
#include "tensorcore/copy.h"

#include <cstring>

#include "numerics/words.h"
#include "tensorcore/operand.h"
#include "tensorcore/tmem.h"

namespace sm100sim::tensorcore {
namespace {

// 16 elements of 4 or 6 bits become 16 bytes: E2M1 in bits 5:2, 6-bit codes in bits 5:0.
uint16_t decompress(CopySource source, const uint8_t* in, uint16_t poison, uint8_t* out) {
  uint16_t bad = 0;
  for (int i = 0; i < 16; ++i) {
    const int bits = source == CopySource::kB4x16P64 ? 4 : 6, at = i * bits;
    const int first = at / 8, last = (at + bits - 1) / 8;
    const uint32_t pair = in[first] | in[last] << 8;
    const uint32_t code = (first == last ? in[first] : pair) >> (at % 8) & ((1 << bits) - 1);
    out[i] = static_cast<uint8_t>(bits == 4 ? code << 2 : code);
    if (poison >> first & 1 || poison >> last & 1) bad |= static_cast<uint16_t>(1 << i);
  }
  return bad;
}

}  // namespace

int copy_rows(CopyShape shape) {
  switch (shape) {
    case CopyShape::k128x256b:
    case CopyShape::k128x128b:
      return 128;
    case CopyShape::k4x256b:
      return 4;
    case CopyShape::k32x128bWarpx4:
      return 32;
    default:
      return 64;
  }
}

int copy_chunks(CopyShape shape) {
  return shape == CopyShape::k128x256b || shape == CopyShape::k4x256b ? 2 : 1;
}

int copy_lanes(CopyShape shape, int row, int lanes[4]) {
  switch (shape) {
    case CopyShape::k128x256b:
    case CopyShape::k128x128b:
      lanes[0] = row;
      return 1;
    case CopyShape::k4x256b:
      lanes[0] = 32 * row;
      return 1;
    case CopyShape::k64x128bWarpx2_02_13:
      lanes[0] = row, lanes[1] = row + 64;
      return 2;
    case CopyShape::k64x128bWarpx2_01_23:
      lanes[0] = row + row / 32 * 32, lanes[1] = lanes[0] + 32;
      return 2;
    case CopyShape::k32x128bWarpx4:
      for (int i = 0; i < 4; ++i) lanes[i] = row + 32 * i;
      return 4;
  }
  return 0;
}

Errors check(const TmemCopy& copy) {
  Errors errors;
  decode_matrix_descriptor(copy.descriptor, "s-desc", &errors);
  const int lane = address_lane(copy.address), column = address_column(copy.address);
  const bool four = copy.shape == CopyShape::k4x256b;
  if (four ? lane >= 32 : lane != 0)
    errors.push_back(words("tcgen05.cp: lane {} in the address found; {} accepted for this shape",
                           lane, four ? "0..31" : "0"));
  if (column + 4 * copy_chunks(copy.shape) > kTmemColumns)
    errors.push_back(words("tcgen05.cp: columns from {} found; tensor memory has 512", column));
  return errors;
}

void run(const TmemCopy& copy, int cta, SharedPort& shared, TmemPort& tmem) {
  Errors unused;
  const MatrixDescriptor source = decode_matrix_descriptor(copy.descriptor, "s-desc", &unused);
  const int data = copy.source == CopySource::kPlain      ? 16
                   : copy.source == CopySource::kB4x16P64 ? 8
                                                          : 12;
  for (int row = 0; row < copy_rows(copy.shape); ++row)
    for (int chunk = 0; chunk < copy_chunks(copy.shape); ++chunk) {
      uint8_t bytes[16] = {}, out[16];
      uint16_t poison = shared.read(cta, k_major_chunk(source, row, chunk), bytes, data);
      if (copy.source == CopySource::kPlain) {
        std::memcpy(out, bytes, 16);
      } else {
        poison = decompress(copy.source, bytes, poison, out);
      }
      uint32_t words[4];
      std::memcpy(words, out, 16);
      uint8_t bad[4];
      for (int i = 0; i < 4; ++i) bad[i] = poison >> (4 * i) & 0xF;
      int lanes[4];
      const int copies = copy_lanes(copy.shape, row, lanes);
      for (int i = 0; i < copies; ++i)
        tmem.write(cta, lanes[i] + address_lane(copy.address),
                   address_column(copy.address) + 4 * chunk, 4, words, bad);
    }
}

void footprint(const TmemCopy& copy, int cta, std::vector<SharedRange>* shared,
               std::vector<TmemRect>* tmem) {
  Errors unused;
  const MatrixDescriptor source = decode_matrix_descriptor(copy.descriptor, "s-desc", &unused);
  OperandShape shape;
  shape.container_bits = 8;
  shape.rows = copy_rows(copy.shape);
  shape.k = 16 * copy_chunks(copy.shape);
  shared_footprint(source, shape, cta, shared);
  const int column = address_column(copy.address), columns = 4 * copy_chunks(copy.shape);
  if (copy.shape == CopyShape::k4x256b) {
    for (int i = 0; i < 4; ++i)
      tmem->push_back({cta, 32 * i + address_lane(copy.address), 1, column, columns, true});
  } else {
    tmem->push_back({cta, 0, kTmemLanes, column, columns, true});
  }
}

Errors check_shift(uint32_t address) {
  Errors errors;
  if (address_lane(address) % 32)
    errors.push_back(words("tcgen05.shift: lane {} in the address found; a multiple of 32 accepted",
                           address_lane(address)));
  if (address_column(address) + 8 > kTmemColumns)
    errors.push_back(words("tcgen05.shift: columns from {} found; tensor memory has 512",
                           address_column(address)));
  return errors;
}

void run_shift(uint32_t address, int cta, TmemPort& tmem) {
  uint32_t words[8];
  uint8_t poison[8];
  const int first = address_lane(address), column = address_column(address);
  for (int lane = first; lane < first + 31; ++lane) {
    tmem.read(cta, lane + 1, column, 8, words, poison);
    tmem.write(cta, lane, column, 8, words, poison);
  }
}

}  // namespace sm100sim::tensorcore

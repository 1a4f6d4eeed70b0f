// See mma.h. Layout names (A, B, D, E, F, G) are those of PTX ISA "Data path layout organization".
#include "tensorcore/mma.h"

#include <cstring>

#include "numerics/words.h"
#include "tensorcore/tmem.h"

namespace sm100sim::tensorcore {
namespace {

using numerics::Format;

// Columns are handled in blocks, and a segment may start anywhere: one block of padding.
int padded(int n) { return (n + kBlock - 1) / kBlock * kBlock + kBlock; }

// What D's cells inherit: from the row, the column, and the old cell. Eight columns at a time; N is
// a multiple of 8 in every segment.
void merge_poison(int columns, bool row, bool half, const uint8_t* column_poison, uint8_t* cells) {
  constexpr uint64_t kBytes = 0x0101010101010101;
  for (int j = 0; j < columns; j += 8) {
    uint64_t own, column;
    std::memcpy(&own, cells + j, 8);
    std::memcpy(&column, column_poison + j, 8);
    own &= (half ? 3 : 15) * kBytes;
    own = ((own + 15 * kBytes) >> 4 & kBytes) * 15;  // 15 where any relevant bit was set
    own |= column | (row ? 15 : 0) * kBytes;
    if (half) own |= 12 * kBytes;  // the upper half of a 16-bit result's word holds nothing
    std::memcpy(cells + j, &own, 8);
  }
}

}  // namespace

Mma::Mma(const MmaRequest& request) : request_(request) {
  const InstructionContext& context = request_.context;
  if (context.cta_group != 1 && context.cta_group != 2) {
    errors_.push_back(words("cta_group::{} found; 1 and 2 accepted", context.cta_group));
    return;
  }
  descriptor_ = decode_instruction_descriptor(request_.instruction, context, &errors_);
  if (!request_.a_in_tmem) a_descriptor_ = decode_matrix_descriptor(request_.a, "a-desc", &errors_);
  b_descriptor_ = decode_matrix_descriptor(request_.b, "b-desc", &errors_);
  if (errors_.empty()) check_addresses();
}

// Layout F uses 16 lanes of every 32; which half, the lane of the address says.
bool Mma::half_lanes() const {
  return request_.context.cta_group == 1 && descriptor_.m == 64 &&
         !request_.context.weight_stationary;
}

int Mma::rows_per_cta() const { return descriptor_.m / request_.context.cta_group; }

int Mma::segments() const { return half_lanes() ? 1 : 128 / rows_per_cta(); }

DCell Mma::d_cell(int row, int column) const {
  if (half_lanes()) return {row / 16 * 32 + row % 16 + address_lane(request_.d_tmem), column};
  const int part = columns_per_segment();
  return {row + column / part * rows_per_cta(), column % part};
}

void Mma::check_addresses() {
  auto want = [&](const char* what, uint32_t address, int columns, bool lane16) {
    const int lane = address_lane(address), column = address_column(address);
    if (lane != 0 && !(lane16 && lane == 16))
      errors_.push_back(words("{}: lane {} in the address found; {} accepted for this shape", what,
                              lane, lane16 ? "0 and 16" : "0"));
    if (column + columns > kTmemColumns)
      errors_.push_back(words("{}: columns {}..{} found; tensor memory has 512", what, column,
                              column + columns - 1));
  };
  want("d-tmem", request_.d_tmem, columns_per_segment(), half_lanes());
  if (request_.a_in_tmem) {
    want("a-tmem", static_cast<uint32_t>(request_.a), 8, half_lanes());
    if (half_lanes() &&
        address_lane(static_cast<uint32_t>(request_.a)) != address_lane(request_.d_tmem))
      errors_.push_back("a-tmem and d-tmem: different lane alignment found; M = 64 needs the same");
    if (descriptor_.transpose_a)
      errors_.push_back("idesc: transposed A found; A in tensor memory must be K-major");
  }
  if (block_scaled(descriptor_.kind)) {
    want("scale-A-tmem", request_.scale_a_tmem & 0x7FFFFF, scale_columns(rows_per_cta()), false);
    want("scale-B-tmem", request_.scale_b_tmem & 0x7FFFFF, scale_columns(columns_per_segment()),
         false);
    for (uint32_t word : request_.disable_output_lane)
      if (word) {
        errors_.push_back("disable-output-lane found; block-scaled kinds have none");
        break;
      }
  }
  const bool may_scale = descriptor_.kind == Kind::kF16 || descriptor_.kind == Kind::kTf32;
  if (request_.scale_input_d &&
      (!may_scale || request_.scale_input_d < 0 || request_.scale_input_d > 15))
    errors_.push_back(words("scale-input-d: {} found; 0..15 accepted, for kinds f16 and tf32 only",
                            request_.scale_input_d));
  const bool atom32[2] = {!request_.a_in_tmem && a_descriptor_.swizzle == SwizzleMode::k128BAtom32B,
                          b_descriptor_.swizzle == SwizzleMode::k128BAtom32B};
  const bool transposed[2] = {descriptor_.transpose_a, descriptor_.transpose_b};
  for (int i = 0; i < 2; ++i)
    if (transposed[i] && (descriptor_.kind == Kind::kTf32) != atom32[i])
      errors_.push_back(
          words("{}: transposed operand found with {}the 128B swizzle of 32B atoms; kind::tf32 "
                "needs it, the other kinds forbid it",
                i ? "b-desc" : "a-desc", atom32[i] ? "" : "other than "));
}

uint64_t Mma::multiply_adds() const {
  return static_cast<uint64_t>(descriptor_.m) * descriptor_.n * descriptor_.k;
}

OperandShape Mma::shape_a() const {
  const bool integer = descriptor_.kind == Kind::kI8;
  return {descriptor_.a,
          container_bits(descriptor_.kind),
          rows_per_cta(),
          descriptor_.k,
          descriptor_.transpose_a,
          descriptor_.negate_a,
          integer,
          descriptor_.a_signed};
}

OperandShape Mma::shape_b() const {
  const bool integer = descriptor_.kind == Kind::kI8;
  return {descriptor_.b,
          container_bits(descriptor_.kind),
          descriptor_.n / ctas(),
          descriptor_.k,
          descriptor_.transpose_b,
          descriptor_.negate_b,
          integer,
          descriptor_.b_signed};
}

void Mma::footprint(std::vector<SharedRange>* shared, std::vector<TmemRect>* tmem) const {
  for (int cta = 0; cta < ctas(); ++cta) {
    if (request_.a_in_tmem) {
      tmem->push_back(
          {cta, 0, kTmemLanes, address_column(static_cast<uint32_t>(request_.a)), 8, false});
    } else {
      shared_footprint(a_descriptor_, shape_a(), cta, shared);
    }
    shared_footprint(b_descriptor_, shape_b(), cta, shared);
    if (block_scaled(descriptor_.kind)) {
      tmem->push_back({cta, 0, kTmemLanes, address_column(request_.scale_a_tmem),
                       scale_columns(rows_per_cta()), false});
      tmem->push_back({cta, 0, kTmemLanes, address_column(request_.scale_b_tmem),
                       scale_columns(columns_per_segment()), false});
    }
    const int column = address_column(request_.d_tmem);
    if (!half_lanes()) {
      tmem->push_back({cta, 0, kTmemLanes, column, columns_per_segment(), true});
    } else {
      for (int quarter = 0; quarter < 4; ++quarter)
        tmem->push_back(
            {cta, quarter * 32 + address_lane(request_.d_tmem), 16, column, descriptor_.n, true});
    }
  }
}

void Mma::fetch(SharedPort& shared, TmemPort& tmem) {
  b_ = Operand(padded(descriptor_.n), descriptor_.k, false);
  const OperandShape a = shape_a(), b = shape_b();
  for (int cta = 0; cta < ctas(); ++cta) {
    if (request_.a_in_tmem) {
      // One row a lane: layouts with several segments of N hold a copy of A for each, and each
      // datapath reads its own.
      std::vector<int> lanes(half_lanes() ? 64 : 128);
      for (int i = 0; i < static_cast<int>(lanes.size()); ++i)
        lanes[i] = half_lanes() ? d_cell(i, 0).lane : i;
      a_[cta] = Operand(static_cast<int>(lanes.size()), descriptor_.k, true);
      fetch_tmem(static_cast<uint32_t>(request_.a), a, cta, lanes, tmem, &a_[cta]);
    } else {
      a_[cta] = Operand(rows_per_cta(), descriptor_.k, true);
      fetch_shared(a_descriptor_, a, cta, shared, 0, &a_[cta]);
    }
    fetch_shared(b_descriptor_, b, cta, shared, cta * b.rows, &b_);
  }
  for (int cta = 0; cta < ctas(); ++cta) fetch_scale_factors(cta, tmem);
}

void Mma::fetch_scale_factors(int cta, TmemPort& tmem) {
  const int count = descriptor_.scales_per_row, part = columns_per_segment();
  for (int partition = 0; partition < 4; ++partition) {
    PartitionScales& scales = scales_[cta][partition];
    scales.b_special = b_.special;
    scales.b_poison = b_.poisoned;
    for (uint8_t& poison : scales.b_poison) poison = poison ? 15 : 0;
    if (!count) continue;
    scales.a = fetch_scales(request_.scale_a_tmem & 0x7FFFFF, descriptor_.scale, rows_per_cta(),
                            rows_per_cta(), descriptor_.scale_a_id, count, partition, cta, tmem);
    scales.b = fetch_scales(request_.scale_b_tmem & 0x7FFFFF, descriptor_.scale, part, padded(part),
                            descriptor_.scale_b_id, count, partition, cta, tmem);
    const int first = partition / (4 / segments()) * part;
    for (int j = 0; j < part; ++j) {
      scales.b_special[first + j] |= scales.b.special[j];
      if (scales.b.poisoned[j]) scales.b_poison[first + j] = 15;
    }
  }
}

void Mma::accumulate(TmemPort& tmem) {
  const int physical_rows = half_lanes() ? 64 : 128;
  for (int cta = 0; cta < ctas(); ++cta)
    for (int row = 0; row < physical_rows; row += kRows) accumulate_rows(cta, row, tmem);
}

// kRows lanes of the accumulator: the columns of their segment.
void Mma::accumulate_rows(int cta, int physical_row, TmemPort& tmem) {
  const int first_row = physical_row % rows_per_cta(), part = columns_per_segment(),
            first = physical_row / rows_per_cta() * part;
  const int first_lane = half_lanes() ? d_cell(first_row, 0).lane : physical_row,
            column = address_column(request_.d_tmem);
  const Operand& a = a_[cta];
  const PartitionScales& scales = scales_[cta][first_lane / 32];
  const bool half = descriptor_.d == Format::kF16, grouped = container_bits(descriptor_.kind) == 4;
  const int count = descriptor_.scales_per_row;

  uint32_t c[kRows][256 + kBlock] = {};
  uint8_t poison[kRows][256 + kBlock] = {};
  double a_scale[kRows][4];
  int16_t a_scale_exponent[kRows][4];
  RowProblem problems[kRows];
  uint32_t* accumulators[kRows];
  int row_of[kRows], rows = 0;
  for (int r = 0; r < kRows; ++r) {
    const int lane = first_lane + r, row = first_row + r,
              a_row = request_.a_in_tmem ? physical_row + r : row;
    if (request_.disable_output_lane[cta * 4 + lane / 32] >> (lane % 32) & 1) continue;
    if (request_.enable_input_d) {
      tmem.read(cta, lane, column, part, c[rows], poison[rows]);
      if (half)
        for (int j = 0; j < part; ++j) c[rows][j] &= 0xFFFF;
    }
    for (int i = 0; i < count; ++i) {
      a_scale[rows][i] = scales.a.value[static_cast<size_t>(i) * scales.a.stride + row];
      a_scale_exponent[rows][i] = scales.a.exponent[static_cast<size_t>(i) * scales.a.stride + row];
    }
    const size_t at = static_cast<size_t>(a_row) * a.row_step;
    problems[rows] = {.k = descriptor_.k,
                      .n = part,
                      .n_stride = b_.k_step,
                      .a = &a.value[at],
                      .a_exponent = &a.exponent[at],
                      .a_lowest_bit = a.lowest_bit[a_row],
                      .a_special = a.special[a_row] || (count && scales.a.special[row]),
                      .b = &b_.value[first],
                      .b_exponent = &b_.exponent[first],
                      .b_lowest_bit = &b_.lowest_bit[first],
                      .b_special = &scales.b_special[first],
                      .scales = count,
                      .a_scale = a_scale[rows],
                      .a_scale_exponent = a_scale_exponent[rows],
                      .b_scale = scales.b.value.data(),
                      .b_scale_exponent = scales.b.exponent.data(),
                      .scale_stride = scales.b.stride,
                      .grouped = grouped,
                      .fraction_bits = model_fraction_bits(grouped),
                      .half_result = half};
    accumulators[rows] = c[rows];
    row_of[rows++] = r;
  }
  if (!rows) return;
  if (descriptor_.kind == Kind::kI8) {
    for (int i = 0; i < rows; ++i)
      dot_row_integer(problems[i].a, problems[i].b, descriptor_.k, part, b_.k_step,
                      descriptor_.saturate, c[i]);
  } else {
    dot_rows(problems, rows, request_.arithmetic, request_.scale_input_d, accumulators);
  }
  for (int i = 0; i < rows; ++i) {
    const int row = first_row + row_of[i],
              a_row = request_.a_in_tmem ? physical_row + row_of[i] : row;
    const bool row_poisoned = a.poisoned[a_row] || (count && scales.a.poisoned[row]);
    merge_poison(part, row_poisoned, half, &scales.b_poison[first], poison[i]);
    tmem.write(cta, first_lane + row_of[i], column, part, c[i], poison[i]);
  }
}

}  // namespace sm100sim::tensorcore

// Every path's products against the scalar model, bit for bit: random and extreme data, every tile
// height, both sources of weights, two and four panels.
#include <cstring>

#include "fp_mode.h"
#include "harness.h"
#include "model.h"
#include "paths_under_test.h"

using namespace megamoe::cpu;

namespace {

uint32_t bits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof(b));
  return b;
}
bool same(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }

struct Case {
  int64_t groups;
  std::vector<model::Row> rows;
  std::vector<uint8_t> codes, scales;  // four panels
};

Case random_case(std::mt19937_64& rng, int rows, int64_t groups,
                 const std::vector<uint8_t>& row_scales,
                 const std::vector<uint8_t>& weight_scales) {
  Case c;
  c.groups = groups;
  c.codes = model::random_bytes(rng, static_cast<size_t>(groups * 4 * 256));
  for (int64_t i = 0; i < groups * 4 * 16; ++i)
    c.scales.push_back(weight_scales[rng() % weight_scales.size()]);
  for (int r = 0; r < rows; ++r) {
    model::Row row;
    row.codes = model::random_bytes(rng, static_cast<size_t>(groups * 32));
    for (uint8_t& code : row.codes) {
      if ((code & 0x7f) == 0x7f) code ^= 1;  // no NaN codes
    }
    for (int64_t g = 0; g < groups; ++g)
      row.scales.push_back(row_scales[rng() % row_scales.size()]);
    c.rows.push_back(std::move(row));
  }
  return c;
}

std::vector<float> multiply(const Path& path, const Case& c, int panels) {
  const int rows = static_cast<int>(c.rows.size());
  const int64_t k = c.groups * 32;
  std::vector<uint8_t> packed(static_cast<size_t>(rows * k * path.element_bytes) + 64);
  uint8_t* base = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
  std::vector<const uint8_t*> codes, scales;
  for (const model::Row& row : c.rows) {
    codes.push_back(row.codes.data());
    scales.push_back(row.scales.data());
  }
  std::vector<Tile> tiles;
  const int count = (rows + path.tile_rows - 1) / path.tile_rows;
  for (int i = 0; i < count; ++i) {
    Tile t{rows * i / count, rows * (i + 1) / count - rows * i / count, true};
    for (int r = t.first; r < t.first + t.rows; ++r) {
      t.scaled = t.scaled && path.scalable(codes[static_cast<size_t>(r)],
                                           scales[static_cast<size_t>(r)], c.groups);
    }
    path.pack_tile(codes.data() + t.first, scales.data() + t.first, c.groups, t.scaled, t.rows,
                   base + t.first * k * path.element_bytes);
    tiles.push_back(t);
  }
  Panels w{};
  w.count = panels;
  for (int n = 0; n < panels; ++n) {
    w.codes[n] = w.ahead[n] = c.codes.data() + n * c.groups * 256;
    w.scales[n] = c.scales.data() + n * c.groups * 16;
  }
  std::vector<float> acc(static_cast<size_t>(rows * kAccColumns), 7.0f);
  const FlushDenormals mode;
  path.multiply(w, {base, tiles.data(), count, rows, scales.data()}, c.groups, acc.data());
  return acc;
}

void compare(const Case& c, int panels, const char* what) {
  for (const Path* path : paths_under_test()) {
    const std::vector<float> acc = multiply(*path, c, panels);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int n = 0; n < panels * 16; ++n) {
        const FlushDenormals mode;
        const float expected =
            model::dot(c.rows[r], c.codes, c.scales, n / 16, n % 16, c.groups, sums_pairs(*path));
        const float found = acc[r * kAccColumns + static_cast<size_t>(n)];
        CHECK(same(found, expected), "%s, %s: row %zu of %zu, column %d: found %a, expected %a",
              path->name, what, r, c.rows.size(), n, static_cast<double>(found),
              static_cast<double>(expected));
      }
    }
  }
}

const std::vector<uint8_t> kUsual = {110, 117, 120, 121, 122, 127, 130};

}  // namespace

TEST(products_of_every_height_equal_the_model) {
  std::mt19937_64 rng(1);
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 24, 29}) {
    compare(random_case(rng, rows, 3, kUsual, kUsual), 4, "usual scales");
  }
}

TEST(products_of_two_panels_equal_the_model) {
  std::mt19937_64 rng(2);
  for (const int rows : {1, 2, 5, 6, 9})
    compare(random_case(rng, rows, 2, kUsual, kUsual), 2, "two panels");
}

TEST(products_of_any_number_of_groups_equal_the_model) {
  std::mt19937_64 rng(3);
  for (const int64_t groups : {1, 2, 4, 5, 7, 8, 9, 10, 16, 17, 30}) {
    compare(random_case(rng, 2, groups, kUsual, kUsual), 4, "groups");
    compare(random_case(rng, 8, groups, kUsual, kUsual), 4, "groups");
  }
}

TEST(extreme_scales_overflow_flush_and_poison_as_defined) {
  std::mt19937_64 rng(4);
  const std::vector<uint8_t> extreme = {0, 1, 60, 67, 71, 127, 176, 187, 190, 253, 254};
  std::vector<uint8_t> with_nan = extreme;
  with_nan.push_back(255);
  for (const int rows : {1, 3, 7, 13}) {
    compare(random_case(rng, rows, 5, extreme, kUsual), 4, "extreme rows");
    compare(random_case(rng, rows, 5, kUsual, extreme), 4, "extreme weights");
    compare(random_case(rng, rows, 5, extreme, extreme), 4, "both extreme");
    compare(random_case(rng, rows, 2, with_nan, with_nan), 2, "NaN scales");
    compare(random_case(rng, rows, 1, {67, 127, 187, 255}, {71, 100, 176}), 4,
            "edges of the bounds");
  }
}

TEST(every_pair_of_codes_multiplies_exactly) {
  // Row i holds E4M3 code first + i alone, against every FP4 code.
  for (int first = 0; first < 256; first += 64) {
    Case c;
    c.groups = 1;
    for (int i = 0; i < 64; ++i) {
      model::Row row;
      row.codes.assign(32, 0);
      row.codes[static_cast<size_t>(i % 32)] = static_cast<uint8_t>(first + i);
      row.scales = {127};
      c.rows.push_back(row);
    }
    c.scales.assign(64, 127);
    for (int i = 0; i < 4 * 256; ++i) c.codes.push_back(static_cast<uint8_t>(i * 37 + i / 16));
    compare(c, 4, "single products");
  }
}

TEST(a_nan_code_poisons_its_row_and_no_other) {
  std::mt19937_64 rng(5);
  Case c = random_case(rng, 9, 2, kUsual, kUsual);
  c.rows[4].codes[33] = 0x7f;
  for (const Path* path : paths_under_test()) {
    const std::vector<float> acc = multiply(*path, c, 4);
    for (size_t r = 0; r < 9; ++r) {
      for (size_t n = 0; n < 64; ++n) {
        CHECK(std::isnan(acc[r * 64 + n]) == (r == 4), "%s: row %zu", path->name, r);
      }
    }
  }
}

// The offset functions at the sizes where 32-bit arithmetic would fail.
#include "harness.h"
#include "layout.h"

using megamoe::cpu::WeightShape;

TEST(largest_layer_has_64_bit_offsets) {
  const WeightShape shape{896, 6144, 7168};
  CHECK(shape.code_bytes() == 19730006016, "found %lld",
        static_cast<long long>(shape.code_bytes()));
  CHECK(shape.scale_bytes() == 1233125376, "found %lld",
        static_cast<long long>(shape.scale_bytes()));
  // The last panel ends where the array ends.
  CHECK(shape.code_offset(895, 383) + shape.groups() * 256 == shape.code_bytes());
  CHECK(shape.scale_offset(895, 383) + shape.groups() * 16 == shape.scale_bytes());
  CHECK(shape.code_offset(300, 7) == (300LL * 384 + 7) * 224 * 256);
}

TEST(offsets_are_dense_and_ordered) {
  const WeightShape shape{3, 64, 96};
  int64_t codes = 0, scales = 0;
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t p = 0; p < 4; ++p) {
      CHECK(shape.code_offset(e, p) == codes);
      CHECK(shape.scale_offset(e, p) == scales);
      codes += 3 * 256;
      scales += 3 * 16;
    }
  }
  CHECK(shape.code_bytes() == codes && shape.scale_bytes() == scales);
}

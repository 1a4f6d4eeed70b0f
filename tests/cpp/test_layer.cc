// The whole layer on each path: a token's bits do not depend on its batch, on threads or on chunks;
// the two targets agree; float32 paths agree with one another bit for bit.
#include <cstring>
#include <limits>

#include "harness.h"
#include "layout.h"
#include "model.h"
#include "moe.h"
#include "paths_under_test.h"
#include "pool.h"

using namespace megamoe::cpu;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Layer {
  int64_t hidden, intermediate, experts;
  std::vector<uint8_t> gate_up, gate_up_scale, down, down_scale;
  std::vector<float> gate_up_bias, down_bias;
};

Layer make_layer(std::mt19937_64& rng, int64_t hidden, int64_t intermediate, int64_t experts,
                 bool bias) {
  Layer l{hidden, intermediate, experts, {}, {}, {}, {}, {}, {}};
  const WeightShape gate_up{experts, 2 * intermediate, hidden}, down{experts, hidden, intermediate};
  l.gate_up = model::random_bytes(rng, static_cast<size_t>(gate_up.code_bytes()));
  l.down = model::random_bytes(rng, static_cast<size_t>(down.code_bytes()));
  l.gate_up_scale = model::random_bytes(rng, static_cast<size_t>(gate_up.scale_bytes()));
  l.down_scale = model::random_bytes(rng, static_cast<size_t>(down.scale_bytes()));
  for (uint8_t& s : l.gate_up_scale) s = static_cast<uint8_t>(118 + s % 6);
  for (uint8_t& s : l.down_scale) s = static_cast<uint8_t>(118 + s % 6);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; bias && i < experts * 2 * intermediate; ++i)
    l.gate_up_bias.push_back(normal(rng));
  for (int64_t i = 0; bias && i < experts * hidden; ++i) l.down_bias.push_back(normal(rng));
  return l;
}

struct Batch {
  int64_t tokens, topk;
  std::vector<uint16_t> x;
  std::vector<int32_t> idx;
  std::vector<float> weights;
};

Batch make_batch(std::mt19937_64& rng, const Layer& l, int64_t tokens, int64_t topk) {
  Batch b{tokens, topk, {}, {}, {}};
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < tokens * l.hidden; ++i) {
    const float f = normal(rng);
    uint32_t u;
    std::memcpy(&u, &f, sizeof(u));
    b.x.push_back(static_cast<uint16_t>(u >> 16));
  }
  for (int64_t i = 0; i < tokens * topk; ++i) {
    const bool skip = rng() % 8 == 0;
    b.idx.push_back(skip ? static_cast<int32_t>(rng()) | INT32_MIN
                         : static_cast<int32_t>(rng() % static_cast<uint64_t>(l.experts)));
    b.weights.push_back(skip ? std::numeric_limits<float>::quiet_NaN() : normal(rng));
  }
  return b;
}

std::vector<uint16_t> run_layer(const Path& path, const Layer& l, const Batch& b,
                                Executor& executor, bool rows = false) {
  Problem p{};
  p.tokens = b.tokens;
  p.topk = b.topk;
  p.hidden = l.hidden;
  p.intermediate = l.intermediate;
  p.experts = l.experts;
  p.x = b.x.data();
  p.topk_idx = b.idx.data();
  p.topk_weights = b.weights.data();
  p.gate_up = l.gate_up.data();
  p.gate_up_scale = l.gate_up_scale.data();
  p.down = l.down.data();
  p.down_scale = l.down_scale.data();
  if (!l.down_bias.empty()) {
    p.gate_up_bias = l.gate_up_bias.data();
    p.down_bias = l.down_bias.data();
  }
  p.activation = {kInf, 1.0f, 0.0f};
  std::vector<uint16_t> y(static_cast<size_t>(b.tokens * l.hidden * (rows ? b.topk : 1)), 0x1234);
  std::vector<uint8_t> q(b.x.size()), scales(b.x.size() / 32);
  if (rows) {
    for (int64_t t = 0; t < b.tokens; ++t) {
      path.quantize_row(p.x + t * l.hidden, l.hidden / 32, q.data() + t * l.hidden,
                        scales.data() + t * (l.hidden / 32));
    }
    p.x = nullptr;
    p.q = q.data();
    p.q_scale = scales.data();
    p.rows = y.data();
  } else {
    p.y = y.data();
  }
  const std::unique_ptr<Scratch> scratch = take_scratch();
  run(p, path, executor, *scratch);
  return y;
}

}  // namespace

TEST(a_token_alone_equals_itself_in_any_batch_and_thread_count) {
  std::mt19937_64 rng(1);
  const Layer l = make_layer(rng, 96, 64, 5, true);
  const Batch all = make_batch(rng, l, 61, 3);
  for (const Path* path : paths_under_test()) {
    Pool many(4, 3), none(1, 0);
    const auto together = run_layer(*path, l, all, many);
    CHECK(together == run_layer(*path, l, all, none), "%s: threads changed bits", path->name);
    for (int64_t t = 0; t < all.tokens; ++t) {
      Batch one{1, 3, {}, {}, {}};
      one.x.assign(all.x.begin() + t * 96, all.x.begin() + (t + 1) * 96);
      one.idx.assign(all.idx.begin() + t * 3, all.idx.begin() + (t + 1) * 3);
      one.weights.assign(all.weights.begin() + t * 3, all.weights.begin() + (t + 1) * 3);
      const auto alone = run_layer(*path, l, one, none);
      CHECK(std::memcmp(alone.data(), together.data() + t * 96, 96 * 2) == 0, "%s: token %lld",
            path->name, static_cast<long long>(t));
    }
  }
}

TEST(float32_paths_agree_bit_for_bit) {
  std::mt19937_64 rng(2);
  const Layer l = make_layer(rng, 160, 96, 3, false);
  const Batch b = make_batch(rng, l, 40, 2);
  Pool pool(2, 1);
  const auto expected = run_layer(kPathPortable, l, b, pool);
  for (const Path* path : paths_under_test()) {
    if (!sums_pairs(*path)) CHECK(run_layer(*path, l, b, pool) == expected, "%s", path->name);
  }
}

TEST(rows_sum_to_the_layer_and_skipped_rows_are_zero) {
  std::mt19937_64 rng(3);
  const Layer l = make_layer(rng, 64, 64, 4, true);
  const Batch b = make_batch(rng, l, 23, 4);
  for (const Path* path : paths_under_test()) {
    Pool pool(3, 2);
    const auto y = run_layer(*path, l, b, pool);
    const auto rows = run_layer(*path, l, b, pool, true);
    for (int64_t t = 0; t < b.tokens; ++t) {
      const uint16_t* valid[32];
      int count = 0;
      for (int64_t k = 0; k < b.topk; ++k) {
        const uint16_t* row = rows.data() + (t * b.topk + k) * 64;
        const int32_t id = b.idx[static_cast<size_t>(t * b.topk + k)];
        if (id >= 0 && id < 4) {
          valid[count++] = row;
        } else {
          for (int h = 0; h < 64; ++h)
            CHECK(row[h] == 0, "%s: token %lld", path->name, static_cast<long long>(t));
        }
      }
      uint16_t sum[64];
      path->combine(valid, count, 64, sum);
      CHECK(std::memcmp(sum, y.data() + t * 64, 128) == 0, "%s: token %lld", path->name,
            static_cast<long long>(t));
    }
  }
}

TEST(many_experts_and_slots) {
  std::mt19937_64 rng(4);
  const Layer l = make_layer(rng, 32, 32, 896, false);
  for (const int64_t topk : {1, 32}) {
    const Batch b = make_batch(rng, l, 70, topk);
    Pool many(8, 3), none(1, 0);
    const Path& path = *paths_under_test().front();
    CHECK(run_layer(path, l, b, many) == run_layer(path, l, b, none), "K = %lld",
          static_cast<long long>(topk));
  }
}

TEST(concurrent_calls_share_one_pool) {
  std::mt19937_64 rng(5);
  const Layer l = make_layer(rng, 64, 32, 4, false);
  const Batch b = make_batch(rng, l, 50, 2);
  const Path& path = *paths_under_test().front();
  Pool none(1, 0);
  const auto expected = run_layer(path, l, b, none);
  std::atomic<int> done{0}, wrong{0};
  Pool pool(2, 2);
  for (int i = 0; i < 32; ++i) {
    pool.schedule([&] {
      if (run_layer(path, l, b, pool) != expected) wrong.fetch_add(1);
      done.fetch_add(1);
    });
  }
  while (done.load() < 32) std::this_thread::yield();
  CHECK(wrong.load() == 0);
}

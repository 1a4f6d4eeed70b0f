// One-dimensional bulk copies and reductions, bulk groups, st.async.

#include "async/copy.h"
#include "async/mbarrier_ops.h"
#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"
#include "tma/box.h"

namespace sm100sim {
namespace {

uint64_t shared_address(const Reg& r, int64_t offset, int lane) {
  return (r.v[lane] + static_cast<uint64_t>(offset)) & 0xffffffff;
}

Place shared_place(Exec& e, uint64_t address, uint64_t bytes, int lane, uint32_t align,
                   bool cluster) {
  return resolve(e, cluster ? Space::kSharedCluster : Space::kShared, address,
                 static_cast<uint32_t>(bytes), lane, align);
}

void check_size(uint64_t bytes, uint64_t unit, int lane) {
  if (bytes % unit != 0 || bytes > 0xffffffff)
    throw Fault(
        "misaligned",
        format("size %llu, a multiple of %llu is accepted", static_cast<unsigned long long>(bytes),
               static_cast<unsigned long long>(unit)),
        lane);
}

enum : uint8_t { kToShared = 1, kSharedToShared = 2, kMulticast = 4, kClusterSpace = 8 };

// a = destination, b = source (offset in aux), c = size, e = mbarrier, list[0] = mask.
Flow bulk_load(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg &dst = e.src(i.a), &src = e.src(i.b), &size = e.src(i.c), &bar = e.src(i.e);
  const bool from_shared = i.flags & kSharedToShared;
  e.need(dst, "the destination of a bulk copy", 4);
  e.need(src, "the source of a bulk copy", from_shared ? 4 : 8);
  e.need(size, "the size of a bulk copy", 4);
  e.need(bar, "the mbarrier of a bulk copy", 4);
  for_lanes(e.mask, [&](int l) {
    const uint64_t bytes = size.v[l] & 0xffffffff;
    check_size(bytes, 16, l);
    if (bytes == 0) return;
    const uint64_t to = shared_address(dst, x.imm[0], l), mbar = shared_address(bar, x.imm[2], l);
    const Place own = shared_place(e, to, bytes, l, 16, i.flags & kClusterSpace);
    const Place signal = resolve(e, Space::kSharedCluster, mbar, 8, l, 8);
    Place from;
    if (from_shared) {
      from = shared_place(e, shared_address(src, x.imm[1], l), bytes, l, 16, false);
    } else {
      const uint64_t address = src.v[l] + static_cast<uint64_t>(x.imm[1]);
      if (address % 16)
        throw Fault("misaligned", "the source of a bulk copy must be 16-byte aligned", l, address);
      from = resolve(e, Space::kGlobal, address, static_cast<uint32_t>(bytes), l, 16);
    }
    std::vector<Segment> segments;
    std::vector<Signal> signals;
    const auto add = [&](const Place& target, Cta* cta) {
      segments.push_back({Segment::kCopy, from, target, bytes});
      signals.push_back({cta, static_cast<uint32_t>(signal.offset), bytes});
    };
    if (i.flags & kMulticast) {
      const Reg& mask = e.src(x.list[0]);
      e.need(mask, "the CTA mask of a multicast", 2);
      const uint32_t m = static_cast<uint32_t>(mask.v[l]) & 0xffff;
      for (uint32_t r = 0; r < 16; ++r) {
        if (!(m >> r & 1)) continue;
        Cta& cta = cta_of_rank(e, r, l, to);
        add({cta.shared.get(), own.offset, &cta}, &cta);
      }
    } else {
      if (signal.cta != own.cta)
        throw Fault("mbarrier", "the mbarrier of a bulk copy must be in the destination's CTA", l,
                    mbar);
      add(own, own.cta);
    }
    if (segments.empty()) return;
    (from_shared ? e.grid.stats.bulk_written : e.grid.stats.bulk_read) += bytes;
    if (!from_shared) count_global(e, *from.block, bytes, false);
    start_load(e, l, "bulk copy (cp.async.bulk)", std::move(segments), std::move(signals));
  });
  return Flow::kNext;
}
void build_bulk_load(Build& b) {
  b.out.fn = bulk_load;
  const bool shared_source = b.get("src") == "shared::cta";
  b.out.flags = static_cast<uint8_t>((shared_source ? kSharedToShared : 0) |
                                     (b.has("multicast::cluster") ? kMulticast : 0) |
                                     (b.get("dst") == "shared::cluster" ? kClusterSpace : 0));
  int64_t offsets[3] = {};
  b.out.a = b.address(0, &offsets[0]);
  b.out.b = b.address(1, &offsets[1]);
  b.out.c = b.value(2, "b32");
  b.out.e = b.address(3, &offsets[2]);
  Extra& x = b.extra();
  std::copy(offsets, offsets + 3, x.imm);
  size_t at = 4;
  if (b.has("multicast::cluster")) x.list.push_back(b.value(at++, "b16"));
  if (b.has("L2::cache_hint")) b.value(at++, "b64");
  if (at != b.count()) b.fail("another number of operands than the qualifiers ask for");
}

void reduce(void* destination, const void* source, int op, int type) {
  tma::reduce_element(static_cast<tma::ReduceOp>(op), static_cast<tma::ReduceType>(type),
                      destination, source);
}

Flow bulk_store(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg &dst = e.src(i.a), &src = e.src(i.b), &size = e.src(i.c);
  e.need(dst, "the destination of a bulk copy", 8);
  e.need(src, "the source of a bulk copy", 4);
  e.need(size, "the size of a bulk copy", 4);
  for_lanes(e.mask, [&](int l) {
    const int first = first_lane(e.mask);
    const bool same =
        dst.v[l] == dst.v[first] && src.v[l] == src.v[first] && size.v[l] == size.v[first];
    if (!(i.flags & 3) && l != first && same &&
        !e.warp.bulk[static_cast<size_t>(first)].open.empty()) {
      const BulkMember shared_store = e.warp.bulk[static_cast<size_t>(first)].open.back();
      e.warp.bulk[static_cast<size_t>(l)].open.push_back(shared_store);  // see tensor_copy.cc
      return;
    }
    const uint64_t bytes = size.v[l] & 0xffffffff;
    check_size(bytes, 16, l);
    if (bytes == 0) return;
    const Place from = shared_place(e, shared_address(src, x.imm[1], l), bytes, l, 16, false);
    const uint64_t address = dst.v[l] + static_cast<uint64_t>(x.imm[0]);
    const Place to = resolve(e, Space::kGlobal, address, static_cast<uint32_t>(bytes), l, 16);
    std::vector<Segment> segments;
    if (i.flags & 2) {  // .cp_mask: bit j of the mask says whether byte j of every 16 is written
      const Reg& mask = e.src(x.list[0]);
      e.need(mask, "the byte mask of a bulk copy", 2);
      for (uint64_t k = 0; k < bytes; ++k) {
        if (mask.v[l] >> (k % 16) & 1)
          segments.push_back({Segment::kCopy,
                              {from.block, from.offset + k, from.cta},
                              {to.block, to.offset + k, nullptr},
                              1});
      }
    } else {
      segments.push_back({Segment::kCopy, from, to, bytes});
    }
    e.grid.stats.bulk_written += bytes;
    count_global(e, *to.block, bytes, true);
    Reduction r;
    if (i.flags & 1)
      r = {reduce, static_cast<int>(x.imm[2]), static_cast<int>(x.imm[3]),
           static_cast<int>(x.imm[4])};
    start_store(
        e, l, i.flags & 1 ? "bulk reduction (cp.reduce.async.bulk)" : "bulk store (cp.async.bulk)",
        std::move(segments), r);
  });
  return Flow::kNext;
}
void store_operands(Build& b) {
  b.out.fn = bulk_store;
  int64_t offsets[2] = {};
  b.out.a = b.address(0, &offsets[0]);
  b.out.b = b.address(1, &offsets[1]);
  b.out.c = b.value(2, "b32");
  Extra& x = b.extra();
  std::copy(offsets, offsets + 2, x.imm);
  size_t at = 3;
  if (b.has("L2::cache_hint")) b.value(at++, "b64");
  if (b.has("cp_mask")) {
    b.out.flags |= 2;
    x.list.push_back(b.value(at++, "b16"));
  }
  if (at != b.count()) b.fail("another number of operands than the qualifiers ask for");
}
void build_reduce(Build& b) {
  static const std::map<std::string, tma::ReduceOp> kOps = {
      {"add", tma::ReduceOp::kAdd}, {"min", tma::ReduceOp::kMin}, {"max", tma::ReduceOp::kMax},
      {"inc", tma::ReduceOp::kInc}, {"dec", tma::ReduceOp::kDec}, {"and", tma::ReduceOp::kAnd},
      {"or", tma::ReduceOp::kOr},   {"xor", tma::ReduceOp::kXor}};
  static const std::map<std::string, tma::ReduceType> kTypes = {
      {"u32", tma::ReduceType::kU32}, {"s32", tma::ReduceType::kS32},
      {"u64", tma::ReduceType::kU64}, {"s64", tma::ReduceType::kS64},
      {"f16", tma::ReduceType::kF16}, {"bf16", tma::ReduceType::kBf16},
      {"f32", tma::ReduceType::kF32}, {"f64", tma::ReduceType::kF64},
      {"b32", tma::ReduceType::kB32}, {"b64", tma::ReduceType::kB64}};
  store_operands(b);
  const tma::ReduceOp op = kOps.at(b.get("op"));
  const tma::ReduceType type = kTypes.at(b.get("type"));
  if (!tma::reduce_legal(op, type))
    b.fail("cp.reduce.async.bulk has no ." + b.get("op") + "." + b.get("type"));
  b.out.flags |= 1;
  Extra& x = b.extra();
  x.imm[2] = static_cast<int64_t>(op);
  x.imm[3] = static_cast<int64_t>(type);
  x.imm[4] = tma::reduce_bytes(type);
}

Flow commit_group(Exec& e, const Instr&) {
  for_lanes(e.mask, [&](int l) {
    BulkGroups& g = e.warp.bulk[static_cast<size_t>(l)];
    g.committed.push_back(std::move(g.open));
    g.open.clear();
  });
  return Flow::kNext;
}
Flow wait_group(Exec& e, const Instr& i) {
  const size_t keep = static_cast<size_t>(i.imm);
  const bool read = i.flags & 1;
  bool pending = false;
  for_lanes(e.mask, [&](int l) {
    BulkGroups& g = e.warp.bulk[static_cast<size_t>(l)];
    const size_t n = g.committed.size() > keep ? g.committed.size() - keep : 0;
    for (size_t k = 0; k < n; ++k) {
      for (const BulkMember& m : g.committed[k]) pending |= read ? !m.read_done() : !m.task->done;
    }
  });
  if (pending) return e.wait(WaitKind::kBulkGroup, &e.cta);
  for_lanes(e.mask, [&](int l) {
    BulkGroups& g = e.warp.bulk[static_cast<size_t>(l)];
    const size_t n = g.committed.size() > keep ? g.committed.size() - keep : 0;
    for (size_t k = 0; k < n; ++k) {
      for (const BulkMember& m : g.committed[k]) race_task_join(e, *m.task, read);
    }
    while (!g.committed.empty()) {
      const bool done = std::all_of(g.committed.front().begin(), g.committed.front().end(),
                                    [](const BulkMember& m) { return m.task->done; });
      if (!done || g.committed.size() <= keep) break;
      g.committed.erase(g.committed.begin());
    }
  });
  return Flow::kNext;
}
void build_wait_group(Build& b) {
  b.out.fn = wait_group;
  b.out.flags = b.has("read") ? 1 : 0;
  if (b.op(0).kind != Operand::kInt) b.fail("the number of groups must be an immediate");
  b.out.imm = b.op(0).imm;
}

Flow prefetch(Exec& e, const Instr& i) {
  e.need(e.src(i.a), "the source of a prefetch");
  return Flow::kNext;
}

// st.async / red.async: one register-sized write to shared::cluster memory that completes on an
// mbarrier of the same CTA.
Flow st_async(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg &a = e.src(i.a), &bar = e.src(i.e);
  e.need(a, "an address", 4);
  e.need(bar, "the mbarrier of st.async", 4);
  const uint32_t bytes = i.bytes, total = bytes * i.count;
  for_lanes(e.mask, [&](int l) {
    const Place to =
        resolve(e, Space::kSharedCluster, shared_address(a, x.imm[0], l), total, l, total);
    const Place signal =
        resolve(e, Space::kSharedCluster, shared_address(bar, x.imm[1], l), 8, l, 8);
    if (signal.cta != to.cta)
      throw Fault("mbarrier", "the mbarrier of st.async must be in the destination's CTA", l,
                  signal.offset);
    live_mbarrier(*signal.cta, static_cast<uint32_t>(signal.offset), l);
    std::array<uint8_t, 32> data{}, poison{};
    for (uint32_t k = 0; k < i.count; ++k) {
      const Reg& r = e.src(x.list[k]);
      std::memcpy(&data[k * bytes], &r.v[l], bytes);
      for (uint32_t j = 0; j < bytes; ++j) poison[k * bytes + j] = r.poison(l) >> j & 1;
    }
    const TaskRef task = make_task(e, "st.async", l);
    mark_destination(e, l, "st.async", {{Segment::kCopy, {}, to, total}}, *task);
    World* world = &e.world;
    Cta* cta = signal.cta;
    const uint32_t offset = static_cast<uint32_t>(signal.offset);
    Task* raw = task.get();
    const uint32_t event_number = e.world.event,
                   thread = e.warp.uid * kLanes + static_cast<uint32_t>(l);
    task->steps.push_back([=] {
      std::memcpy(to.data(), data.data(), total);
      std::memcpy(to.shadow(), poison.data(), total);
      to.block->note_write(to.offset, total, event_number, thread);
      Mbarrier& m = live_mbarrier(*cta, offset);
      race_task_release(*world, *raw, m.released, m.proxied);
      apply(*world, *cta, offset, 0, total, 0, false);
    });
    add_task(e.world, task);
  });
  return Flow::kNext;
}
void build_st_async(Build& b) {
  b.out.fn = st_async;
  const std::string t = b.get("type");
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.count = b.has("vec") ? static_cast<uint8_t>(b.get("vec")[1] - '0') : 1;
  int64_t offsets[2] = {};
  b.out.a = b.address(0, &offsets[0]);
  std::vector<Ref> values = b.list(b.op(1), t, false);
  if (values.size() != b.out.count) b.fail("another number of registers than the vector");
  b.out.e = b.address(2, &offsets[1]);
  Extra& x = b.extra();
  x.list = std::move(values);
  std::copy(offsets, offsets + 2, x.imm);
}

#define TX "<mbarrier::complete_tx::bytes> "
constexpr Form kForms[] = {
    {"cp <async> <bulk> <dst:shared::cluster,shared::cta> <src:global> " TX
     "{multicast::cluster} {L2::cache_hint}",
     4, 6, Class::kBulk, build_bulk_load},
    {"cp <async> <bulk> <dst:shared::cluster> <src:shared::cta> " TX, 4, 4, Class::kBulk,
     build_bulk_load},
    {"cp <async> <bulk> <dst:global> <src:shared::cta> <bulk_group> {L2::cache_hint} {cp_mask}", 3,
     5, Class::kBulk, store_operands},
    {"cp <reduce> <async> <bulk> <dst:global> <src:shared::cta> <bulk_group> {L2::cache_hint} "
     "<op:add,min,max,inc,dec,and,or,xor> {noftz} <type:u32,s32,u64,s64,f16,bf16,f32,f64,b32,b64>",
     3, 4, Class::kBulk, build_reduce},
    {"cp <async> <bulk> <prefetch> <L2> <global> {L2::cache_hint}", 2, 3, Class::kBulk,
     [](Build& b) {
       b.out.fn = prefetch;
       b.out.a = b.address(0, &b.out.imm);
     }},
    {"cp <async> <bulk> <commit_group>", 0, 0, Class::kBulk,
     [](Build& b) { b.out.fn = commit_group; }},
    {"cp <async> <bulk> <wait_group> {read}", 1, 1, Class::kBulk, build_wait_group},
    {"st <async> {weak} {space:shared::cluster} " TX
     "{vec:v2,v4} <type:b32,b64,u32,u64,s32,s64,f32,f64>",
     3, 3, Class::kBulk, build_st_async},
};
#undef TX

}  // namespace

void forms_bulk(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

// Tensor copies (TMA): which bytes move is planned by src/tma from the tensor map; here are the
// operands, the destinations and the barriers that hear of it. PTX ISA "cp.async.bulk.tensor",
// "cp.reduce.async.bulk.tensor".

#include "async/copy.h"
#include "instructions/lanes.h"
#include "tma/box.h"

namespace sm100sim {
namespace {

enum : uint8_t {
  kStore = 1,
  kReduce = 2,
  kMulticast = 4,
  kPair = 8,
  kClusterSpace = 16,
  kPrefetch = 32
};

tma::TensorMap read_map(Exec& e, uint64_t address, int lane) {
  const Place p = resolve(e, Space::kGeneric, address, 128, lane, 64);
  if (shadow_bits(p.shadow(), 128) & kPoison)
    throw Fault("poison", "the tensor map comes from undefined data", lane, address);
  alignas(64) uint8_t bytes[128];
  std::memcpy(bytes, p.data(), 128);
  std::string why;
  const std::optional<tma::TensorMap> map = tma::decode(bytes, &why);
  if (!map) throw Fault("tensor-map", "the 128 bytes are not a tensor map: " + why, lane, address);
  return *map;
}

std::vector<Segment> segments_of(Exec& e, const tma::CopyPlan& plan, Block* shared, Cta* cta,
                                 bool store, int lane) {
  std::vector<Segment> out;
  for (const tma::Run& r : plan.runs) {
    Segment s;
    s.bytes = r.bytes;
    const uint64_t shared_bytes = r.kind == tma::RunKind::kPack6 ? r.bytes / 3 * 4 : r.bytes;
    if (!shared->contains(r.shared, shared_bytes))
      throw Fault("out-of-bounds",
                  format("the box touches shared memory at 0x%x, the CTA has %llu bytes", r.shared,
                         static_cast<unsigned long long>(shared->size)),
                  lane, r.shared);
    const Place inside{shared, r.shared, cta};
    switch (r.kind) {
      case tma::RunKind::kClipped:
        continue;
      case tma::RunKind::kFillZero:
        s.kind = Segment::kZero;
        break;
      case tma::RunKind::kFillNan:
        s.kind = Segment::kPattern;
        break;
      case tma::RunKind::kUndefined:
        s.kind = Segment::kUndefined;
        break;
      case tma::RunKind::kPack6:
        s.kind = Segment::kPack6;
        break;
      case tma::RunKind::kCopy:
        s.kind = Segment::kCopy;
        break;
    }
    if (store) {
      s.from = inside;
      s.to = resolve(e, Space::kGlobal, r.global, r.bytes, lane, 1);
    } else {
      s.to = inside;
      if (s.kind == Segment::kCopy) s.from = resolve(e, Space::kGlobal, r.global, r.bytes, lane, 1);
    }
    out.push_back(s);
  }
  return out;
}

void reduce(void* destination, const void* source, int op, int type) {
  tma::reduce_element(static_cast<tma::ReduceOp>(op), static_cast<tma::ReduceType>(type),
                      destination, source);
}

// a = tensor map, b = shared address, c = mbarrier, extra.list = coordinates, list2 = {mask}.
Flow tensor_copy(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg& map_address = e.src(i.a);
  e.need(map_address, "the address of a tensor map");
  for (const Ref& r : x.list) e.need(e.src(r), "a tensor coordinate", 4);
  if (i.flags & kPrefetch) return Flow::kNext;
  const Reg& shared = e.src(i.b);
  e.need(shared, "the shared address of a tensor copy", 4);
  const bool store = i.flags & kStore;
  if (!store) e.need(e.src(i.c), "the mbarrier of a tensor copy", 4);
  // A whole warp may issue one and the same store (CUTLASS's epilogues do): the same bytes go to
  // the same place once, and every lane may wait for it.
  const auto same = [&](int l, int k) {
    const auto equal = [&](const Ref& r) { return e.src(r).v[l] == e.src(r).v[k]; };
    return equal(i.a) && equal(i.b) && std::all_of(x.list.begin(), x.list.end(), equal);
  };
  const int first = first_lane(e.mask);
  for_lanes(e.mask, [&](int l) {
    if (store && !(i.flags & kReduce) && l != first && same(l, first)) {
      const BulkMember shared_store = e.warp.bulk[static_cast<size_t>(first)].open.back();
      e.warp.bulk[static_cast<size_t>(l)].open.push_back(shared_store);
      return;
    }
    const tma::TensorMap map = read_map(e, map_address.v[l] + static_cast<uint64_t>(x.imm[0]), l);
    const uint64_t at = (shared.v[l] + static_cast<uint64_t>(x.imm[1])) & 0xffffffff;
    tma::TensorCopy copy{};
    copy.direction = i.flags & kReduce ? tma::Direction::kReduce
                     : store           ? tma::Direction::kStore
                                       : tma::Direction::kLoad;
    copy.mode = static_cast<tma::Mode>(i.aux);
    copy.coordinate_count = static_cast<int>(x.list.size());
    for (size_t k = 0; k < x.list.size(); ++k)
      copy.coordinates[k] = static_cast<int32_t>(e.src(x.list[k]).v[l]);
    const Place own =
        resolve(e, i.flags & kClusterSpace ? Space::kSharedCluster : Space::kShared, at, 1, l, 1);
    copy.shared = static_cast<uint32_t>(own.offset);
    if (static_cast<uint8_t>(i.count) != map.rank && copy.mode == tma::Mode::kTile)
      throw Fault("tensor-map",
                  format("a %dd copy with a tensor map of rank %d", i.count, map.rank), l);
    const tma::CopyPlan plan = tma::plan_tensor_copy(map, copy);
    if (!plan.ok()) throw Fault("tma", plan.errors.front(), l, at);
    if (store) {
      Reduction r;
      if (i.flags & kReduce) {
        tma::ReduceType type{};
        std::string why;
        const auto op = static_cast<tma::ReduceOp>(x.imm[3]);
        if (!tma::reduce_type(map.type, op, &type, &why)) throw Fault("tma", why, l, at);
        r = {reduce, static_cast<int>(op), static_cast<int>(type), tma::reduce_bytes(type)};
      }
      std::vector<Segment> segments = segments_of(e, plan, own.block, own.cta, true, l);
      for (const Segment& s : segments) {
        e.grid.stats.tma_written += s.bytes;
        count_global(e, *s.to.block, s.bytes, true);
      }
      start_store(e, l,
                  i.flags & kReduce ? "tensor reduction (cp.reduce.async.bulk.tensor)"
                                    : "tensor store (cp.async.bulk.tensor)",
                  std::move(segments), r);
      return;
    }
    const uint64_t mbar = (e.src(i.c).v[l] + static_cast<uint64_t>(x.imm[2])) & 0xffffffff;
    const Place signal = resolve(e, Space::kSharedCluster, mbar, 8, l, 8);
    std::vector<Segment> segments;
    std::vector<Signal> signals;
    const auto add = [&](Cta& cta) {
      const std::vector<Segment> part = segments_of(e, plan, cta.shared.get(), &cta, false, l);
      segments.insert(segments.end(), part.begin(), part.end());
      Cta* heard = &cta;
      if (i.flags & kPair) {
        const uint32_t parity = signal.cta->rank & 1;
        if ((cta.rank & 1) != parity) heard = &cta_of_rank(e, cta.rank ^ 1, l, mbar);
        if (!(i.flags & kMulticast) && signal.cta->rank / 2 != cta.rank / 2)
          throw Fault("mbarrier", "the mbarrier is neither in the destination CTA nor in its peer",
                      l, mbar);
      } else if (!(i.flags & kMulticast) && signal.cta != &cta) {
        throw Fault("mbarrier",
                    "without .cta_group::2 the mbarrier must be in the destination's CTA", l, mbar);
      }
      signals.push_back({heard, static_cast<uint32_t>(signal.offset), plan.transaction_bytes});
    };
    if (i.flags & kMulticast) {
      const Reg& mask = e.src(x.list2[0]);
      e.need(mask, "the CTA mask of a multicast", 2);
      for (uint32_t r = 0; r < 16; ++r) {
        if (mask.v[l] >> r & 1) add(cta_of_rank(e, r, l, at));
      }
    } else {
      add(*own.cta);
    }
    for (const Segment& s : segments) {
      if (s.kind != Segment::kCopy) continue;
      e.grid.stats.tma_read += s.bytes;
      count_global(e, *s.from.block, s.bytes, false);
    }
    start_load(e, l, "tensor load (cp.async.bulk.tensor)", std::move(segments), std::move(signals),
               plan.fill_pattern, plan.fill_bytes);
  });
  return Flow::kNext;
}

void build_tensor_copy(Build& b) {
  b.out.fn = tensor_copy;
  b.out.count = static_cast<uint8_t>(b.get("dim")[0] - '0');
  const std::string mode = b.get("mode", "tile");
  b.out.aux = static_cast<int32_t>(mode == "tile::gather4"    ? tma::Mode::kGather4
                                   : mode == "tile::scatter4" ? tma::Mode::kScatter4
                                                              : tma::Mode::kTile);
  const bool reduces = b.has("reduce"), prefetches = b.has("prefetch"),
             store = b.get("dst") == "global";
  b.out.flags = static_cast<uint8_t>((store ? kStore : 0) | (reduces ? kReduce : 0) |
                                     (b.has("multicast::cluster") ? kMulticast : 0) |
                                     (b.get("group") == "cta_group::2" ? kPair : 0) |
                                     (b.get("dst") == "shared::cluster" ? kClusterSpace : 0) |
                                     (prefetches ? kPrefetch : 0));
  const size_t map_at = store || prefetches ? 0 : 1;
  const Operand& map = b.op(map_at);
  if (map.kind != Operand::kAddress || map.items.size() != 2)
    b.fail("the tensor operand is [map, {coordinates}]");
  int64_t offsets[3] = {};
  b.out.a = b.address(map_at, &offsets[0]);
  std::vector<Ref> coordinates = b.list(map.items[1], "b32", false);
  const size_t expected = mode == "tile" ? b.out.count : 5;
  if (coordinates.size() != expected)
    b.fail("another number of coordinates than the copy has dimensions");
  size_t at = 1;
  Ref mask;
  if (!prefetches) {
    b.out.b = b.address(store ? 1 : 0, &offsets[1]);
    at = 2;
    if (!store) b.out.c = b.address(at++, &offsets[2]);
    if (b.has("multicast::cluster")) mask = b.value(at++, "b16");
  }
  if (b.has("L2::cache_hint")) b.value(at++, "b64");
  if (at != b.count()) b.fail("another number of operands than the qualifiers ask for");
  Extra& x = b.extra();
  x.list = std::move(coordinates);
  if (mask) x.list2.push_back(mask);
  std::copy(offsets, offsets + 3, x.imm);
  static const std::map<std::string, tma::ReduceOp> kOps = {
      {"add", tma::ReduceOp::kAdd}, {"min", tma::ReduceOp::kMin}, {"max", tma::ReduceOp::kMax},
      {"inc", tma::ReduceOp::kInc}, {"dec", tma::ReduceOp::kDec}, {"and", tma::ReduceOp::kAnd},
      {"or", tma::ReduceOp::kOr},   {"xor", tma::ReduceOp::kXor}};
  if (reduces) x.imm[3] = static_cast<int64_t>(kOps.at(b.get("op")));
}

// tensormap.replace changes one field of a map in memory; cp_fenceproxy publishes a map made in
// shared memory.
Flow replace(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &v = e.src(i.b);
  e.need(a, "the address of a tensor map", i.space == static_cast<uint8_t>(Space::kShared) ? 4 : 8);
  e.need(v, "a field of a tensor map", i.bytes);
  for_lanes(e.mask, [&](int l) {
    uint64_t address = a.v[l] + static_cast<uint64_t>(i.imm);
    if (static_cast<Space>(i.space) == Space::kShared) address &= 0xffffffff;
    const Place p = resolve(e, static_cast<Space>(i.space), address, 128, l, 64);
    check_generic(e, p, 128, true, l, address);
    alignas(64) uint8_t bytes[128];
    std::memcpy(bytes, p.data(), 128);
    std::string why;
    const uint64_t value = i.bytes == 8 ? v.v[l] : v.v[l] & 0xffffffff;
    if (!tma::replace_field(bytes, static_cast<tma::MapField>(i.aux), i.order, value, &why))
      throw Fault("tensor-map", why, l, address);
    std::memcpy(p.data(), bytes, 128);
    note_generic_write(e, p, 128, l);
  });
  event(e.world);
  return Flow::kNext;
}
void build_replace(Build& b) {
  static const std::map<std::string, tma::MapField> kFields = {
      {"global_address", tma::MapField::kGlobalAddress},
      {"rank", tma::MapField::kRank},
      {"box_dim", tma::MapField::kBoxDim},
      {"global_dim", tma::MapField::kGlobalDim},
      {"global_stride", tma::MapField::kGlobalStride},
      {"element_stride", tma::MapField::kElementStride},
      {"elemtype", tma::MapField::kElementType},
      {"interleave_layout", tma::MapField::kInterleave},
      {"swizzle_mode", tma::MapField::kSwizzleMode},
      {"swizzle_atomicity", tma::MapField::kSwizzleAtomicity},
      {"fill_mode", tma::MapField::kFillMode}};
  b.out.fn = replace;
  b.out.aux = static_cast<int32_t>(kFields.at(b.get("field")));
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  const std::string space = b.get("space");
  b.out.space = static_cast<uint8_t>(space.empty()       ? Space::kGeneric
                                     : space == "global" ? Space::kGlobal
                                                         : Space::kShared);
  b.out.a = b.address(0, &b.out.imm);
  if (b.count() == 3) {
    if (b.op(1).kind != Operand::kInt) b.fail("the ordinal must be an immediate");
    b.out.order = static_cast<uint8_t>(b.op(1).imm);
  }
  b.out.b = b.value(b.count() - 1, b.get("type"));
}
Flow publish(Exec& e, const Instr& i) {
  e.require_aligned();
  const int l = first_lane(e.mask);
  const uint64_t to = e.uniform(i.a, "the address of a tensor map", 8),
                 from = e.uniform(i.b, "the address of a tensor map", 4);
  const Place d = resolve(e, Space::kGlobal, to, 128, l, 128),
              s = resolve(e, Space::kShared, from, 128, l, 128);
  check_generic(e, d, 128, true, l, to);
  std::memcpy(d.data(), s.data(), 128);
  for (int k = 0; k < 128; ++k) d.shadow()[k] = s.shadow()[k] & kPoison;
  note_generic_write(e, d, 128, l);
  event(e.world);
  return Flow::kNext;
}
void build_publish(Build& b) {
  int64_t none[2] = {};
  b.out.fn = publish;
  b.out.a = b.address(0, &none[0]);
  b.out.b = b.address(1, &none[1]);
  if (none[0] != 0 || none[1] != 0) b.fail("offsets are not supported here");
}

#define DIM "<dim:1d,2d,3d,4d,5d> "
constexpr Form kForms[] = {
    {"cp <async> <bulk> <tensor> " DIM
     "<dst:shared::cluster,shared::cta> <src:global> {mode:tile,tile::gather4} "
     "<mbarrier::complete_tx::bytes> {group:cta_group::1,cta_group::2} {multicast::cluster} "
     "{L2::cache_hint}",
     3, 5, Class::kBulk, build_tensor_copy},
    {"cp <async> <bulk> <tensor> " DIM
     "<dst:global> <src:shared::cta> {mode:tile,tile::scatter4} <bulk_group> {L2::cache_hint}",
     2, 3, Class::kBulk, build_tensor_copy},
    {"cp <reduce> <async> <bulk> <tensor> " DIM
     "<dst:global> <src:shared::cta> <op:add,min,max,inc,dec,and,or,xor> {mode:tile} <bulk_group> "
     "{L2::cache_hint}",
     2, 3, Class::kBulk, build_tensor_copy},
    {"cp <async> <bulk> <prefetch> <tensor> " DIM
     "<L2> <src:global> {mode:tile,tile::gather4} {L2::cache_hint}",
     1, 2, Class::kBulk, build_tensor_copy},
    {"tensormap <replace> <tile> "
     "<field:global_address,rank,box_dim,global_dim,global_stride,element_stride,elemtype,"
     "interleave_layout,swizzle_mode,swizzle_atomicity,fill_mode> "
     "{space:global,shared,shared::cta} <b1024> <type:b32,b64>",
     2, 3, Class::kBulk, build_replace},
    {"tensormap <cp_fenceproxy> <dst:global> <src:shared,shared::cta> <kind:tensormap::generic> "
     "<sem:release> <scope:@scope> <sync> <aligned>",
     3, 3, Class::kBulk, build_publish},
};
#undef DIM

}  // namespace

void forms_tensor_copy(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

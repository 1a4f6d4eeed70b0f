// The tensor core: tcgen05.mma, cp, shift and commit. All are issued by one thread and happen
// later, in the order that thread issued them; arithmetic and operand walks are src/tensorcore.

#include "async/copy.h"
#include "async/mbarrier_ops.h"
#include "async/tmem_work.h"
#include "checks/race.h"
#include "instructions/lanes.h"
#include "machine/link.h"
#include "memory/access.h"
#include "tensorcore/copy.h"
#include "tensorcore/mma.h"

namespace sm100sim {
namespace {

namespace tc = tensorcore;

[[noreturn]] void refuse(const tc::Errors& errors, int lane) {
  std::string all;
  for (const std::string& s : errors) all += (all.empty() ? "" : "; ") + s;
  throw Fault("descriptor", all, lane);
}

/// Holds the shared operands against writers and checks the proxy rule for what ordinary stores
/// have written.
void hold_shared(Exec& e, int lane, const char* what, const Group& g,
                 const std::vector<tc::SharedRange>& ranges, Task& task) {
  for (const tc::SharedRange& r : ranges) {
    Block& b = *g.ctas[r.cta]->shared;
    if (!b.contains(r.address, r.bytes))
      throw Fault("out-of-bounds",
                  format("%s reads shared memory at 0x%x to 0x%x, CTA %u has %llu bytes", what,
                         r.address, r.address + r.bytes, g.ctas[r.cta]->linear,
                         static_cast<unsigned long long>(b.size)),
                  lane, r.address);
    const Place p{&b, r.address, g.ctas[r.cta]};
    const uint8_t bits = shadow_bits(p.shadow(), r.bytes);
    if (bits & kInFlight)
      throw Fault("in-flight",
                  std::string(what) +
                      " reads shared memory that an asynchronous operation is still writing: its "
                      "completion has not been waited for",
                  lane, r.address);
    if (bits & kBarrier)
      throw Fault("mbarrier", std::string(what) + " reads the bytes of an mbarrier", lane,
                  r.address);
    check_async(e, p, r.bytes, false, lane, what);
    if (e.world.races) race_async(e, task, p, r.bytes, false, lane);
    task.holds.push_back({&b, r.address, r.bytes, false});
  }
}

/// Puts the task behind the thread's earlier ones of this cta_group.
void enqueue(Exec& e, int lane, int cta_group, const TaskRef& task) {
  std::vector<TaskRef>& open = e.warp.tensor_open[{lane, cta_group}];
  std::erase_if(open, [](const TaskRef& t) { return t->done; });
  if (!open.empty()) task->after.push_back(open.back());
  open.push_back(task);
  race_tensor_issue(e, lane, cta_group, *task);
  add_task(e.world, task);
}

// a, b = descriptors (or A's address), c = instruction descriptor, e = scale/enable predicate in
// d2; d = accumulator address. list[0..1] = scale addresses, list2 = disable-output-lane words.
// imm[0] = scale-input-d, imm[1..4] = address offsets.
Flow mma(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const bool block_scaled = !x.list.empty();
  e.need(e.src(i.d), "the accumulator address", 4);
  e.need(e.src(i.a), "operand A's descriptor", i.flags & 2 ? 4 : 8);
  e.need(e.src(i.b), "operand B's descriptor", 8);
  e.need(e.src(i.c), "the instruction descriptor", 4);
  const uint32_t enable = i.d2 ? e.pred(i.d2, e.mask, true) : e.mask;
  for_lanes(e.mask, [&](int l) {
    tc::MmaRequest q;
    q.context.kind = static_cast<tc::Kind>(i.order);
    q.context.cta_group = i.aux;
    q.context.scale_vector = static_cast<tc::ScaleVector>(i.scope);
    q.context.weight_stationary = i.flags & 4;
    q.context.arch_specific = e.program->module->text.target.back() == 'a';
    q.d_tmem = static_cast<uint32_t>(e.src(i.d).v[l]) + static_cast<uint32_t>(x.imm[1]);
    q.a_in_tmem = i.flags & 2;
    q.a = e.src(i.a).v[l] + (q.a_in_tmem ? static_cast<uint64_t>(x.imm[2]) : 0);
    if (q.a_in_tmem) q.a &= 0xffffffff;
    q.b = e.src(i.b).v[l];
    q.instruction = static_cast<uint32_t>(e.src(i.c).v[l]);
    if (block_scaled) {
      e.need(e.src(x.list[0]), "the address of A's scales", 4);
      e.need(e.src(x.list[1]), "the address of B's scales", 4);
      q.scale_a_tmem =
          static_cast<uint32_t>(e.src(x.list[0]).v[l]) + static_cast<uint32_t>(x.imm[3]);
      q.scale_b_tmem =
          static_cast<uint32_t>(e.src(x.list[1]).v[l]) + static_cast<uint32_t>(x.imm[4]);
    }
    q.enable_input_d = enable >> l & 1;
    q.scale_input_d = static_cast<int>(x.imm[0]);
    for (size_t k = 0; k < x.list2.size(); ++k) {
      e.need(e.src(x.list2[k]), "the disable-output-lane mask", 4);
      q.disable_output_lane[k] = static_cast<uint32_t>(e.src(x.list2[k]).v[l]);
    }
    q.arithmetic = e.options().exact_mma ? tc::Arithmetic::kExact : tc::Arithmetic::kModel;
    auto op = std::make_shared<tc::Mma>(q);
    if (!op->errors().empty()) refuse(op->errors(), l);
    const Group g = group_of(e, i.aux, l);
    std::vector<tc::SharedRange> shared;
    std::vector<tc::TmemRect> rects;
    op->footprint(&shared, &rects);
    const TaskRef task = make_task(e, "tcgen05.mma", l);
    hold_shared(e, l, "tcgen05.mma", g, shared, *task);
    enter_tmem(e, l, TmemActor::kMma, g, rects, task);
    e.grid.stats.mma_macs += op->multiply_adds();
    ++e.grid.stats.mma_instructions;
    World* world = &e.world;
    Warp* warp = &e.warp;
    Task* raw = task.get();
    task->steps.push_back([=] {
      MachineShared port(g);
      MachineTmem tmem(g);
      op->fetch(port, tmem);
      op->accumulate(tmem);
      leave_tmem(*world, g, rects, warp, l, raw);
    });
    enqueue(e, l, i.aux, task);
  });
  return Flow::kNext;
}

void build_mma(Build& b) {
  static const std::map<std::string, tc::Kind> kKinds = {
      {"kind::f16", tc::Kind::kF16},           {"kind::tf32", tc::Kind::kTf32},
      {"kind::f8f6f4", tc::Kind::kF8f6f4},     {"kind::i8", tc::Kind::kI8},
      {"kind::mxf8f6f4", tc::Kind::kMxf8f6f4}, {"kind::mxf4", tc::Kind::kMxf4},
      {"kind::mxf4nvf4", tc::Kind::kMxf4nvf4}};
  static const std::map<std::string, tc::ScaleVector> kVectors = {
      {"", tc::ScaleVector::kDefault},         {"scale_vec::1X", tc::ScaleVector::k1X},
      {"scale_vec::2X", tc::ScaleVector::k2X}, {"scale_vec::4X", tc::ScaleVector::k4X},
      {"block32", tc::ScaleVector::kBlock32},  {"block16", tc::ScaleVector::kBlock16}};
  const tc::Kind kind = kKinds.at(b.get("kind"));
  const bool scaled = b.has("block_scale");
  if (scaled != tc::block_scaled(kind))
    b.fail(scaled ? "this kind has no .block_scale" : "this kind needs .block_scale");
  b.out.fn = mma;
  b.out.order = static_cast<uint8_t>(kind);
  b.out.scope = static_cast<uint8_t>(kVectors.at(b.get("vector")));
  b.out.aux = b.get("group").back() - '0';
  b.out.flags =
      static_cast<uint8_t>((b.op(1).kind == Operand::kAddress ? 2 : 0) | (b.has("ws") ? 4 : 0));
  int64_t offsets[5] = {};
  b.out.d = b.address(0, &offsets[1]);
  b.out.a = b.out.flags & 2 ? b.address(1, &offsets[2]) : b.value(1, "b64");
  b.out.b = b.value(2, "b64");
  b.out.c = b.value(3, "b32");
  std::vector<Ref> scales, lanes;
  size_t at = 4;
  if (scaled) {
    scales.push_back(b.address(at++, &offsets[3]));
    scales.push_back(b.address(at++, &offsets[4]));
  } else if (!b.has("ws") && b.count() > at && b.op(at).kind == Operand::kVector) {
    lanes = b.list(b.op(at++), "b32", false);
    if (lanes.size() != 4u * static_cast<size_t>(b.out.aux))
      b.fail("the disable-output-lane mask has 4 registers per CTA of the group");
  }
  b.out.d2 = b.pred(at++);
  if (b.count() > at) {
    if (b.has("ws")) b.fail("the zero-column mask of .ws is not supported");
    if (b.op(at).kind != Operand::kInt) b.fail("scale-input-d must be an immediate");
    if (kind != tc::Kind::kF16 && kind != tc::Kind::kTf32)
      b.fail("scale-input-d exists for kind::f16 and kind::tf32 only");
    offsets[0] = b.op(at++).imm;
    if (offsets[0] < 0 || offsets[0] > 15) b.fail("scale-input-d must be 0 to 15");
  }
  if (b.count() > at) b.fail("one operand too many");
  Extra& x = b.extra();
  x.list = std::move(scales);
  x.list2 = std::move(lanes);
  std::copy(offsets, offsets + 5, x.imm);
  b.program.uses_tcgen05 = true;
}

Flow copy(Exec& e, const Instr& i) {
  e.need(e.src(i.a), "a tensor memory address", 4);
  e.need(e.src(i.b), "a matrix descriptor", 8);
  for_lanes(e.mask, [&](int l) {
    tc::TmemCopy c{};
    c.shape = static_cast<tc::CopyShape>(i.order);
    c.source = static_cast<tc::CopySource>(i.scope);
    c.address = static_cast<uint32_t>(e.src(i.a).v[l] + static_cast<uint64_t>(i.imm));
    c.descriptor = e.src(i.b).v[l];
    const tc::Errors errors = tc::check(c);
    if (!errors.empty()) refuse(errors, l);
    const Group g = group_of(e, i.aux, l);
    std::vector<tc::SharedRange> shared;
    std::vector<tc::TmemRect> rects;
    for (int k = 0; k < g.size; ++k) tc::footprint(c, k, &shared, &rects);
    const TaskRef task = make_task(e, "tcgen05.cp", l);
    hold_shared(e, l, "tcgen05.cp", g, shared, *task);
    enter_tmem(e, l, TmemActor::kCopy, g, rects, task);
    World* world = &e.world;
    Warp* warp = &e.warp;
    Task* raw = task.get();
    task->steps.push_back([=] {
      MachineShared port(g);
      MachineTmem tmem(g);
      for (int k = 0; k < g.size; ++k) tc::run(c, k, port, tmem);
      leave_tmem(*world, g, rects, warp, l, raw);
    });
    enqueue(e, l, i.aux, task);
  });
  return Flow::kNext;
}
void build_copy(Build& b) {
  const std::string shape = b.get("shape"), warpx = b.get("warpx"), half = b.get("half");
  b.out.fn = copy;
  tc::CopyShape s;
  const std::string spelled = shape + (warpx.empty() ? "" : "." + warpx);
  if (spelled == "128x256b")
    s = tc::CopyShape::k128x256b;
  else if (spelled == "4x256b")
    s = tc::CopyShape::k4x256b;
  else if (spelled == "128x128b")
    s = tc::CopyShape::k128x128b;
  else if (spelled == "64x128b.warpx2::02_13")
    s = tc::CopyShape::k64x128bWarpx2_02_13;
  else if (spelled == "64x128b.warpx2::01_23")
    s = tc::CopyShape::k64x128bWarpx2_01_23;
  else if (spelled == "32x128b.warpx4")
    s = tc::CopyShape::k32x128bWarpx4;
  else
    b.fail("tcgen05.cp has no shape ." + spelled);
  b.out.order = static_cast<uint8_t>(s);
  const std::string source = b.get("source");
  b.out.scope = static_cast<uint8_t>(source == "b6x16_p32"   ? tc::CopySource::kB6x16P32
                                     : source == "b4x16_p64" ? tc::CopySource::kB4x16P64
                                                             : tc::CopySource::kPlain);
  b.out.aux = b.get("group").back() - '0';
  b.out.a = b.address(0, &b.out.imm);
  b.out.b = b.value(1, "b64");
}

Flow shift(Exec& e, const Instr& i) {
  e.need(e.src(i.a), "a tensor memory address", 4);
  for_lanes(e.mask, [&](int l) {
    const uint32_t address = static_cast<uint32_t>(e.src(i.a).v[l] + static_cast<uint64_t>(i.imm));
    const tc::Errors errors = tc::check_shift(address);
    if (!errors.empty()) refuse(errors, l);
    const Group g = group_of(e, i.aux, l);
    std::vector<tc::TmemRect> rects;
    for (int k = 0; k < g.size; ++k)
      rects.push_back({k, tc::address_lane(address), 32, tc::address_column(address), 8, true});
    const TaskRef task = make_task(e, "tcgen05.shift", l);
    enter_tmem(e, l, TmemActor::kCopy, g, rects, task);
    World* world = &e.world;
    Warp* warp = &e.warp;
    Task* raw = task.get();
    task->steps.push_back([=] {
      MachineTmem tmem(g);
      for (int k = 0; k < g.size; ++k) tc::run_shift(address, k, tmem);
      leave_tmem(*world, g, rects, warp, l, raw);
    });
    enqueue(e, l, i.aux, task);
  });
  return Flow::kNext;
}

// An arrival on the barrier (and its copies in the CTAs of the mask) once the thread's earlier
// operations of this cta_group are done.
Flow commit(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  e.need(a, "the address of an mbarrier", static_cast<Space>(i.space) == Space::kGeneric ? 8 : 4);
  for_lanes(e.mask, [&](int l) {
    uint64_t address = a.v[l] + static_cast<uint64_t>(i.imm);
    if (static_cast<Space>(i.space) != Space::kGeneric) address &= 0xffffffff;
    const Place p = resolve(e, static_cast<Space>(i.space), address, 8, l, 8);
    if (p.cta == nullptr)
      throw Fault("mbarrier", "the address of an mbarrier is not in shared memory", l, address);
    std::vector<Cta*> targets;
    if (i.b) {
      const Reg& mask = e.src(i.b);
      e.need(mask, "the CTA mask of a multicast", 2);
      for (uint32_t r = 0; r < 16; ++r) {
        if (mask.v[l] >> r & 1) targets.push_back(&cta_of_rank(e, r, l, address));
      }
    } else {
      targets.push_back(p.cta);
    }
    const uint32_t offset = static_cast<uint32_t>(p.offset);
    for (Cta* cta : targets) live_mbarrier(*cta, offset, l);
    const TaskRef task = make_task(e, "tcgen05.commit", l);
    std::vector<TaskRef>& open = e.warp.tensor_open[{l, i.aux}];
    std::erase_if(open, [](const TaskRef& t) { return t->done; });
    task->after = open;
    race_commit(e, l, i.aux, *task);
    World* world = &e.world;
    Task* raw = task.get();
    task->steps.push_back([=] {
      for (Cta* cta : targets) {
        Mbarrier& m = live_mbarrier(*cta, offset);
        race_task_release(*world, *raw, m.released, m.proxied, true);
        apply(*world, *cta, offset, 0, 0, 1, false);
      }
    });
    e.warp.before_fence[static_cast<size_t>(l)] = ++e.world.event;  // commit implies it
    add_task(e.world, task);
  });
  return Flow::kNext;
}
void build_commit(Build& b) {
  b.out.fn = commit;
  b.out.aux = b.get("group").back() - '0';
  b.out.space =
      static_cast<uint8_t>(b.has("shared::cluster") ? Space::kSharedCluster : Space::kGeneric);
  b.out.a = b.address(0, &b.out.imm);
  if (b.has("multicast::cluster") != (b.count() == 2))
    b.fail("a CTA mask goes with .multicast::cluster");
  if (b.count() == 2) b.out.b = b.value(1, "b16");
}

#define GROUP "<group:cta_group::1,cta_group::2> "
#define COLLECTOR \
  "{collector:collector::a::fill,collector::a::use,collector::a::lastuse,collector::a::discard} "
constexpr Form kForms[] = {
    {"tcgen05 <mma> " GROUP "<kind:kind::f16,kind::tf32,kind::f8f6f4,kind::i8> " COLLECTOR, 5, 7,
     Class::kTensorCore, build_mma},
    {"tcgen05 <mma> <ws> <group:cta_group::1> <kind:kind::f16,kind::tf32,kind::f8f6f4,kind::i8> "
     "{collector:collector::b0::fill,collector::b0::use,collector::b0::lastuse,collector::b0::"
     "discard,collector::b1::fill,collector::b1::use,collector::b1::lastuse,collector::b1::discard,"
     "collector::b2::fill,collector::b2::use,collector::b2::lastuse,collector::b2::discard,"
     "collector::b3::fill,collector::b3::use,collector::b3::lastuse,collector::b3::discard}",
     5, 6, Class::kTensorCore, build_mma},
    {"tcgen05 <mma> " GROUP "<kind:kind::mxf8f6f4,kind::mxf4,kind::mxf4nvf4> <block_scale> "
     "{vector:scale_vec::1X,scale_vec::2X,scale_vec::4X,block16,block32} " COLLECTOR,
     7, 7, Class::kTensorCore, build_mma},
    {"tcgen05 <cp> " GROUP
     "<shape:128x256b,4x256b,128x128b,64x128b,32x128b> {warpx:warpx2::02_13,warpx2::01_23,warpx4} "
     "{dst:b8x16} {source:b6x16_p32,b4x16_p64}",
     2, 2, Class::kTensorCore, build_copy},
    {"tcgen05 <shift> " GROUP "<down>", 1, 1, Class::kTensorCore,
     [](Build& b) {
       b.out.fn = shift;
       b.out.aux = b.get("group").back() - '0';
       b.out.a = b.address(0, &b.out.imm);
     }},
    {"tcgen05 <commit> " GROUP
     "<mbarrier::arrive::one> {shared::cluster} {multicast::cluster} <type:b64>",
     1, 2, Class::kTensorCore, build_commit},
};
#undef GROUP
#undef COLLECTOR

}  // namespace

void forms_tensor_core(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

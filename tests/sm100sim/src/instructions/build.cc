// Operands: registers, immediates, symbols, addresses, vectors, and what a builder may ask of them.

#include <cstring>

#include "instructions/table.h"
#include "machine/link.h"

namespace sm100sim {
namespace {

const std::map<std::string, Special>& specials() {
  static const std::map<std::string, Special> kNames = {
      {"%tid.x", Special::kTidX},
      {"%tid.y", Special::kTidY},
      {"%tid.z", Special::kTidZ},
      {"%ntid.x", Special::kNtidX},
      {"%ntid.y", Special::kNtidY},
      {"%ntid.z", Special::kNtidZ},
      {"%ctaid.x", Special::kCtaidX},
      {"%ctaid.y", Special::kCtaidY},
      {"%ctaid.z", Special::kCtaidZ},
      {"%nctaid.x", Special::kNctaidX},
      {"%nctaid.y", Special::kNctaidY},
      {"%nctaid.z", Special::kNctaidZ},
      {"%laneid", Special::kLaneid},
      {"%warpid", Special::kWarpid},
      {"%nwarpid", Special::kNwarpid},
      {"%clusterid.x", Special::kClusteridX},
      {"%clusterid.y", Special::kClusteridY},
      {"%clusterid.z", Special::kClusteridZ},
      {"%nclusterid.x", Special::kNclusteridX},
      {"%nclusterid.y", Special::kNclusteridY},
      {"%nclusterid.z", Special::kNclusteridZ},
      {"%cluster_ctaid.x", Special::kClusterCtaidX},
      {"%cluster_ctaid.y", Special::kClusterCtaidY},
      {"%cluster_ctaid.z", Special::kClusterCtaidZ},
      {"%cluster_nctaid.x", Special::kClusterNctaidX},
      {"%cluster_nctaid.y", Special::kClusterNctaidY},
      {"%cluster_nctaid.z", Special::kClusterNctaidZ},
      {"%cluster_ctarank", Special::kClusterCtarank},
      {"%cluster_nctarank", Special::kClusterNctarank},
      {"%is_explicit_cluster", Special::kIsExplicitCluster},
      {"%smid", Special::kSmid},
      {"%nsmid", Special::kNsmid},
      {"%gridid", Special::kGridid},
      {"%lanemask_eq", Special::kLanemaskEq},
      {"%lanemask_lt", Special::kLanemaskLt},
      {"%lanemask_le", Special::kLanemaskLe},
      {"%lanemask_gt", Special::kLanemaskGt},
      {"%lanemask_ge", Special::kLanemaskGe},
      {"%dynamic_smem_size", Special::kDynamicSmemSize},
      {"%total_smem_size", Special::kTotalSmemSize},
      {"%aggr_smem_size", Special::kAggrSmemSize},
      {"%reserved_smem_offset_begin", Special::kZero},
      {"%reserved_smem_offset_end", Special::kReservedSmemOffset},
      {"%clock", Special::kClock},
      {"%clock64", Special::kClock64},
      {"%clock_hi", Special::kClockHi},
      {"%globaltimer", Special::kGlobaltimer},
      {"%globaltimer_lo", Special::kGlobaltimerLo},
      {"%globaltimer_hi", Special::kGlobaltimerHi},
      {"WARP_SZ", Special::kWarpSize}};
  return kNames;
}

bool is_float(const std::string& t) { return t[0] == 'f' && t.find('x') == std::string::npos; }

Ref special_ref(Special s) {
  Ref r;
  r.kind = Ref::kSpecial;
  r.index = static_cast<int32_t>(s);
  return r;
}

}  // namespace

void Build::fail(const std::string& message) const {
  throw PtxError("PTX line " + std::to_string(st.where.ptx) + ": " + message + ": `" + st.text +
                 "`");
}

const Operand& Build::op(size_t i) const {
  if (i >= st.operands.size()) fail("operand " + std::to_string(i + 1) + " is missing");
  return st.operands[i];
}

Ref Build::constant(uint64_t bits, int) {
  Ref r;
  r.kind = Ref::kConst;
  auto [it, fresh] = program.constant_index.emplace(std::make_pair(bits, 0),
                                                    static_cast<int>(program.constants.size()));
  if (fresh) {
    Reg value{};
    for (uint64_t& v : value.v) v = bits;
    program.constants.push_back(value);
  }
  r.index = it->second;
  return r;
}

Ref Build::value(const Operand& o, const std::string& type) {
  const int bytes = type_bytes(type);
  const uint64_t keep = bytes >= 8 || bytes == 0 ? ~0ull : (1ull << (8 * bytes)) - 1;
  switch (o.kind) {
    case Operand::kReg: {
      if (o.is_special()) {
        const auto it = specials().find(o.member.empty() ? o.name : o.name + "." + o.member);
        if (it == specials().end())
          fail("unknown special register " + o.name + (o.member.empty() ? "" : "." + o.member));
        return special_ref(it->second);
      }
      const RegDecl& decl = program.source->regs[static_cast<size_t>(o.reg)];
      if (decl.type == "pred")
        fail("predicate " + decl.name + " where a ." + type + " value is needed");
      if (type_bytes(decl.type) < bytes)
        fail("register " + decl.name + " is ." + decl.type + ", narrower than ." + type);
      Ref r;
      r.kind = Ref::kReg;
      r.index = program.slot_of_reg[static_cast<size_t>(o.reg)];
      return r;
    }
    case Operand::kInt:
      if (is_float(type)) {
        const double d = static_cast<double>(o.imm);
        const float f = static_cast<float>(d);
        uint64_t bits = 0;
        std::memcpy(&bits, bytes == 8 ? static_cast<const void*>(&d) : &f,
                    static_cast<size_t>(bytes));
        return constant(bits);
      }
      return constant(static_cast<uint64_t>(o.imm) & keep);
    case Operand::kFloat32:
    case Operand::kFloat64: {
      const bool narrow = o.kind == Operand::kFloat32;
      if (bytes == 4 && !narrow) {
        double d;
        std::memcpy(&d, &o.imm, 8);
        const float f = static_cast<float>(d);
        uint32_t bits;
        std::memcpy(&bits, &f, 4);
        return constant(bits);
      }
      if (bytes == 8 && narrow && type == "f64") {
        float f;
        std::memcpy(&f, &o.imm, 4);
        const double d = f;
        uint64_t bits;
        std::memcpy(&bits, &d, 8);
        return constant(bits);
      }
      return constant(static_cast<uint64_t>(o.imm) & keep);
    }
    case Operand::kSymbol:
      if (o.name == "WARP_SZ") return special_ref(Special::kWarpSize);
      fail("symbol `" + o.name + "` cannot be used as a value here (mov takes addresses)");
    default:
      fail("a register or immediate is needed");
  }
}

Ref Build::dest(const Operand& o, const std::string& type) {
  if (o.kind == Operand::kSink) return {};
  if (o.kind != Operand::kReg || o.is_special()) fail("the destination must be a register");
  return value(o, type);
}

Ref Build::pred(const Operand& o) {
  Ref r;
  if (o.kind == Operand::kInt) {
    r.kind = Ref::kConst;
    r.index = o.imm != 0;
    return r;
  }
  if (o.kind != Operand::kReg || o.is_special() ||
      program.source->regs[static_cast<size_t>(o.reg)].type != "pred")
    fail("a predicate is needed");
  r.kind = Ref::kPred;
  r.negated = o.negated;
  r.index = program.slot_of_reg[static_cast<size_t>(o.reg)];
  return r;
}

Ref Build::pred_dest(const Operand& o) {
  if (o.kind == Operand::kSink) return {};
  if (o.negated) fail("a destination predicate cannot be negated");
  return pred(o);
}

std::vector<Ref> Build::list(const Operand& o, const std::string& type, bool destination) {
  std::vector<Ref> out;
  if (o.kind == Operand::kVector) {
    for (const Operand& item : o.items)
      out.push_back(destination ? dest(item, type) : value(item, type));
  } else {
    out.push_back(destination ? dest(o, type) : value(o, type));
  }
  return out;
}

Extra& Build::extra() {
  if (out.extra < 0) {
    out.extra = static_cast<int32_t>(program.extras.size());
    program.extras.emplace_back();
  }
  return program.extras[static_cast<size_t>(out.extra)];
}

Ref Build::address(const Operand& o, int64_t* offset) {
  const Operand& base = o.kind == Operand::kAddress ? o.items.at(0) : o;
  *offset += o.kind == Operand::kAddress ? o.imm : o.imm * (o.kind == Operand::kSymbol);
  if (base.kind == Operand::kReg) {
    return value(base, "b32");
  }
  if (base.kind == Operand::kInt) {
    *offset += base.imm;
    return constant(0);
  }
  if (base.kind != Operand::kSymbol) fail("an address is a register or symbol with an offset");
  // Parameters first: they may shadow nothing else, and are the most common.
  const auto& params = program.source->params;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == base.name && program.entry) {
      *offset += program.params[i].offset;
      return constant(kParamWindow);
    }
  }
  const auto local = program.local_offset.find(base.name);
  if (local != program.local_offset.end()) {
    *offset += local->second;
    out.flags |= 0x80;  // relative to the frame's local memory
    return constant(0);
  }
  const auto shared = module.shared.find(base.name);
  if (shared != module.shared.end()) {
    *offset += shared->second.offset;
    return special_ref(shared->second.dynamic ? Special::kDynamicShared : Special::kSmemBase);
  }
  const auto global = module.globals.find(base.name);
  if (global != module.globals.end()) return constant(global->second->base);
  fail("`" + base.name + "` is not a variable known here");
}

int Build::label(const Operand& o) {
  if (o.kind != Operand::kSymbol) fail("a label is needed");
  const int at = program.source->find_label(st.scope, o.name);
  if (at < 0) fail("label `" + o.name + "` is not defined here");
  return at;
}

}  // namespace sm100sim

// See link.h. Layout of shared memory: 1 KiB reserved by the system, module-level variables, those
// of device functions, those of the kernel, then the dynamic part at the largest alignment any
// `extern .shared` asks for.

#include "machine/link.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "instructions/table.h"
#include "machine/machine.h"

namespace sm100sim {
namespace {

uint32_t align_up(uint64_t v, uint64_t a) { return static_cast<uint32_t>((v + a - 1) / a * a); }

void place_shared(ModuleImage& m, const Variable& v, uint32_t& end) {
  if (v.is_extern || v.size == 0) {
    m.dynamic_align = std::max(m.dynamic_align, static_cast<uint32_t>(v.align));
    m.shared[v.name] = {0, 0, true};
    return;
  }
  const uint32_t at = align_up(end, v.align);
  m.shared[v.name] = {at, static_cast<uint32_t>(v.size), false};
  end = at + static_cast<uint32_t>(v.size);
}

void place_globals(World& world, ModuleImage& m) {
  for (const Variable& v : m.text.variables) {
    if (v.space == "shared") continue;
    if (v.is_extern)
      throw PtxError("PTX line " + std::to_string(v.where.ptx) + ": `.extern` variable " + v.name +
                     " is defined nowhere; link the object first");
    Block* b = world.memory.allocate(m.device, std::max<uint64_t>(v.size, 1),
                                     std::max<uint64_t>(v.align, 16), "variable " + v.name);
    std::memset(b->data, 0, b->size);
    std::memset(b->shadow.get(), v.space == "const" ? kReadOnly : 0, b->size);
    std::copy(v.init.begin(), v.init.end(), b->data);
    m.globals[v.name] = b;
  }
  for (const Variable& v : m.text.variables) {
    for (const Variable::Fixup& f : v.fixups) {
      const auto it = m.globals.find(f.symbol);
      if (it == m.globals.end())
        throw PtxError("PTX line " + std::to_string(v.where.ptx) + ": initialiser of " + v.name +
                       " names `" + f.symbol + "`, which has no address here");
      const uint64_t value = it->second->base + static_cast<uint64_t>(f.addend);
      std::memcpy(m.globals[v.name]->data + f.at, &value, 8);
    }
  }
}

void place_frame(Program& p) {
  const auto add = [&p](const Variable& v) {
    if (p.local_offset.count(v.name))
      return;  // nvcc reuses param0... in separate blocks with equal sizes or larger
    p.local_bytes = align_up(p.local_bytes, std::max<uint64_t>(v.align, 8));
    p.local_offset[v.name] = p.local_bytes;
    p.local_bytes += static_cast<uint32_t>(v.size);
  };
  // Blocks may redeclare a name with another size: reserve the largest.
  std::map<std::string, Variable> largest;
  for (const Variable& v : p.source->locals) {
    auto [it, fresh] = largest.emplace(v.name, v);
    if (!fresh) {
      it->second.size = std::max(it->second.size, v.size);
      it->second.align = std::max(it->second.align, v.align);
    }
  }
  for (const auto& [name, v] : largest) add(v);
  for (const Variable& v : p.source->params) {
    if (p.entry) {
      p.param_bytes = align_up(p.param_bytes, v.align);
      p.params.push_back({p.param_bytes, static_cast<uint32_t>(v.size)});
      p.param_bytes += static_cast<uint32_t>(v.size);
    } else {
      add(v);
      p.params.push_back({p.local_offset[v.name], static_cast<uint32_t>(v.size)});
    }
  }
  for (const Variable& v : p.source->results) {
    add(v);
    p.results.push_back({p.local_offset[v.name], static_cast<uint32_t>(v.size)});
  }
  p.local_bytes = align_up(p.local_bytes, 16);
}

void place_registers(Program& p) {
  for (const RegDecl& r : p.source->regs) {
    if (r.type == "pred") {
      p.slot_of_reg.push_back(p.pred_count++);
    } else {
      p.slot_of_reg.push_back(p.reg_count);
      p.reg_count += r.type == "b128" ? 2 : 1;
    }
  }
}

uint32_t attribute(const Function& f, const char* name, uint32_t otherwise) {
  const auto it = f.attributes.find(name);
  if (it == f.attributes.end() || it->second.empty()) return otherwise;
  uint32_t product = 1;
  for (uint32_t v : it->second) product *= v;
  return product;
}

void place_attributes(Program& p) {
  const Function& f = *p.source;
  p.required_threads = attribute(f, "reqntid", 0);
  p.max_threads = p.required_threads ? p.required_threads : attribute(f, "maxntid", 1024);
  p.regs_per_thread = attribute(f, "maxnreg", 0);
  if (p.regs_per_thread == 0) {
    // As ptxas would be forced to: what fits the declared occupancy, 255 at most.
    const uint32_t ctas = std::max(1u, attribute(f, "minnctapersm", 1));
    const bool bounded = f.attributes.count("maxntid") || f.attributes.count("reqntid");
    const uint32_t threads = bounded ? p.max_threads : 1024;
    p.regs_per_thread = std::min(255u, 65536 / (threads * ctas) / 8 * 8);
    // A kernel that redistributes registers is compiled for the bound itself; others need no more
    // than they name.
    const bool redistributes = std::any_of(
        f.body.begin(), f.body.end(), [](const Statement& s) { return s.base == "setmaxnreg"; });
    const uint32_t declared = static_cast<uint32_t>(std::max(p.reg_count, 24));
    if (!redistributes)
      p.regs_per_thread = std::max(24u, std::min(p.regs_per_thread, (declared + 7) / 8 * 8));
  }
  const auto c = f.attributes.find("reqnctapercluster");
  if (c != f.attributes.end()) {
    for (size_t i = 0; i < 3; ++i) p.cluster[i] = i < c->second.size() ? c->second[i] : 1;
  }
}

void build_code(ModuleImage& m, Program& p) {
  const Function& f = *p.source;
  p.code.resize(f.body.size() + 1);
  for (size_t i = 0; i < f.body.size(); ++i) {
    Instr& in = p.code[i];
    in.statement = static_cast<int32_t>(i);
    if (f.body[i].guard >= 0) {
      if (f.regs[static_cast<size_t>(f.body[i].guard)].type != "pred") {
        throw PtxError("PTX line " + std::to_string(f.body[i].where.ptx) +
                       ": the guard is not a predicate: `" + f.body[i].text + "`");
      }
      in.guard = p.slot_of_reg[static_cast<size_t>(f.body[i].guard)];
      in.guard_negated = f.body[i].guard_negated;
    }
    build_statement(m, p, f.body[i], in);
  }
  Statement ret;
  ret.base = "ret";
  ret.where = f.where;
  Instr& last = p.code.back();
  build_statement(m, p, ret, last);
  last.statement = f.body.empty() ? -1 : static_cast<int32_t>(f.body.size()) - 1;
  const std::vector<int> join = immediate_postdominators(p);
  for (size_t i = 0; i < p.code.size(); ++i) p.code[i].reconverge = join[i];
}

}  // namespace

std::string ModuleImage::place(const Program& p, int statement) const {
  if (statement < 0 || statement >= static_cast<int>(p.source->body.size())) return "";
  const SourceLine& w = p.source->body[static_cast<size_t>(statement)].where;
  if (w.file == 0) return "";
  const auto it = text.files.find(w.file);
  return (it == text.files.end() ? "file " + std::to_string(w.file) : it->second) + ":" +
         std::to_string(w.line);
}

uint32_t local_bytes_with_calls(const ModuleImage& module, const Program& p) {
  std::set<const Program*> open;
  const auto visit = [&](auto&& self, const Program& q) -> uint32_t {
    if (!open.insert(&q).second) return 65536;  // recursion
    uint32_t deepest = 0;
    for (const Extra& x : q.extras) {
      const auto it = x.text.empty() ? module.programs.end() : module.programs.find(x.text);
      if (it != module.programs.end()) deepest = std::max(deepest, self(self, *it->second));
    }
    open.erase(&q);
    return q.local_bytes + deepest;
  };
  return visit(visit, p);
}

std::unique_ptr<ModuleImage> link_module(World& world, int device, const std::string& ptx) {
  auto m = std::make_unique<ModuleImage>();
  m->source = ptx;
  m->device = device;
  m->text = parse_ptx(ptx);
  const std::string& t = m->text.target;
  if (t.rfind("sm_100", 0) != 0 && t.rfind("sm_103", 0) != 0) {
    throw PtxError(
        "target " + t +
        " found, sm_100a, sm_100f, sm_103a or sm_103f accepted: compile with -arch=sm_100f");
  }
  place_globals(world, *m);
  uint32_t end = kReservedShared;
  for (const Variable& v : m->text.variables) {
    if (v.space == "shared") place_shared(*m, v, end);
  }
  for (const Function& f : m->text.functions) {
    if (!f.entry) {
      for (const Variable& v : f.shareds) place_shared(*m, v, end);
    }
  }
  for (const Function& f : m->text.functions) {
    if (!f.has_body) continue;
    auto p = std::make_unique<Program>();
    p->source = &f;
    p->module = m.get();
    p->name = f.name;
    p->entry = f.entry;
    uint32_t mine = end;
    if (f.entry) {
      for (const Variable& v : f.shareds) place_shared(*m, v, mine);
    }
    p->static_shared = mine;
    place_frame(*p);
    place_registers(*p);
    place_attributes(*p);
    m->programs[f.name] = std::move(p);
  }
  for (auto& [name, p] : m->programs) build_code(*m, *p);
  return m;
}

void unload_module(World& world, ModuleImage& module) {
  for (auto& [name, block] : module.globals) world.memory.free(block->base);
  module.globals.clear();
}

}  // namespace sm100sim

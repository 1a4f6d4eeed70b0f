// Branches, calls, returns, exit, trap, and the two library calls that nvcc emits: vprintf and
// __assertfail.

#include <cstdio>

#include "instructions/lanes.h"
#include "machine/link.h"
#include "memory/access.h"

namespace sm100sim {
namespace {

Flow bra(Exec& e, const Instr& i) {
  branch(e, e.mask, i.target, i.reconverge);
  return Flow::kJump;
}
void build_bra(Build& b) {
  b.out.fn = bra;
  b.out.target = b.label(b.op(0));
}

// brx.idx: an indirect branch through a list. Lanes with different targets part one target at a
// time.
Flow brx(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  e.need(a, "the index of an indirect branch", 4);
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const int l = first_lane(e.mask);
  const uint32_t index = static_cast<uint32_t>(a.v[l]);
  if (index >= x.targets.size())
    throw Fault("out-of-bounds",
                format("branch index %u of a list of %zu", index, x.targets.size()), l);
  uint32_t same = 0;
  for_lanes(e.mask, [&](int k) {
    same |= static_cast<uint32_t>(static_cast<uint32_t>(a.v[k]) == index) << k;
  });
  const int target = x.targets[index];
  if (same == e.frag->mask) {
    e.frag->pc = target;
    return Flow::kJump;
  }
  // branch() leaves the rest behind at pc + 1; they must execute this statement again unless the
  // guard excluded them.
  const uint32_t rest = e.mask & ~same, guarded_off = e.frag->mask & ~e.mask;
  branch(e, same, target, i.reconverge);
  if (guarded_off == 0 && rest != 0)
    --e.frag->pc;
  else if (rest != 0)
    throw Fault("unsupported", "a guarded indirect branch that diverges", l);
  return Flow::kJump;
}
void build_brx(Build& b) {
  b.out.fn = brx;
  b.out.a = b.value(0, "u32");
  const auto it = b.program.source->targets.find(b.op(1).name);
  if (it == b.program.source->targets.end()) b.fail("unknown list of targets " + b.op(1).name);
  for (const std::string& label : it->second) {
    const int at = b.program.source->find_label(b.st.scope, label);
    if (at < 0) b.fail("label " + label + " of the list is not defined");
    b.extra().targets.push_back(at);
  }
}

void copy_local(Exec& e, uint32_t to, uint32_t from, uint32_t bytes) {
  Block& m = *e.cta.local;
  for_lanes(e.mask, [&](int l) {
    const uint64_t base = static_cast<uint64_t>(e.thread_of(l)) * e.cta.local_bytes;
    std::memcpy(m.data + base + to, m.data + base + from, bytes);
    std::memcpy(m.shadow.get() + base + to, m.shadow.get() + base + from, bytes);
  });
}

// Library calls read their arguments from the caller's parameter area.
uint64_t argument(Exec& e, const std::vector<Ref>& args, size_t k, int lane, uint32_t bytes) {
  uint64_t v = 0;
  const uint64_t base =
      static_cast<uint64_t>(e.thread_of(lane)) * e.cta.local_bytes + e.frame->local_base;
  std::memcpy(&v, e.cta.local->data + base + static_cast<uint32_t>(args[k].index), bytes);
  return v;
}
std::string c_string(Exec& e, uint64_t address, int lane) {
  std::string s;
  for (; s.size() < 4096; ++address) {
    const Place p = resolve(e, Space::kGeneric, address, 1, lane, 1);
    if (*p.data() == 0) break;
    s.push_back(static_cast<char>(*p.data()));
  }
  return s;
}

std::string printf_text(Exec& e, const std::string& pattern, uint64_t values, int lane) {
  std::string out;
  uint64_t at = values;
  const auto next = [&](uint32_t bytes) {
    at = (at + bytes - 1) / bytes * bytes;
    const Place p = resolve(e, Space::kGeneric, at, bytes, lane, 1);
    uint64_t v = 0;
    std::memcpy(&v, p.data(), bytes);
    at += bytes;
    return v;
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      out.push_back(pattern[i]);
      continue;
    }
    std::string spec = "%";
    while (++i < pattern.size() &&
           std::string("diouxXcsfFeEgGaAp%").find(pattern[i]) == std::string::npos) {
      if (pattern[i] == '*')
        spec += std::to_string(static_cast<int32_t>(next(4)));
      else
        spec.push_back(pattern[i]);
    }
    if (i >= pattern.size()) break;
    const char kind = pattern[i];
    if (kind == '%') {
      out.push_back('%');
    } else if (kind == 's') {
      out += c_string(e, next(8), lane);
    } else if (std::string("fFeEgGaA").find(kind) != std::string::npos) {
      char text[128];
      std::snprintf(text, sizeof text, (spec + kind).c_str(), as<double>(next(8)));
      out += text;
    } else {
      const bool wide = spec.find('l') != std::string::npos ||
                        spec.find('z') != std::string::npos ||
                        spec.find('j') != std::string::npos || kind == 'p';
      std::erase_if(spec, [](char c) { return c == 'l' || c == 'h' || c == 'z' || c == 'j'; });
      char text[128];
      const uint64_t v = next(wide ? 8 : 4);
      const bool is_signed = kind == 'd' || kind == 'i';
      if (kind == 'c')
        std::snprintf(text, sizeof text, (spec + 'c').c_str(), static_cast<int>(v));
      else if (kind == 'p')
        std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
      else if (is_signed)
        std::snprintf(
            text, sizeof text, (spec + "lld").c_str(),
            wide ? static_cast<long long>(v) : static_cast<long long>(static_cast<int32_t>(v)));
      else
        std::snprintf(text, sizeof text, (spec + "ll" + kind).c_str(),
                      static_cast<unsigned long long>(v));
      out += text;
    }
  }
  return out;
}

Flow call_vprintf(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  for_lanes(e.mask, [&](int l) {
    e.grid.output += printf_text(e, c_string(e, argument(e, x.list, 0, l, 8), l),
                                 argument(e, x.list, 1, l, 8), l);
    if (!x.list2.empty()) {
      const uint64_t base = static_cast<uint64_t>(e.thread_of(l)) * e.cta.local_bytes +
                            e.frame->local_base + static_cast<uint32_t>(x.list2[0].index);
      std::memset(e.cta.local->data + base, 0, 4);
      std::memset(e.cta.local->shadow.get() + base, 0, 4);
    }
  });
  return Flow::kNext;
}
Flow call_assertfail(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const int l = first_lane(e.mask);
  throw Fault("assert",
              "assertion `" + c_string(e, argument(e, x.list, 0, l, 8), l) + "` failed at " +
                  c_string(e, argument(e, x.list, 1, l, 8), l) + ":" +
                  std::to_string(argument(e, x.list, 2, l, 4)),
              l);
}

Flow call(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Program* callee = e.program->module->programs.at(x.text).get();
  Fragment& f = *e.frag;
  if (e.mask != f.mask) {
    // A guarded call: the other lanes go on behind it and meet these there.
    branch(e, e.mask, f.pc, f.pc + 1);
    return Flow::kJump;
  }
  const uint32_t base = e.frame->local_base + e.program->local_bytes;
  if (base + callee->local_bytes > e.cta.local_bytes)
    throw Fault("stack-overflow", "calls nest deeper than the stack allows", first_lane(e.mask));
  for (size_t k = 0; k < x.list.size(); ++k)
    copy_local(e, base + callee->params[k].offset,
               e.frame->local_base + static_cast<uint32_t>(x.list[k].index),
               callee->params[k].bytes);
  auto frame = make_frame(callee, f.frame, base);
  frame->return_pc = f.pc + 1;
  frame->call = &i;
  f.frame = std::move(frame);
  f.pc = 0;
  f.join_pc = -1;
  return Flow::kJump;
}

Flow ret(Exec& e, const Instr& i) {
  Fragment& f = *e.frag;
  if (e.program->entry) {
    exit_lanes(e, e.mask);
    if (e.frag != nullptr) ++e.frag->pc;
    return Flow::kJump;
  }
  const int last = static_cast<int>(e.program->code.size()) - 1;
  if (f.pc != last) {  // all lanes of the activation meet at the end of the body first
    branch(e, e.mask, last, i.reconverge);
    return Flow::kJump;
  }
  const std::shared_ptr<Frame> frame = f.frame;
  const Program& caller = *frame->caller->program;
  const Extra& x = caller.extras[static_cast<size_t>(frame->call->extra)];
  for (size_t k = 0; k < x.list2.size(); ++k)
    copy_local(e, frame->caller->local_base + static_cast<uint32_t>(x.list2[k].index),
               frame->local_base + e.program->results[k].offset, e.program->results[k].bytes);
  f.frame = frame->caller;
  f.pc = frame->return_pc;
  f.join_pc = f.join && f.join->frame == f.frame ? f.join->pc : -1;
  return Flow::kJump;
}
void build_ret(Build& b) { b.out.fn = ret; }

std::vector<Ref> areas(Build& b, const Operand& tuple) {
  std::vector<Ref> out;
  for (const Operand& o : tuple.items) {
    const auto it = b.program.local_offset.find(o.name);
    if (it == b.program.local_offset.end())
      b.fail("call arguments must be .param variables, `" + o.name + "` is not");
    Ref r;
    r.index = static_cast<int32_t>(it->second);
    out.push_back(r);
  }
  return out;
}
void build_call(Build& b) {
  size_t at = 0;
  Extra& x = b.extra();
  if (b.op(0).kind == Operand::kTuple) x.list2 = areas(b, b.op(at++));
  const Operand& target = b.op(at++);
  if (target.kind != Operand::kSymbol) b.fail("indirect calls are not supported");
  if (b.count() > at && b.op(at).kind == Operand::kTuple) x.list = areas(b, b.op(at++));
  if (target.name == "vprintf") {
    b.out.fn = call_vprintf;
    return;
  }
  if (target.name == "__assertfail") {
    b.out.fn = call_assertfail;
    return;
  }
  const auto it = b.module.programs.find(target.name);
  if (it == b.module.programs.end())
    b.fail("function `" + target.name + "` has no body in this module");
  if (it->second->params.size() != x.list.size())
    b.fail("another number of arguments than the function takes");
  x.text = target.name;
  b.out.fn = call;
}

Flow exit_threads(Exec& e, const Instr&) {
  exit_lanes(e, e.mask);
  if (e.frag != nullptr) ++e.frag->pc;
  return Flow::kJump;
}
Flow trap(Exec& e, const Instr&) {
  throw Fault("trap", "the kernel executed trap", first_lane(e.mask));
}
Flow nothing(Exec&, const Instr&) { return Flow::kNext; }

constexpr Form kForms[] = {
    {"bra {uni}", 1, 1, Class::kControl, build_bra},
    {"brx <idx> {uni}", 2, 2, Class::kControl, build_brx},
    {"call {uni}", 1, 4, Class::kControl, build_call},
    {"ret {uni}", 0, 0, Class::kControl, build_ret},
    {"exit", 0, 0, Class::kControl, [](Build& b) { b.out.fn = exit_threads; }},
    {"trap", 0, 0, Class::kControl, [](Build& b) { b.out.fn = trap; }},
    {"brkpt", 0, 0, Class::kControl, [](Build& b) { b.out.fn = trap; }},
    {"pmevent {mask}", 1, 1, Class::kOther, [](Build& b) { b.out.fn = nothing; }},
};

}  // namespace

void forms_control(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim

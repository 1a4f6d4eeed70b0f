// Module-level grammar: directives, variables with initialisers, functions with parameters and
// attributes.

#include <algorithm>
#include <cstring>

#include "frontend/parser.h"

namespace sm100sim {

int type_bytes(const std::string& t) {
  static const std::map<std::string, int> kBytes = {
      {"pred", 1}, {"b8", 1},   {"u8", 1},    {"s8", 1},     {"b16", 2}, {"u16", 2},
      {"s16", 2},  {"f16", 2},  {"bf16", 2},  {"b32", 4},    {"u32", 4}, {"s32", 4},
      {"f32", 4},  {"tf32", 4}, {"f16x2", 4}, {"bf16x2", 4}, {"b64", 8}, {"u64", 8},
      {"s64", 8},  {"f64", 8},  {"f32x2", 8}, {"b128", 16}};
  const auto it = kBytes.find(t);
  return it == kBytes.end() ? 0 : it->second;
}

ModuleText Parser::module() {
  while (peek().kind != Token::kEnd) top_level();
  if (out_.version_major == 0) fail("the text has no .version directive: not a PTX module");
  if (out_.version_major != 9) {
    fail("PTX ISA " + std::to_string(out_.version_major) + "." +
         std::to_string(out_.version_minor) +
         " found, 9.x accepted (CUDA 13): compile with the pinned nvcc of requirements.txt");
  }
  return std::move(out_);
}

void Parser::top_level() {
  if (accept(";")) return;
  const Token t = take();
  if (t.text == ".version") {
    const std::string v = take().text;
    out_.version_major = std::atoi(v.c_str());
    out_.version_minor =
        v.find('.') == std::string::npos ? 0 : std::atoi(v.c_str() + v.find('.') + 1);
  } else if (t.text == ".target") {
    out_.target = take().text;
    while (accept(",")) take();
  } else if (t.text == ".address_size") {
    if (integer() != 64) fail("only .address_size 64 is accepted", t.line);
  } else if (t.text == ".file") {
    const int id = static_cast<int>(integer());
    out_.files[id] = take().text;
    while (accept(",")) take();
  } else if (t.text == ".section") {
    skip_section();
  } else if (t.text == ".pragma") {
    while (!accept(";")) take();
  } else if (t.text == ".alias") {
    fail(".alias is not supported", t.line);
  } else if (t.kind == Token::kDirective) {
    --at_;
    bool is_extern = false;
    while (is(".visible") || is(".weak") || is(".extern") || is(".common"))
      is_extern |= take().text == ".extern";
    if (is(".entry") || is(".func")) return function(is_extern);
    const std::string space = take().text.substr(1);
    if (space != "global" && space != "const" && space != "shared")
      fail("unknown directive ." + space, t.line);
    Variable v = variable(space);
    v.is_extern = is_extern;
    out_.variables.push_back(std::move(v));
    expect(";");
  } else {
    fail("a directive was expected at module level", t.line);
  }
}

void Parser::skip_section() {
  take();
  expect("{");
  for (int depth = 1; depth > 0;) {
    const Token t = take();
    if (t.kind == Token::kEnd) fail("unterminated .section");
    depth += t.text == "{" ? 1 : t.text == "}" ? -1 : 0;
  }
}

void Parser::function(bool is_extern) {
  (void)is_extern;
  out_.functions.emplace_back();
  Function& f = out_.functions.back();
  f.where = here();
  f.entry = take().text == ".entry";
  if (!f.entry && is("(")) f.results = parameter_list();
  f.name = take().text;
  if (is("(")) f.params = parameter_list();
  function_attributes(f);
  if (accept(";")) {
    // A prototype: keep it only when no other declaration exists, so that calls find the body.
    const std::string name = f.name;
    const auto same = std::count_if(out_.functions.begin(), out_.functions.end(),
                                    [&](const Function& g) { return g.name == name; });
    if (same > 1) out_.functions.pop_back();
    return;
  }
  f.has_body = true;
  for (size_t i = 0; i + 1 < out_.functions.size(); ++i) {
    if (out_.functions[i].name == f.name && !out_.functions[i].has_body) {
      out_.functions[i] = std::move(f);
      out_.functions.pop_back();
      fn_ = &out_.functions[i];
      body();
      fn_ = nullptr;
      return;
    }
  }
  fn_ = &f;
  body();
  fn_ = nullptr;
}

void Parser::function_attributes(Function& f) {
  static const std::vector<std::string> kKnown = {
      ".maxntid",           ".reqntid",           ".minnctapersm",    ".maxnctapersm",
      ".maxnreg",           ".reqnctapercluster", ".explicitcluster", ".maxclusterrank",
      ".blocksareclusters", ".noreturn",          ".pragma",          ".abi_preserve"};
  while (peek().kind == Token::kDirective) {
    const Token t = take();
    if (std::find(kKnown.begin(), kKnown.end(), t.text) == kKnown.end())
      fail("unknown function directive " + t.text, t.line);
    std::vector<uint32_t>& values = f.attributes[t.text.substr(1)];
    if (t.text == ".pragma") {
      while (!accept(";")) take();
      continue;
    }
    while (peek().kind == Token::kInt) {
      values.push_back(static_cast<uint32_t>(take().value));
      if (!accept(",")) break;
    }
  }
}

std::vector<Variable> Parser::parameter_list() {
  std::vector<Variable> list;
  expect("(");
  while (!accept(")")) {
    if (accept(".reg")) {
      fail("parameters in registers (.reg) are not supported; nvcc uses .param");
    }
    expect(".param");
    list.push_back(variable("param"));
    accept(",");
  }
  return list;
}

Variable Parser::variable(const std::string& space) {
  Variable v;
  v.space = space;
  v.where = here();
  bool typed = false;
  uint64_t vector = 1;
  while (peek().kind == Token::kDirective) {
    const std::string d = take().text.substr(1);
    if (d == "align") {
      v.align = static_cast<uint64_t>(integer());
    } else if (d == "ptr") {  // .ptr{.space}{.align n}: a hint about what a parameter points to
      while (peek().kind == Token::kDirective) {
        if (take().text == ".align") integer();
      }
    } else if (d == "v2" || d == "v4") {
      vector = d == "v2" ? 2 : 4;
    } else if (d == "attribute") {
      expect("(");
      while (!accept(")")) take();
    } else if (type_bytes(d) > 0) {
      v.type = d;
      typed = true;
    } else {
      fail("unknown qualifier ." + d + " of a variable");
    }
  }
  if (!typed) fail("a variable without a type");
  const size_t element = static_cast<size_t>(type_bytes(v.type));
  v.align = std::max<uint64_t>(v.align, element * vector);
  v.name = take().text;
  uint64_t count = 1;
  bool open = false;
  while (accept("[")) {
    if (accept("]")) {
      open = true;
      continue;
    }
    count *= static_cast<uint64_t>(integer());
    expect("]");
  }
  v.size = open ? 0 : element * vector * count;
  if (accept("=")) {
    initialiser(v, element);
    if (v.init.size() > v.size) {
      if (!open) fail("more initialisers than elements");
      v.size = v.init.size();
    }
  }
  return v;
}

void Parser::initialiser(Variable& v, size_t element) {
  if (accept("{")) {
    while (!accept("}")) {
      initialiser(v, element);
      accept(",");
    }
    return;
  }
  uint64_t bits = 0;
  if (peek().kind == Token::kName) {
    const bool generic = is("generic");
    std::string symbol = take().text;
    if (generic) {
      expect("(");
      symbol = take().text;
    }
    int64_t addend = 0;
    if (accept("+")) addend = integer();
    if (generic) {
      expect(")");
      if (accept("+")) addend += integer();
    }
    v.fixups.push_back({v.init.size(), symbol, addend, generic});
  } else if (peek().kind == Token::kFloat32 || peek().kind == Token::kFloat64) {
    bits = static_cast<uint64_t>(take().value);
  } else {
    bits = static_cast<uint64_t>(integer());
  }
  const size_t at = v.init.size();
  v.init.resize(at + element);
  std::memcpy(&v.init[at], &bits, std::min<size_t>(element, 8));
}

void Parser::reg_declaration() {
  std::string type;
  uint64_t vector = 1;
  while (peek().kind == Token::kDirective) {
    const std::string d = take().text.substr(1);
    if (d == "v2" || d == "v4") {
      vector = 0;
    } else if (type_bytes(d) > 0) {
      type = d;
    } else {
      fail("unknown register type ." + d);
    }
  }
  if (vector == 0)
    fail("vector registers (.reg .v2/.v4) are not supported; nvcc does not emit them");
  do {
    const std::string name = take().text;
    if (accept("<")) {
      const int64_t n = integer();
      expect(">");
      for (int64_t i = 0; i < n; ++i) {
        regs_.back()[name + std::to_string(i)] = static_cast<int>(fn_->regs.size());
        fn_->regs.push_back({name + std::to_string(i), type});
      }
    } else {
      regs_.back()[name] = static_cast<int>(fn_->regs.size());
      fn_->regs.push_back({name, type});
    }
  } while (accept(","));
  expect(";");
}

}  // namespace sm100sim

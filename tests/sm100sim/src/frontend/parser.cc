// Function bodies: blocks with their own registers and labels, guards, opcodes, operands. See
// parser.h.

#include "frontend/parser.h"

#include <algorithm>

namespace sm100sim {

ModuleText parse_ptx(const std::string& text) { return Parser(text).module(); }

int Function::find_label(int scope, const std::string& name) const {
  for (int s = scope; s >= 0; s = scope_parent[static_cast<size_t>(s)]) {
    const auto it = labels.find({s, name});
    if (it != labels.end()) return it->second;
  }
  return -1;
}

void Parser::fail(const std::string& message, int line) const {
  const int at = line > 0 ? line : peek().line;
  throw PtxError("PTX line " + std::to_string(at) + ": " + message + ": `" + line_text(text_, at) +
                 "`");
}

SourceLine Parser::here() const { return {peek().line, file_, line_}; }

bool Parser::accept(const char* text) {
  if (!is(text)) return false;
  ++at_;
  return true;
}

void Parser::expect(const char* text) {
  if (!accept(text)) fail("`" + std::string(text) + "` expected, `" + peek().text + "` found");
}

int64_t Parser::integer() {
  const bool minus = accept("-");
  if (peek().kind != Token::kInt) fail("an integer was expected, `" + peek().text + "` found");
  const int64_t v = take().value;
  return minus ? -v : v;
}

void Parser::body() {
  expect("{");
  fn_->scope_parent = {-1};
  scopes_ = {0};
  regs_.assign(1, {});
  for (;;) {
    if (peek().kind == Token::kEnd) fail("unterminated body of " + fn_->name);
    if (accept("{")) {
      fn_->scope_parent.push_back(scopes_.back());
      scopes_.push_back(static_cast<int>(fn_->scope_parent.size()) - 1);
      regs_.emplace_back();
    } else if (accept("}")) {
      scopes_.pop_back();
      regs_.pop_back();
      if (scopes_.empty()) break;
    } else if (accept(";")) {
      continue;
    } else if (peek().kind == Token::kDirective) {
      block_directive();
    } else if (peek().kind == Token::kName && is(":", 1)) {
      const std::string label = take().text;
      take();
      fn_->labels[{scopes_.back(), label}] = static_cast<int>(fn_->body.size());
      if (is(".branchtargets") || is(".calltargets") || is(".callprototype")) target_list(label);
    } else {
      statement();
    }
  }
}

void Parser::target_list(const std::string& label) {
  if (take().text == ".callprototype") {
    while (!accept(";")) take();
    return;
  }
  do {
    fn_->targets[label].push_back(take().text);
  } while (accept(","));
  expect(";");
}

void Parser::location() {
  file_ = static_cast<int>(integer());
  line_ = static_cast<int>(integer());
  integer();
  // ", function_name $label, inlined_at file line column": the innermost position is the one we
  // report.
  while (accept(",")) {
    const std::string what = take().text;
    if (what == "function_name") {
      take();
      if (accept("+")) integer();
    } else if (what == "inlined_at") {
      integer(), integer(), integer();
    } else {
      fail("unknown attribute of .loc");
    }
  }
}

void Parser::block_directive() {
  const Token t = take();
  if (t.text == ".reg") {
    reg_declaration();
  } else if (t.text == ".local" || t.text == ".param" || t.text == ".shared") {
    Variable v = variable(t.text.substr(1));
    (t.text == ".shared" ? fn_->shareds : fn_->locals).push_back(std::move(v));
    expect(";");
  } else if (t.text == ".loc") {
    location();
  } else if (t.text == ".pragma") {
    while (!accept(";")) take();
  } else {
    fail("unknown directive in a function body", t.line);
  }
}

void Parser::statement() {
  Statement s;
  s.where = here();
  s.scope = scopes_.back();
  const size_t begin = peek().begin;
  if (accept("@")) {
    s.guard_negated = accept("!");
    const Operand p = register_or_symbol();
    if (p.kind != Operand::kReg || p.reg < 0)
      fail("a guard must be a declared predicate", s.where.ptx);
    s.guard = p.reg;
  }
  if (peek().kind != Token::kName) fail("an instruction was expected, `" + peek().text + "` found");
  s.base = take().text;
  while (peek().kind == Token::kDirective) s.quals.push_back(take().text.substr(1));
  while (!is(";")) {
    s.operands.push_back(operand());
    if (!accept(",")) {
      if (is(";")) break;
      // "call (ret), f, (args)" and "call f, (args)" use commas as well; anything else is an error.
      fail("`,` or `;` expected after an operand, `" + peek().text + "` found");
    }
  }
  const size_t end = peek().end;
  expect(";");
  s.text = text_.substr(begin, end - begin);
  for (char& c : s.text) c = c == '\n' || c == '\t' ? ' ' : c;
  fn_->body.push_back(std::move(s));
}

Operand Parser::operand() {
  Operand o = primary();
  if (accept("|")) o.pair.push_back(primary());
  return o;
}

Operand Parser::list(const char* close, Operand::Kind kind) {
  Operand o;
  o.kind = kind;
  while (!accept(close)) {
    o.items.push_back(operand());
    if (!accept(",") && !is(close)) fail("`,` or `" + std::string(close) + "` expected");
  }
  return o;
}

Operand Parser::register_or_symbol() {
  Operand o;
  o.name = take().text;
  for (size_t i = regs_.size(); i-- > 0;) {
    const auto it = regs_[i].find(o.name);
    if (it != regs_[i].end()) {
      o.kind = Operand::kReg;
      o.reg = it->second;
      return o;
    }
  }
  if (o.name[0] == '%') {
    o.kind = Operand::kReg;  // special register
    if (peek().kind == Token::kDirective && peek().text.size() == 2)
      o.member = take().text.substr(1);
    return o;
  }
  o.kind = Operand::kSymbol;
  return o;
}

Operand Parser::primary() {
  Operand o;
  if (accept("[")) return address();
  if (accept("{")) return list("}", Operand::kVector);
  if (accept("(")) return list(")", Operand::kTuple);
  if (accept("_")) return o;
  if (accept("!")) {
    o = primary();
    o.negated = !o.negated;
    return o;
  }
  const Token t = peek();
  if (t.kind == Token::kInt || (t.kind == Token::kPunct && t.text == "-")) {
    const bool minus = accept("-");
    if (minus && (peek().kind == Token::kFloat32 || peek().kind == Token::kFloat64)) {
      o.kind = peek().kind == Token::kFloat32 ? Operand::kFloat32 : Operand::kFloat64;
      o.imm = take().value ^ (o.kind == Operand::kFloat32 ? int64_t{1} << 31 : INT64_MIN);
      return o;
    }
    o.kind = Operand::kInt;
    o.imm = integer();
    if (minus) o.imm = -o.imm;
    return o;
  }
  if (t.kind == Token::kFloat32 || t.kind == Token::kFloat64) {
    o.kind = t.kind == Token::kFloat32 ? Operand::kFloat32 : Operand::kFloat64;
    o.imm = take().value;
    return o;
  }
  if (t.kind == Token::kName) {
    o = register_or_symbol();
    if (o.kind == Operand::kSymbol) {
      if (accept("+")) o.imm = integer();
    }
    return o;
  }
  fail("an operand was expected, `" + t.text + "` found");
}

Operand Parser::address() {
  Operand o;
  o.kind = Operand::kAddress;
  Operand base = primary();
  if (accept("+")) {
    o.imm = integer();
  } else if (is("-") && peek(1).kind == Token::kInt) {
    o.imm = integer();
  }
  o.imm += base.kind == Operand::kSymbol ? base.imm : 0;
  o.items.push_back(std::move(base));
  while (accept(",")) o.items.push_back(operand());
  expect("]");
  return o;
}

}  // namespace sm100sim

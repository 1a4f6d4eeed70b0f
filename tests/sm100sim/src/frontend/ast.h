// The parsed form of a PTX module: declarations and statements as written, names resolved to
// indices where scopes matter. What an opcode means is left to src/instructions; the parser only
// splits it into a base name and its qualifiers. Every statement keeps its line number and text,
// since every later error must quote them.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace sm100sim {

/// A refusal of the module. The message always carries the line number and the quoted line.
struct PtxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SourceLine {
  int ptx = 0;   // line of the PTX text
  int file = 0;  // index of the .file directive, 0 when there is no .loc
  int line = 0;  // source line of the .loc in force
};

struct Operand {
  enum Kind { kReg, kInt, kFloat32, kFloat64, kSymbol, kAddress, kVector, kTuple, kSink };
  Kind kind = kSink;
  bool negated = false;        // !%p
  std::string name;            // symbol or special register, when it is not a declared register
  std::string member;          // x, y, z, w of a special register or vector
  int reg = -1;                // index into Function::regs
  int64_t imm = 0;             // integer, raw bits of a float, or the offset of a symbol or address
  std::vector<Operand> items;  // address: base then further elements; vector, tuple: members
  std::vector<Operand> pair;   // d|p: the second destination
  bool is_special() const { return kind == kReg && reg < 0; }
};

struct Statement {
  SourceLine where;
  std::string text;  // as written, for messages
  int guard = -1;    // predicate register
  bool guard_negated = false;
  std::string base;                // "add", "ld", "cp.async.bulk.tensor" is base "cp" + qualifiers
  std::vector<std::string> quals;  // without dots; "shared::cta" is one qualifier
  std::vector<Operand> operands;
  int scope = 0;  // block scope, to resolve labels
};

struct RegDecl {
  std::string name;
  std::string type;  // b32, pred, ...
};

struct Variable {
  std::string name;
  std::string space;  // global, const, shared, local, param
  std::string type = "b8";
  uint64_t size = 0;
  uint64_t align = 1;
  bool is_extern = false;
  std::vector<uint8_t> init;
  struct Fixup {
    uint64_t at;
    std::string symbol;
    int64_t addend;
    bool generic;
  };
  std::vector<Fixup> fixups;  // addresses among the initialisers
  SourceLine where;
};

struct Function {
  std::string name;
  bool entry = false;
  bool has_body = false;
  std::vector<Variable> params, results;
  std::vector<RegDecl> regs;
  std::vector<Variable> locals;   // .local, and .param declared in the body
  std::vector<Variable> shareds;  // .shared declared in the body
  std::vector<Statement> body;
  std::map<std::pair<int, std::string>, int> labels;        // (scope, name) -> statement index
  std::map<std::string, std::vector<std::string>> targets;  // .branchtargets and .calltargets lists
  std::vector<int> scope_parent;
  std::map<std::string, std::vector<uint32_t>> attributes;  // maxntid, reqntid, minnctapersm, ...
  SourceLine where;

  /// Statement index of a label seen from `scope`, or -1.
  int find_label(int scope, const std::string& name) const;
};

struct ModuleText {
  int version_major = 0, version_minor = 0;
  std::string target;
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<int, std::string> files;
};

/// Parses PTX text; throws PtxError.
ModuleText parse_ptx(const std::string& text);

/// Bytes of a fundamental type name ("b32", "f16x2", "pred" is 1), 0 when unknown.
int type_bytes(const std::string& type);

}  // namespace sm100sim

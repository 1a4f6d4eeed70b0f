// The instruction table. One entry per PTX form, its syntax written like the manual's: the base
// name, then qualifier groups: `{x}` an optional flag, `{name:a,b}` an optional choice,
// `<name:a,b>` a required one; `@int` and the like are sets of types. Qualifiers are accepted in
// any order, as ptxas does. A builder turns a matching statement into an Instr; what it does not
// take is an error that quotes the line. Adding an instruction is one entry and one test.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine/program.h"

namespace sm100sim {

struct ModuleImage;

class Build {
 public:
  Build(ModuleImage& module, Program& program, const Statement& st, Instr& out)
      : module(module), program(program), st(st), out(out) {}
  ModuleImage& module;
  Program& program;
  const Statement& st;
  Instr& out;
  std::map<std::string, std::string> chosen;

  bool has(const char* group) const { return chosen.count(group) > 0; }
  std::string get(const char* group, const char* otherwise = "") const {
    const auto it = chosen.find(group);
    return it == chosen.end() ? otherwise : it->second;
  }
  size_t count() const { return st.operands.size(); }
  const Operand& op(size_t i) const;
  [[noreturn]] void fail(const std::string& message) const;

  // Operands. `type` decides how immediates are read and the least width of a register.
  Ref value(size_t i, const std::string& type) { return value(op(i), type); }
  Ref value(const Operand& o, const std::string& type);
  Ref dest(size_t i, const std::string& type) { return dest(op(i), type); }
  Ref dest(const Operand& o, const std::string& type);  // `_` gives no Ref
  Ref pred(size_t i) { return pred(op(i)); }
  Ref pred(const Operand& o);
  Ref pred_dest(const Operand& o);
  /// `[base+offset]`: returns the base, adds the offset to out.imm.
  Ref address(size_t i, int64_t* offset) { return address(op(i), offset); }
  Ref address(const Operand& o, int64_t* offset);
  std::vector<Ref> list(const Operand& o, const std::string& type, bool destination);
  Ref constant(uint64_t bits, int poison = 0);
  Extra& extra();
  int label(const Operand& o);
};

using Builder = void (*)(Build&);

struct Form {
  const char* syntax;
  int min_operands, max_operands;
  Class cls;
  Builder build;
};

/// Registers all forms (each file of this folder adds its own).
void add_forms(std::vector<Form>& forms, const Form* begin, const Form* end);
void build_statement(ModuleImage& module, Program& program, const Statement& st, Instr& out);
/// The syntax lines, for the README and for tests that every form has a test.
std::vector<std::string> all_forms();

#define SM100SIM_FORMS(name) void name(std::vector<Form>& forms)
SM100SIM_FORMS(forms_integer);
SM100SIM_FORMS(forms_logic);
SM100SIM_FORMS(forms_float);
SM100SIM_FORMS(forms_compare);
SM100SIM_FORMS(forms_convert);
SM100SIM_FORMS(forms_move);
SM100SIM_FORMS(forms_memory);
SM100SIM_FORMS(forms_atomic);
SM100SIM_FORMS(forms_control);
SM100SIM_FORMS(forms_warp);
SM100SIM_FORMS(forms_barrier);
SM100SIM_FORMS(forms_mbarrier);
SM100SIM_FORMS(forms_fence);
SM100SIM_FORMS(forms_bulk);
SM100SIM_FORMS(forms_cp_async);
SM100SIM_FORMS(forms_launch_control);
SM100SIM_FORMS(forms_tensor_copy);
SM100SIM_FORMS(forms_tensor_memory);
SM100SIM_FORMS(forms_tensor_core);
SM100SIM_FORMS(forms_matrix);
SM100SIM_FORMS(forms_system);
#undef SM100SIM_FORMS

}  // namespace sm100sim

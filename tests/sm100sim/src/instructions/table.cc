// Matching of statements against the table. See table.h for the notation.

#include "instructions/table.h"

#include <mutex>
#include <sstream>

namespace sm100sim {
namespace {

struct Group {
  std::string name;
  bool required;
  std::vector<std::string> choices;
};

struct Parsed {
  const Form* form;
  std::vector<Group> groups;
};

const std::map<std::string, std::string>& sets() {
  static const std::map<std::string, std::string> kSets = {
      {"@int", "u16,s16,u32,s32,u64,s64"},
      {"@bits", "b16,b32,b64"},
      {"@any", "b8,b16,b32,b64,b128,u8,u16,u32,u64,s8,s16,s32,s64,f32,f64"},
      {"@space",
       "global,shared,shared::cta,shared::cluster,local,param,param::entry,param::func,const"},
      {"@scope", "cta,cluster,gpu,sys"},
      {"@cache", "ca,cg,cs,lu,cv,wb,wt"},
      {"@evict",
       "L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate,L2::"
       "evict_normal,L2::evict_first,L2::evict_last"},
      {"@prefetch", "L2::64B,L2::128B,L2::256B"},
      {"@compare", "eq,ne,lt,le,gt,ge,lo,ls,hi,hs,equ,neu,ltu,leu,gtu,geu,num,nan"},
  };
  return kSets;
}

std::vector<std::string> split(const std::string& s) {
  std::vector<std::string> out;
  std::stringstream in(s);
  for (std::string item; std::getline(in, item, ',');) {
    if (!item.empty() && item[0] == '@') {
      for (const std::string& member : split(sets().at(item))) out.push_back(member);
    } else {
      out.push_back(item);
    }
  }
  return out;
}

Parsed parse_form(const Form& form) {
  Parsed p{&form, {}};
  std::stringstream in(form.syntax);
  std::string word;
  in >> word;
  while (in >> word) {
    Group g;
    g.required = word[0] == '<';
    const std::string body = word.substr(1, word.size() - 2);
    const size_t colon = body.find(':');
    // A flag such as {shared::cta} has a double colon and no choice.
    if (colon == std::string::npos || body.compare(colon, 2, "::") == 0) {
      g.name = body;
      g.choices = {body};
    } else {
      g.name = body.substr(0, colon);
      g.choices = split(body.substr(colon + 1));
    }
    p.groups.push_back(std::move(g));
  }
  return p;
}

std::vector<Form>& table() {
  static std::vector<Form> forms = [] {
    std::vector<Form> f;
    forms_integer(f), forms_logic(f), forms_float(f), forms_compare(f), forms_convert(f),
        forms_move(f), forms_memory(f);
    forms_atomic(f), forms_control(f), forms_warp(f), forms_barrier(f), forms_mbarrier(f),
        forms_fence(f), forms_bulk(f), forms_cp_async(f), forms_launch_control(f);
    forms_tensor_copy(f), forms_tensor_memory(f), forms_tensor_core(f), forms_matrix(f),
        forms_system(f);
    return f;
  }();
  return forms;
}

const std::multimap<std::string, Parsed>& parsed() {
  static const std::multimap<std::string, Parsed> kParsed = [] {
    std::multimap<std::string, Parsed> m;
    for (const Form& form : table()) {
      const std::string syntax = form.syntax;
      m.emplace(syntax.substr(0, syntax.find(' ')), parse_form(form));
    }
    return m;
  }();
  return kParsed;
}

/// Fills `chosen`; returns an empty string, or what does not fit.
std::string match(const Parsed& p, const Statement& st,
                  std::map<std::string, std::string>& chosen) {
  std::vector<bool> used(p.groups.size());
  for (const std::string& q : st.quals) {
    bool found = false;
    for (size_t g = 0; g < p.groups.size() && !found; ++g) {
      if (used[g]) continue;
      for (const std::string& choice : p.groups[g].choices) {
        if (choice == q) {
          used[g] = found = true;
          chosen[p.groups[g].name] = q;
          break;
        }
      }
    }
    if (!found) return "unknown qualifier ." + q;
  }
  for (size_t g = 0; g < p.groups.size(); ++g) {
    if (p.groups[g].required && !used[g]) return "a ." + p.groups[g].name + " qualifier is missing";
  }
  const int n = static_cast<int>(st.operands.size());
  if (n < p.form->min_operands || n > p.form->max_operands) {
    return std::to_string(n) + " operands found, " + std::to_string(p.form->min_operands) + " to " +
           std::to_string(p.form->max_operands) + " accepted";
  }
  return "";
}

}  // namespace

void add_forms(std::vector<Form>& forms, const Form* begin, const Form* end) {
  forms.insert(forms.end(), begin, end);
}

std::vector<std::string> all_forms() {
  std::vector<std::string> out;
  for (const Form& f : table()) out.push_back(f.syntax);
  return out;
}

void build_statement(ModuleImage& module, Program& program, const Statement& st, Instr& out) {
  Build b(module, program, st, out);
  const auto [begin, end] = parsed().equal_range(st.base);
  if (begin == end) b.fail("unknown instruction `" + st.base + "`");
  std::string why;
  for (auto it = begin; it != end; ++it) {
    b.chosen.clear();
    const std::string mismatch = match(it->second, st, b.chosen);
    if (mismatch.empty()) {
      out.cls = it->second.form->cls;
      it->second.form->build(b);
      if (out.fn == nullptr) b.fail("this combination of qualifiers has no handler");
      return;
    }
    why += "\n    `" + std::string(it->second.form->syntax) + "`: " + mismatch;
  }
  b.fail("no known form of `" + st.base + "` fits:" + why);
}

}  // namespace sm100sim

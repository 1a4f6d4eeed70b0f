// The recursive-descent parser behind parse_ptx. Declarations are in parser_decl.cc, statements and
// operands in parser.cc. It checks the grammar and names only; types and qualifiers are checked
// where the instruction table decodes them.
#pragma once

#include <string>
#include <vector>

#include "frontend/ast.h"
#include "frontend/lexer.h"

namespace sm100sim {

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text), tokens_(tokenize(text)) {}
  ModuleText module();

 private:
  // parser_decl.cc
  void top_level();
  void function(bool is_extern);
  void function_attributes(Function& f);
  std::vector<Variable> parameter_list();
  Variable variable(const std::string& space);
  void initialiser(Variable& v, size_t element);
  void skip_section();
  void reg_declaration();
  // parser.cc
  void body();
  void block_directive();
  void location();
  void statement();
  void target_list(const std::string& label);
  Operand operand();
  Operand primary();
  Operand address();
  Operand list(const char* close, Operand::Kind kind);
  Operand register_or_symbol();

  const Token& peek(size_t n = 0) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  bool is(const char* text, size_t n = 0) const {
    return peek(n).kind != Token::kString && peek(n).text == text;
  }
  bool accept(const char* text);
  void expect(const char* text);
  Token take() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  int64_t integer();
  [[noreturn]] void fail(const std::string& message, int line = 0) const;
  SourceLine here() const;

  const std::string& text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  ModuleText out_;
  Function* fn_ = nullptr;
  int file_ = 0, line_ = 0;
  std::vector<int> scopes_;
  std::vector<std::map<std::string, int>> regs_;  // one map per open scope
};

}  // namespace sm100sim

// Splits PTX text into tokens with line numbers. Comments vanish here; a name keeps its leading
// '.', '%' or '$'. Qualifiers with '::' are one token, so that ".shared::cta" reaches the parser
// whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sm100sim {

struct Token {
  enum Kind { kName, kDirective, kInt, kFloat32, kFloat64, kString, kPunct, kEnd };
  Kind kind = kEnd;
  std::string text;
  int64_t value = 0;
  int line = 0;
  size_t begin = 0, end = 0;
};

std::vector<Token> tokenize(const std::string& text);

/// The trimmed text of line `line` (1-based), for messages.
std::string line_text(const std::string& text, int line);

}  // namespace sm100sim

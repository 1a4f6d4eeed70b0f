// See lexer.h. PTX has C's comments, C identifiers plus '$', '%' and '.', and hexadecimal float
// spellings 0f/0d.

#include "frontend/lexer.h"

#include <cctype>
#include <cstdlib>

#include "frontend/ast.h"

namespace sm100sim {
namespace {

bool name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$';
}

Token number(const std::string& s, size_t& i, int line) {
  Token t;
  t.line = line;
  t.begin = i;
  if (s[i] == '0' && i + 1 < s.size() &&
      (s[i + 1] == 'f' || s[i + 1] == 'F' || s[i + 1] == 'd' || s[i + 1] == 'D')) {
    const bool single = s[i + 1] == 'f' || s[i + 1] == 'F';
    const size_t digits = single ? 8 : 16;
    t.kind = single ? Token::kFloat32 : Token::kFloat64;
    t.value = static_cast<int64_t>(std::strtoull(s.substr(i + 2, digits).c_str(), nullptr, 16));
    i += 2 + digits;
  } else {
    size_t j = i;
    bool real = false;
    const bool hex = s[i] == '0' && i + 1 < s.size() && (s[i + 1] == 'x' || s[i + 1] == 'X');
    while (j < s.size() &&
           (std::isalnum(static_cast<unsigned char>(s[j])) ||
            (!hex && s[j] == '.' && std::isdigit(static_cast<unsigned char>(s[j + 1]))))) {
      real |= s[j] == '.';
      ++j;
    }
    std::string digits = s.substr(i, j - i);
    i = j;
    if (real) {
      t.kind = Token::kFloat64;
      const double d = std::strtod(digits.c_str(), nullptr);
      __builtin_memcpy(&t.value, &d, 8);
    } else {
      t.kind = Token::kInt;
      while (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
      const bool binary =
          digits.size() > 2 && digits[0] == '0' && (digits[1] == 'b' || digits[1] == 'B');
      t.value = static_cast<int64_t>(binary ? std::strtoull(digits.c_str() + 2, nullptr, 2)
                                            : std::strtoull(digits.c_str(), nullptr, 0));
    }
  }
  t.end = i;
  t.text = s.substr(t.begin, t.end - t.begin);
  return t;
}

}  // namespace

std::string line_text(const std::string& text, int line) {
  size_t at = 0;
  for (int i = 1; i < line && at != std::string::npos; ++i) {
    at = text.find('\n', at);
    if (at != std::string::npos) ++at;
  }
  if (at == std::string::npos) return "";
  std::string s = text.substr(at, text.find('\n', at) - at);
  const size_t first = s.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

std::vector<Token> tokenize(const std::string& s) {
  std::vector<Token> out;
  int line = 1;
  size_t i = 0;
  while (i < s.size()) {
    const char c = s[i];
    if (c == '\n') {
      ++line;
      ++i;
    } else if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
      ++i;
    } else if (c == '/' && i + 1 < s.size() && s[i + 1] == '/') {
      while (i < s.size() && s[i] != '\n') ++i;
    } else if (c == '/' && i + 1 < s.size() && s[i + 1] == '*') {
      const size_t close = s.find("*/", i + 2);
      const size_t stop = close == std::string::npos ? s.size() : close + 2;
      for (; i < stop; ++i) line += s[i] == '\n';
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      out.push_back(number(s, i, line));
    } else if (c == '"') {
      size_t j = i + 1;
      while (j < s.size() && s[j] != '"') j += s[j] == '\\' ? 2 : 1;
      out.push_back({Token::kString, s.substr(i + 1, j - i - 1), 0, line, i, j + 1});
      i = j + 1;
    } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' ||
               c == '.') {
      size_t j = i + 1;
      while (j < s.size() &&
             (name_char(s[j]) || (s[j] == ':' && s[j + 1] == ':' && name_char(s[j + 2])))) {
        j += s[j] == ':' ? 2 : 1;
      }
      out.push_back(
          {c == '.' ? Token::kDirective : Token::kName, s.substr(i, j - i), 0, line, i, j});
      i = j;
    } else {
      out.push_back({Token::kPunct, std::string(1, c), 0, line, i, i + 1});
      ++i;
    }
  }
  Token end;
  end.line = line;
  end.begin = end.end = s.size();
  out.push_back(end);
  return out;
}

}  // namespace sm100sim

// Sentences with values in them: words("found {}, {:#x} accepted", a, b). A stand-in for
// std::format, which the oldest supported compiler (gcc 12) lacks. Knows {} and {:#x} and nothing
// else.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

namespace sm100sim {

inline void words_into(std::ostringstream& out, std::string_view pattern) { out << pattern; }

template <typename First, typename... Rest>
void words_into(std::ostringstream& out, std::string_view pattern, const First& first,
                const Rest&... rest) {
  const size_t open = pattern.find('{');
  if (open == std::string_view::npos) {
    out << pattern;
    return;
  }
  const size_t close = pattern.find('}', open);
  out << pattern.substr(0, open);
  if constexpr (std::is_integral_v<First>) {
    if (close > open + 1) {
      out << "0x" << std::hex << static_cast<uint64_t>(first) << std::dec;
    } else {
      out << +first;
    }
  } else {
    out << first;
  }
  words_into(out, pattern.substr(close + 1), rest...);
}

template <typename... Values>
std::string words(std::string_view pattern, const Values&... values) {
  std::ostringstream out;
  words_into(out, pattern, values...);
  return out.str();
}

}  // namespace sm100sim

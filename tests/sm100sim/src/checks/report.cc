// See report.h.

#include "checks/report.h"

#include <cstdarg>
#include <cstdio>

namespace sm100sim {

std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string Report::text() const {
  std::string s = (warning ? "warning: " : "error: ") + kind + ": " + message;
  if (!rule.empty()) s += " [rule " + rule + "]";
  s += "\n  kernel " + kernel;
  if (device >= 0) s += ", device " + std::to_string(device);
  if (cta >= 0) s += ", CTA " + std::to_string(cta);
  if (warp >= 0) s += ", warp " + std::to_string(warp);
  if (lane >= 0) s += ", lane " + std::to_string(lane);
  if (address != 0)
    s += sm100sim::format(", address 0x%llx", static_cast<unsigned long long>(address));
  if (ptx_line > 0) s += "\n  PTX line " + std::to_string(ptx_line) + ": `" + ptx_text + "`";
  if (!source.empty()) s += "\n  source " + source;
  return s;
}

}  // namespace sm100sim

// The Python extension jax_megamoe._native: capsules of the FFI handlers, and facts about this
// build.
//
// It registers nothing itself: jax_megamoe compares versions first, since a handler built with
// newer headers than the runtime's would keep a whole backend from starting.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/handlers.h"
#include "cpu/layout.h"
#include "cpu/paths.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace {

nb::capsule capsule(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
}

nb::dict registrations() {
  nb::dict targets;
  targets["jax_megamoe.cpu.moe"] = capsule(megamoe::cpu::jax_megamoe_cpu_moe);
  targets["jax_megamoe.cpu.rows"] = capsule(megamoe::cpu::jax_megamoe_cpu_rows);
  return targets;
}

nb::dict build_info() {
  nb::dict info;
  info["xla_ffi_api_major"] = XLA_FFI_API_MAJOR;
  info["xla_ffi_api_minor"] = XLA_FFI_API_MINOR;
  info["compiler"] = __VERSION__;
  info["cpu_layout_version"] = megamoe::cpu::kLayoutVersion;
#if defined(JAX_MEGAMOE_SM100)
  info["sm100"] = true;
#else
  info["sm100"] = false;
#endif
  return info;
}

std::string cpu_path() {
  const megamoe::cpu::PathChoice& choice = megamoe::cpu::chosen_path();
  if (choice.path == nullptr) throw nb::value_error(choice.error.c_str());
  return choice.path->name;
}

std::vector<std::string> cpu_paths() {
  std::vector<std::string> names;
  for (const megamoe::cpu::Path* path : megamoe::cpu::available_paths())
    names.emplace_back(path->name);
  return names;
}

nb::capsule probe_call() { return capsule(megamoe::cpu::jax_megamoe_cpu_empty); }

const megamoe::cpu::Path& path_named(const std::string& name) {
  std::string accepted;
  for (const megamoe::cpu::Path* path : megamoe::cpu::available_paths()) {
    if (name == path->name) return *path;
    accepted += (accepted.empty() ? "" : ", ") + std::string(path->name);
  }
  throw nb::value_error(
      ("path: found \"" + name + "\", but this machine accepts: " + accepted).c_str());
}

int64_t probe_dots(const std::string& path, int64_t rounds) {
  const megamoe::cpu::Path& p = path_named(path);
  nb::gil_scoped_release released;
  return p.probe_dots(rounds);
}

int64_t probe_read(
    const std::string& path,
    const nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& memory) {
  const megamoe::cpu::Path& p = path_named(path);
  const uint8_t* data = memory.data();
  const auto bytes = static_cast<int64_t>(memory.size());
  nb::gil_scoped_release released;
  return p.probe_read(data, bytes);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Compiled parts of jax_megamoe: XLA FFI handlers and what this build contains.";
  m.def("registrations", &registrations,
        "FFI target name -> capsule of its handler (api_version 1).");
  m.def("build_info", &build_info, "What this extension was built with and which parts it has.");
  m.def("cpu_path", &cpu_path,
        "The instruction-set path in use; ValueError if the environment names none.");
  m.def("cpu_paths", &cpu_paths,
        "The instruction-set paths that this machine can run, fastest first.");
  m.def("probe_call", &probe_call,
        "Capsule of an FFI handler that does nothing, for benchmarks of the cost of a call.");
  m.def("probe_dots", &probe_dots, nb::arg("path"), nb::arg("rounds"),
        "Does a path's dots on registers; the number of multiply-adds, for a caller with a clock.");
  m.def("probe_read", &probe_read, nb::arg("path"), nb::arg("memory").noconvert(),
        "Reads an array of bytes as a path reads codes; the number of bytes read.");
}

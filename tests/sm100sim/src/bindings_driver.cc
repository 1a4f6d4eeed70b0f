// The driver face for Python: configuration, reports, and the table's address (tests call it
// through ctypes, harnesses link to it).

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings.h"
#include "driver/simulated.h"
#include "tma/tensor_map.h"

namespace nb = nanobind;
using namespace sm100sim;

void bind_driver(nb::module_& m) {
  m.def(
      "configure_driver",
      [](const std::vector<std::tuple<int, int, int, int>>& devices, uint64_t seed,
         const std::string& policy, const std::string& rules, bool races, bool exact_mma,
         int idle_limit) {
        std::vector<DeviceConfig> configs;
        for (const auto& [sms, major, minor, gpc] : devices)
          configs.push_back({sms, major, minor, gpc});
        configure_driver(
            configs, parse_options(seed, policy, rules, races, exact_mma, 4'000'000, idle_limit));
      },
      nb::arg("devices"), nb::arg("seed") = 0, nb::arg("policy") = "random",
      nb::arg("rules") = "hardware", nb::arg("races") = false, nb::arg("exact_mma") = false,
      nb::arg("idle_limit") = 64);
  m.def(
      "driver_table", [] { return reinterpret_cast<uintptr_t>(&simulated_driver()); },
      "Address of the jax_megamoe::cuda::Driver table.");
  m.def("driver_symbols", [] {
    return std::vector<std::string>(std::begin(jax_megamoe::cuda::kSymbols),
                                    std::end(jax_megamoe::cuda::kSymbols));
  });
  m.def("driver_reports", [] {
    nb::list out;
    for (const Report& r : take_reports()) out.append(report_dict(r));
    return out;
  });
  m.def("driver_launches", &take_launches);
  m.def("driver_refusal", &last_refusal);
  m.def(
      "tensor_map",
      [](uint32_t type, uint64_t address, std::vector<uint64_t> dim, std::vector<uint64_t> stride,
         std::vector<uint32_t> box, std::vector<uint32_t> element_stride, uint32_t interleave,
         uint32_t swizzle, uint32_t fill) {
        alignas(64) uint8_t object[128] = {};
        const tma::EncodeResult r = tma::encode_tiled(
            object, {type, static_cast<uint32_t>(dim.size()), address, dim.data(), stride.data(),
                     box.data(), element_stride.data(), interleave, swizzle, 0, fill});
        if (r.code != 0) throw nb::value_error(r.why.c_str());
        return nb::bytes(reinterpret_cast<const char*>(object), 128);
      },
      nb::arg("type"), nb::arg("address"), nb::arg("dim"), nb::arg("stride"), nb::arg("box"),
      nb::arg("element_stride"), nb::arg("interleave") = 0, nb::arg("swizzle") = 0,
      nb::arg("fill") = 0);
}

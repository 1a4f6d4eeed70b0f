// numerics for Python: element-wise over arrays of codes.
#include "numerics/arith.h"
#include "numerics/convert.h"
#include "parts_binding.h"

namespace sm100sim::parts {
namespace {

using namespace numerics;

constexpr const char* kFormats[] = {"f64",  "f32",  "tf32", "f16",  "bf16",  "e5m2",
                                    "e4m3", "e3m2", "e2m3", "e2m1", "ue8m0", "ue4m3"};
constexpr const char* kRounds[] = {"rn", "rz", "rm", "rp", "rna", "rs"};
constexpr const char* kApprox[] = {"ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh", "sin", "cos"};

Format format(const std::string& name) { return by_name<Format>(kFormats, name); }
Round rounding(const std::string& name) { return by_name<Round>(kRounds, name); }

template <typename Function>
Array<uint32_t> map2(const Input<uint32_t>& a, const Input<uint32_t>& b, Function function) {
  Array<uint32_t> out = make_array<uint32_t>({a.size()});
  for (size_t i = 0; i < a.size(); ++i) out.data()[i] = function(a.data()[i], b.data()[i]);
  return out;
}

}  // namespace

void bind_numerics(nb::module_& m) {
  using namespace nb::literals;
  m.def("encode",
        [](const std::string& to, const Input<double>& x, const std::string& round, bool satfinite,
           bool relu, bool sat, const Input<uint32_t>& random, int random_bits) {
          Array<uint64_t> out = make_array<uint64_t>({x.size()});
          Conversion how{rounding(round), satfinite, relu, sat, 0, random_bits};
          for (size_t i = 0; i < x.size(); ++i) {
            if (random.size()) how.random = random.data()[i];
            out.data()[i] = encode(format(to), x.data()[i], how);
          }
          return out;
        });
  m.def("decode", [](const std::string& from, const Input<uint64_t>& codes) {
    Array<double> out = make_array<double>({codes.size()});
    for (size_t i = 0; i < codes.size(); ++i) out.data()[i] = decode(format(from), codes.data()[i]);
    return out;
  });
  m.def("pack2", [](const std::string& to, float a, float b, const std::string& round,
                    bool satfinite, uint32_t random) {
    return pack2(format(to), a, b,
                 {.round = rounding(round), .satfinite = satfinite, .random = random});
  });
  m.def("pack4", [](const std::string& to, float a, float b, float e, float f,
                    const std::string& round, uint32_t random) {
    return pack4(format(to), a, b, e, f,
                 {.round = rounding(round), .satfinite = true, .random = random});
  });
  m.def("repack2",
        [](const std::string& to, const std::string& from, uint32_t a, bool satfinite, bool relu) {
          return repack2(format(to), format(from), a, {.satfinite = satfinite, .relu = relu});
        });
  m.def("to_integer", [](const Input<double>& x, const std::string& round, int bits, bool is_signed,
                         bool from_f64) {
    Array<uint64_t> out = make_array<uint64_t>({x.size()});
    for (size_t i = 0; i < x.size(); ++i)
      out.data()[i] = to_integer(x.data()[i], rounding(round), bits, is_signed, from_f64);
    return out;
  });
  m.def("from_integer", [](const std::string& to, const Input<uint64_t>& x, bool is_signed,
                           const std::string& round) {
    Array<uint64_t> out = make_array<uint64_t>({x.size()});
    for (size_t i = 0; i < x.size(); ++i)
      out.data()[i] = from_integer(format(to), x.data()[i], is_signed, {.round = rounding(round)});
    return out;
  });
  m.def("arith_f32", [](const std::string& op, const Input<uint32_t>& a, const Input<uint32_t>& b,
                        const Input<uint32_t>& c, const std::string& round, bool ftz, bool sat) {
    const F32Mode mode{rounding(round), ftz, sat};
    Array<uint32_t> out = make_array<uint32_t>({a.size()});
    for (size_t i = 0; i < a.size(); ++i) {
      const uint32_t x = a.data()[i], y = b.data()[i], z = c.data()[i];
      out.data()[i] = op == "add"   ? add_f32(x, y, mode)
                      : op == "mul" ? mul_f32(x, y, mode)
                      : op == "fma" ? fma_f32(x, y, z, mode)
                      : op == "div" ? div_f32(x, y, mode)
                                    : sqrt_f32(x, mode);
    }
    return out;
  });
  m.def("arith_f32x2", [](const std::string& op, uint64_t a, uint64_t b, uint64_t c) {
    return op == "add" ? add_f32x2(a, b) : op == "mul" ? mul_f32x2(a, b) : fma_f32x2(a, b, c);
  });
  m.def("arith_half",
        [](const std::string& op, const std::string& which, const Input<uint32_t>& a,
           const Input<uint32_t>& b, const Input<uint32_t>& c, bool ftz, bool sat, bool relu) {
          const HalfMode mode{ftz, sat, relu};
          const Format f = format(which);
          Array<uint32_t> out = make_array<uint32_t>({a.size()});
          for (size_t i = 0; i < a.size(); ++i) {
            const uint32_t x = a.data()[i], y = b.data()[i], z = c.data()[i];
            out.data()[i] = op == "add"   ? add_half2(f, x, y, mode)
                            : op == "sub" ? sub_half2(f, x, y, mode)
                            : op == "mul" ? mul_half2(f, x, y, mode)
                                          : fma_half2(f, x, y, z, mode);
          }
          return out;
        });
  m.def("add_f32_narrow", [](const std::string& narrow, const Input<uint32_t>& a,
                             const Input<uint32_t>& c, bool subtract) {
    return map2(a, c, [&](uint32_t x, uint32_t y) {
      return add_f32_narrow(format(narrow), x, y, subtract);
    });
  });
  m.def("min_max", [](const std::string& which, const Input<uint32_t>& a, const Input<uint32_t>& b,
                      bool maximum, bool ftz, bool nan, bool xorsign_abs) {
    return map2(a, b, [&](uint32_t x, uint32_t y) {
      return min_max(format(which), x, y, maximum,
                     {.ftz = ftz, .nan = nan, .xorsign_abs = xorsign_abs});
    });
  });
  m.def("approximate", [](const std::string& function, const std::string& which,
                          const Input<uint32_t>& a, bool ftz) {
    Array<uint32_t> out = make_array<uint32_t>({a.size()});
    for (size_t i = 0; i < a.size(); ++i)
      out.data()[i] =
          approximate(by_name<Approx>(kApprox, function), format(which), a.data()[i], ftz);
    return out;
  });
}

}  // namespace sm100sim::parts

// tma for Python: maps as bytes, plans as arrays of runs.
#include <cstring>

#include "parts_binding.h"
#include "tma/box.h"
#include "tma/tensor_map.h"

namespace sm100sim::parts {
namespace {

using namespace tma;

nb::dict describe(const CopyPlan& plan) {
  Array<int64_t> runs = make_array<int64_t>({plan.runs.size(), 4});
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const Run& run = plan.runs[i];
    int64_t* row = runs.data() + 4 * i;
    row[0] = run.shared;
    row[1] = static_cast<int64_t>(run.global);
    row[2] = run.bytes;
    row[3] = static_cast<int64_t>(run.kind);
  }
  nb::dict out;
  out["runs"] = runs;
  out["tx"] = plan.transaction_bytes;
  out["errors"] = plan.errors;
  out["fill"] = plan.fill_pattern;
  out["range"] = nb::make_tuple(plan.shared_low, plan.shared_high);
  return out;
}

constexpr const char* kReduceOps[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
constexpr const char* kReduceTypes[] = {"u32", "s32", "u64", "s64", "f16",    "bf16",
                                        "f32", "f64", "b32", "b64", "f32.ftz"};

}  // namespace

void bind_tma(nb::module_& m) {
  m.def("tensor_map", [](uint32_t type, uint32_t rank, uint64_t address, std::vector<uint64_t> dim,
                         std::vector<uint64_t> stride, std::vector<uint32_t> box,
                         std::vector<uint32_t> element_stride, uint32_t interleave,
                         uint32_t swizzle, uint32_t l2, uint32_t fill, int misalign) {
    alignas(64) uint8_t object[192] = {};
    const EncodeResult result =
        encode_tiled(object + misalign, {type, rank, address, dim.data(), stride.data(), box.data(),
                                         element_stride.data(), interleave, swizzle, l2, fill});
    return nb::make_tuple(result.code, result.why,
                          nb::bytes(reinterpret_cast<char*>(object + misalign), 128));
  });
  m.def("replace_field", [](nb::bytes object, int field, int ordinal, uint64_t value) {
    alignas(64) uint8_t bytes[128];
    std::memcpy(bytes, object.c_str(), 128);
    std::string why;
    replace_field(bytes, static_cast<MapField>(field), ordinal, value, &why);
    return nb::make_tuple(nb::bytes(reinterpret_cast<char*>(bytes), 128), why);
  });
  m.def("plan", [](nb::bytes object, int direction, int mode, std::vector<int32_t> coordinates,
                   uint32_t shared) {
    std::string why;
    alignas(64) uint8_t bytes[128];
    std::memcpy(bytes, object.c_str(), 128);
    const auto map = decode(bytes, &why);
    if (!map) throw std::invalid_argument(why);
    TensorCopy copy{static_cast<Direction>(direction),
                    static_cast<Mode>(mode),
                    static_cast<int>(coordinates.size()),
                    {},
                    shared};
    for (size_t i = 0; i < coordinates.size() && i < 5; ++i) copy.coordinates[i] = coordinates[i];
    return describe(plan_tensor_copy(*map, copy));
  });
  m.def("plan_bulk", [](uint32_t shared, uint64_t global, uint64_t bytes) {
    return describe(plan_bulk_copy(shared, global, bytes));
  });
  m.def("swizzle", [](int mode, const Input<uint32_t>& addresses) {
    Array<uint32_t> out = make_array<uint32_t>({addresses.size()});
    for (size_t i = 0; i < addresses.size(); ++i)
      out.data()[i] = swizzle_address(static_cast<Swizzle>(mode), addresses.data()[i]);
    return out;
  });
  m.def("reduce", [](const std::string& op, const std::string& type, Array<uint8_t> destination,
                     const Input<uint8_t>& source) {
    const auto t = by_name<ReduceType>(kReduceTypes, type);
    const size_t step = static_cast<size_t>(reduce_bytes(t));
    for (size_t i = 0; i + step <= destination.size(); i += step)
      reduce_element(by_name<ReduceOp>(kReduceOps, op), t, destination.data() + i,
                     source.data() + i);
  });
  m.def("reduce_legal", [](const std::string& op, const std::string& type) {
    return reduce_legal(by_name<ReduceOp>(kReduceOps, op), by_name<ReduceType>(kReduceTypes, type));
  });
}

}  // namespace sm100sim::parts

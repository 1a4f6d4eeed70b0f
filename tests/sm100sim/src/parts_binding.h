// What the binding files of `_sm100sim_parts` share: arrays in, arrays out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace sm100sim::parts {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;
template <typename T>
using Input = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;

// A new NumPy array that owns its memory.
template <typename T>
Array<T> make_array(std::vector<size_t> shape) {
  size_t size = 1;
  for (size_t extent : shape) size *= extent;
  T* data = new T[size ? size : 1]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Array<T>(data, shape.size(), shape.data(), owner);
}

// Index of a name in a list, as an enumerator.
template <typename Enum, size_t N>
Enum by_name(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<Enum>(i);
  throw std::invalid_argument("unknown name: " + name);
}

void bind_numerics(nb::module_& module);
void bind_tma(nb::module_& module);
void bind_tensorcore(nb::module_& module);

}  // namespace sm100sim::parts

// The parts of the Python module. Each room with functions worth testing on their own adds a
// `bind_*` in its own bindings_<room>.cc.
#pragma once

#include <nanobind/nanobind.h>

void bind_machine(nanobind::module_& m);

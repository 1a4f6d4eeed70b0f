// The parts of the Python module _sm100sim.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "checks/report.h"
#include "machine/options.h"

nanobind::dict report_dict(const sm100sim::Report& report);
sm100sim::Options parse_options(uint64_t seed, const std::string& policy, const std::string& rules,
                                bool races, bool exact_mma, uint64_t step_limit, int idle_limit);

void bind_machine(nanobind::module_& m);
void bind_driver(nanobind::module_& m);

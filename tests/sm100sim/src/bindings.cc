// The Python module _sm100sim: the machine face. Convenience (packing of parameters, exceptions,
// NumPy) is in the Python package sm100sim.

#include "bindings.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "instructions/table.h"
#include "machine/engine.h"

namespace nb = nanobind;
using namespace sm100sim;

namespace {

/// A world with its devices; owns the modules loaded into it.
struct Machine {
  World world;
  std::vector<std::unique_ptr<ModuleImage>> modules;

  explicit Machine(const std::vector<std::tuple<int, int, int, int>>& devices) {
    for (const auto& [sms, major, minor, gpc] : devices) {
      auto d = std::make_unique<Device>();
      d->id = static_cast<int>(world.devices.size());
      d->config = {sms, major, minor, gpc};
      d->sms.resize(static_cast<size_t>(sms));
      for (int i = 0; i < sms; ++i) {
        d->sms[static_cast<size_t>(i)].id = i;
        d->sms[static_cast<size_t>(i)].gpc = i / gpc;
      }
      world.devices.push_back(std::move(d));
    }
  }

  Block& block(uint64_t address, uint64_t bytes) {
    Block* b = world.memory.find(address);
    if (b == nullptr || !b->contains(address, bytes))
      throw nb::value_error(format("%llu bytes at 0x%llx are not inside one allocation; %s",
                                   static_cast<unsigned long long>(bytes),
                                   static_cast<unsigned long long>(address),
                                   world.memory.nearest(address).c_str())
                                .c_str());
    return *b;
  }

  void write(uint64_t address, nb::bytes data) {
    if (data.size() == 0) return;
    Block& b = block(address, data.size());
    const uint64_t at = address - b.base;
    std::memcpy(b.data + at, data.c_str(), data.size());
    std::memset(b.shadow.get() + at, 0, data.size());
    b.note_write(at, data.size(), 0, 0);
  }

  nb::bytes read(uint64_t address, uint64_t bytes) {
    if (bytes == 0) return nb::bytes("", 0);
    Block& b = block(address, bytes);
    return nb::bytes(reinterpret_cast<const char*>(b.data + (address - b.base)), bytes);
  }

  nb::bytes shadow(uint64_t address, uint64_t bytes) {
    if (bytes == 0) return nb::bytes("", 0);
    Block& b = block(address, bytes);
    return nb::bytes(reinterpret_cast<const char*>(b.shadow.get() + (address - b.base)), bytes);
  }
};

struct ModuleHandle {
  Machine* machine;
  ModuleImage* image;
  const Program& program(const std::string& name) const {
    const auto it = image->programs.find(name);
    if (it == image->programs.end() || !it->second->entry)
      throw nb::value_error(("no kernel named " + name).c_str());
    return *it->second;
  }
};

nb::dict statistics(const Statistics& s) {
  nb::dict d, by_class;
  for (int i = 0; i < kClasses; ++i)
    by_class[class_name(static_cast<Class>(i))] = s.instructions[i];
  d["instructions"] = by_class;
  d["thread_instructions"] = s.thread_instructions;
  d["warp_instructions"] = s.warp_instructions;
  d["global_read"] = s.global_read;
  d["global_written"] = s.global_written;
  d["peer_read"] = s.peer_read;
  d["peer_written"] = s.peer_written;
  d["tma_read"] = s.tma_read;
  d["tma_written"] = s.tma_written;
  d["bulk_read"] = s.bulk_read;
  d["bulk_written"] = s.bulk_written;
  d["mma_macs"] = s.mma_macs;
  d["mma_instructions"] = s.mma_instructions;
  d["bank_conflicts"] = s.bank_conflicts;
  d["barrier_waits"] = s.barrier_waits;
  d["tasks"] = s.tasks;
  d["seconds"] = s.seconds;
  return d;
}

LaunchConfig config_of(std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
                       std::optional<std::array<uint32_t, 3>> cluster, uint32_t shared,
                       bool cooperative, bool programmatic, const Program& p) {
  LaunchConfig c;
  std::copy(grid.begin(), grid.end(), c.grid);
  std::copy(block.begin(), block.end(), c.block);
  if (cluster)
    std::copy(cluster->begin(), cluster->end(), c.cluster);
  else if (p.cluster[0])
    std::copy(p.cluster, p.cluster + 3, c.cluster);
  c.explicit_cluster = cluster.has_value() || p.cluster[0];
  c.dynamic_shared = shared;
  c.cooperative = cooperative;
  c.programmatic = programmatic;
  return c;
}

}  // namespace

nb::dict report_dict(const Report& r) {
  nb::dict d;
  d["kind"] = r.kind;
  d["rule"] = r.rule;
  d["warning"] = r.warning;
  d["message"] = r.message;
  d["text"] = r.text();
  d["kernel"] = r.kernel;
  d["ptx_line"] = r.ptx_line;
  d["ptx_text"] = r.ptx_text;
  d["source"] = r.source;
  d["device"] = r.device;
  d["cta"] = r.cta;
  d["warp"] = r.warp;
  d["lane"] = r.lane;
  d["address"] = r.address;
  return d;
}

Options parse_options(uint64_t seed, const std::string& policy, const std::string& rules,
                      bool races, bool exact_mma, uint64_t step_limit, int idle_limit) {
  if (policy != "eager" && policy != "latest" && policy != "random")
    throw nb::value_error(("policy `" + policy + "`: random, eager or latest").c_str());
  if (rules != "strict" && rules != "hardware")
    throw nb::value_error(("rules `" + rules + "`: strict or hardware").c_str());
  Options o;
  o.seed = seed;
  o.policy = policy == "eager"    ? Policy::kEager
             : policy == "latest" ? Policy::kLatest
                                  : Policy::kRandom;
  o.rules = rules == "strict" ? Rules::kStrict : Rules::kHardware;
  o.races = races;
  o.exact_mma = exact_mma;
  o.step_limit = step_limit;
  o.idle_limit = idle_limit;
  return o;
}

void bind_machine(nb::module_& m) {
  nb::exception<PtxError>(m, "PtxError");
  static nb::exception<LaunchRefused> refused(m, "LaunchRefused");

  nb::class_<Grid>(m, "Launch")
      .def_prop_ro("done", [](const Grid& g) { return g.done; })
      .def_prop_ro("failed", [](const Grid& g) { return g.failed; })
      .def_prop_ro("output", [](const Grid& g) { return g.output; })
      .def_prop_ro("reports",
                   [](const Grid& g) {
                     nb::list l;
                     for (const Report& r : g.reports) l.append(report_dict(r));
                     return l;
                   })
      .def_prop_ro("statistics", [](const Grid& g) { return statistics(g.stats); });

  nb::class_<ModuleHandle>(m, "Module")
      .def("kernels",
           [](const ModuleHandle& h) {
             std::vector<std::string> names;
             for (const auto& [name, p] : h.image->programs) {
               if (p->entry) names.push_back(name);
             }
             return names;
           })
      .def("params",
           [](const ModuleHandle& h, const std::string& kernel) {
             std::vector<std::pair<uint32_t, uint32_t>> out;
             for (const ParamSlot& s : h.program(kernel).params)
               out.emplace_back(s.offset, s.bytes);
             return out;
           })
      .def("param_bytes", [](const ModuleHandle& h,
                             const std::string& kernel) { return h.program(kernel).param_bytes; })
      .def("variable", [](const ModuleHandle& h, const std::string& name) {
        const auto it = h.image->globals.find(name);
        if (it == h.image->globals.end())
          throw nb::value_error(("no variable named " + name).c_str());
        return std::make_pair(it->second->base, it->second->size);
      });

  nb::class_<Machine>(m, "Machine")
      .def(nb::init<const std::vector<std::tuple<int, int, int, int>>&>())
      .def(
          "alloc",
          [](Machine& self, uint64_t bytes, int device, uint64_t align, const std::string& label) {
            return self.world.memory.allocate(device, bytes, align, label)->base;
          },
          nb::arg("bytes"), nb::arg("device") = 0, nb::arg("align") = 256, nb::arg("label") = "")
      .def("free",
           [](Machine& self, uint64_t address) {
             self.world.last_block = nullptr;
             if (!self.world.memory.free(address))
               throw nb::value_error("not the address of an allocation");
           })
      .def("write", &Machine::write)
      .def("read", &Machine::read)
      .def("shadow", &Machine::shadow, "One byte per byte of memory; bit 0: undefined.")
      .def("enable_peer", [](Machine& self, int a, int b) { self.world.device(a).peers.insert(b); })
      .def(
          "load",
          [](Machine& self, const std::string& ptx, int device) {
            self.modules.push_back(link_module(self.world, device, ptx));
            return ModuleHandle{&self, self.modules.back().get()};
          },
          nb::arg("ptx"), nb::arg("device") = 0, nb::keep_alive<0, 1>())
      .def(
          "launch",
          [](Machine& self, const ModuleHandle& module, const std::string& kernel, nb::bytes params,
             std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
             std::optional<std::array<uint32_t, 3>> cluster, uint32_t shared, bool cooperative,
             bool programmatic, uint64_t seed, const std::string& policy, const std::string& rules,
             bool races, bool exact_mma, uint64_t step_limit, int idle_limit,
             std::vector<std::shared_ptr<Grid>> after) {
            const Program& p = module.program(kernel);
            const Options o =
                parse_options(seed, policy, rules, races, exact_mma, step_limit, idle_limit);
            std::vector<uint8_t> bytes(params.size());
            std::memcpy(bytes.data(), params.c_str(), params.size());
            return launch(self.world, p, std::move(bytes),
                          config_of(grid, block, cluster, shared, cooperative, programmatic, p), o,
                          std::move(after));
          },
          nb::arg("module"), nb::arg("kernel"), nb::arg("params"), nb::arg("grid"),
          nb::arg("block"), nb::arg("cluster") = nb::none(), nb::arg("shared") = 0,
          nb::arg("cooperative") = false, nb::arg("programmatic") = false, nb::arg("seed") = 0,
          nb::arg("policy") = "random", nb::arg("rules") = "hardware", nb::arg("races") = false,
          nb::arg("exact_mma") = false, nb::arg("step_limit") = 4000000, nb::arg("idle_limit") = 64,
          nb::arg("after") = std::vector<std::shared_ptr<Grid>>{}, nb::keep_alive<0, 1>())
      .def(
          "run",
          [](Machine& self, const Grid* grid) {
            nb::gil_scoped_release release;
            run(self.world, grid);
          },
          nb::arg("grid") = nb::none())
      .def(
          "occupancy",
          [](Machine& self, const ModuleHandle& module, const std::string& kernel,
             std::array<uint32_t, 3> block, std::optional<std::array<uint32_t, 3>> cluster,
             uint32_t shared) {
            const Program& p = module.program(kernel);
            const LaunchConfig c = config_of({1, 1, 1}, block, cluster, shared, false, false, p);
            return std::make_pair(
                ctas_per_sm(p, c),
                max_active_clusters(self.world.device(module.image->device), p, c));
          },
          nb::arg("module"), nb::arg("kernel"), nb::arg("block"), nb::arg("cluster") = nb::none(),
          nb::arg("shared") = 0);

  m.def("forms", &all_forms, "Syntax lines of the instruction table.");
}

NB_MODULE(_sm100sim, m) {
  m.doc() = "Functional simulator of the SM100, for tests.";
  bind_machine(m);
  bind_driver(m);
}

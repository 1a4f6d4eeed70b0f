// Modules, functions, occupancy, tensor maps and launches of the driver face.

#include <cstring>

#include "driver/state.h"
#include "tma/tensor_map.h"

namespace sm100sim::driver {
namespace {

cu::Result load(cu::Module* out, const void* image) {
  auto l = lock();
  if (current_device() < 0) return cu::kInvalidContext;
  auto m = std::make_unique<ModuleState>();
  try {
    m->image = link_module(state().world, current_device(), static_cast<const char*>(image));
  } catch (const PtxError& e) {
    return refuse(cu::kInvalidPtx, e.what());
  }
  *out = reinterpret_cast<cu::Module>(m.get());
  state().modules.push_back(std::move(m));
  return cu::kSuccess;
}
cu::Result unload(cu::Module module) {
  auto l = lock();
  auto& all = state().modules;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].get() != reinterpret_cast<ModuleState*>(module)) continue;
    state().world.last_block = nullptr;
    unload_module(state().world, *all[i]->image);
    all[i].reset();  // its programs may still be named by finished launches' reports only
    all.erase(all.begin() + static_cast<long>(i));
    return cu::kSuccess;
  }
  return cu::kInvalidHandle;
}
cu::Result function(cu::Function* out, cu::Module module, const char* name) {
  auto l = lock();
  ModuleState& m = *reinterpret_cast<ModuleState*>(module);
  const auto it = m.image->programs.find(name);
  if (it == m.image->programs.end() || !it->second->entry)
    return refuse(cu::kNotFound, std::string("no kernel named ") + name);
  auto& f = m.functions[name];
  if (f == nullptr) {
    f = std::make_unique<FunctionState>();
    f->program = it->second.get();
    f->device = m.image->device;
  }
  *out = reinterpret_cast<cu::Function>(f.get());
  return cu::kSuccess;
}
cu::Result global(cu::DevicePtr* p, size_t* bytes, cu::Module module, const char* name) {
  auto l = lock();
  ModuleState& m = *reinterpret_cast<ModuleState*>(module);
  const auto it = m.image->globals.find(name);
  if (it == m.image->globals.end()) return cu::kNotFound;
  if (p != nullptr) *p = it->second->base;
  if (bytes != nullptr) *bytes = it->second->size;
  return cu::kSuccess;
}
cu::Result set_attribute(cu::Function function, int attribute, int value) {
  auto l = lock();
  FunctionState& f = *reinterpret_cast<FunctionState*>(function);
  if (attribute == cu::kFuncMaxDynamicShared) {
    const int room = static_cast<int>(kSharedOptIn - (f.program->static_shared - kReservedShared));
    if (value < 0 || value > room)
      return refuse(cu::kInvalidValue,
                    format("%d bytes of dynamic shared memory, at most %d", value, room));
    f.max_dynamic_shared = value;
  } else if (attribute == cu::kFuncNonPortableClusterSize) {
    f.non_portable = value != 0;
  }
  return cu::kSuccess;
}
cu::Result get_attribute(int* value, int attribute, cu::Function function) {
  auto l = lock();
  const FunctionState& f = *reinterpret_cast<FunctionState*>(function);
  switch (attribute) {
    case cu::kFuncMaxThreadsPerBlock:
      *value = static_cast<int>(f.program->max_threads);
      break;
    case cu::kFuncSharedBytes:
      *value = static_cast<int>(f.program->static_shared - kReservedShared);
      break;
    case cu::kFuncLocalBytes:
      *value = static_cast<int>(f.program->local_bytes);
      break;
    case cu::kFuncNumRegs:
      *value = static_cast<int>(f.program->regs_per_thread);
      break;
    case cu::kFuncMaxDynamicShared:
      *value = f.max_dynamic_shared;
      break;
    case cu::kFuncNonPortableClusterSize:
      *value = f.non_portable;
      break;
    default:
      return cu::kInvalidValue;
  }
  return cu::kSuccess;
}

cu::Result read_config(const cu::LaunchConfig& c, const FunctionState& f, LaunchConfig* out) {
  const unsigned grid[3] = {c.grid_x, c.grid_y, c.grid_z},
                 block[3] = {c.block_x, c.block_y, c.block_z};
  std::copy(grid, grid + 3, out->grid);
  std::copy(block, block + 3, out->block);
  if (f.program->cluster[0]) {
    std::copy(f.program->cluster, f.program->cluster + 3, out->cluster);
    out->explicit_cluster = true;
  }
  out->dynamic_shared = c.shared_bytes;
  for (unsigned i = 0; i < c.attribute_count; ++i) {
    const cu::LaunchAttribute& a = c.attributes[i];
    switch (a.id) {
      case cu::kAttrIgnore:
      case cu::kAttrPriority:
      case cu::kAttrClusterSchedulingPolicy:
        break;
      case cu::kAttrCooperative:
        out->cooperative = a.value.cooperative != 0;
        break;
      case cu::kAttrProgrammaticStreamSerialization:
        out->programmatic = a.value.programmatic != 0;
        break;
      case cu::kAttrClusterDimension:
        out->cluster[0] = a.value.cluster.x, out->cluster[1] = a.value.cluster.y,
        out->cluster[2] = a.value.cluster.z;
        out->explicit_cluster = true;
        break;
      default:
        return refuse(cu::kNotSupported,
                      "launch attribute " + std::to_string(a.id) + " is not simulated");
    }
  }
  if (static_cast<int>(c.shared_bytes) > f.max_dynamic_shared) {
    return refuse(cu::kInvalidValue,
                  format("%u bytes of dynamic shared memory, the function allows %d "
                         "(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)",
                         c.shared_bytes, f.max_dynamic_shared));
  }
  if (out->cluster[0] * out->cluster[1] * out->cluster[2] > 8 && !f.non_portable) {
    return refuse(
        cu::kInvalidClusterSize,
        "clusters of more than 8 CTAs need CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED");
  }
  return cu::kSuccess;
}

cu::Result blocks(int* n, cu::Function function, int block_size, size_t shared) {
  auto l = lock();
  LaunchConfig c;
  c.block[0] = static_cast<uint32_t>(block_size);
  c.dynamic_shared = static_cast<uint32_t>(shared);
  *n = ctas_per_sm(*reinterpret_cast<FunctionState*>(function)->program, c);
  return cu::kSuccess;
}
cu::Result clusters(int* n, cu::Function function, const cu::LaunchConfig* config) {
  auto l = lock();
  const FunctionState& f = *reinterpret_cast<FunctionState*>(function);
  LaunchConfig c;
  const cu::Result r = read_config(*config, f, &c);
  if (r != cu::kSuccess) return r;
  *n = max_active_clusters(state().world.device(f.device), *f.program, c);
  return cu::kSuccess;
}

cu::Result encode(cu::TensorMap* map, int type, unsigned rank, void* address, const uint64_t* dim,
                  const uint64_t* stride, const uint32_t* box, const uint32_t* element_stride,
                  int interleave, int swizzle, int l2, int fill) {
  const tma::EncodeResult r = tma::encode_tiled(
      map, {static_cast<uint32_t>(type), rank, reinterpret_cast<uint64_t>(address), dim, stride,
            box, element_stride, static_cast<uint32_t>(interleave), static_cast<uint32_t>(swizzle),
            static_cast<uint32_t>(l2), static_cast<uint32_t>(fill)});
  auto l = lock();
  return r.code == 0 ? cu::kSuccess : refuse(r.code, r.why);
}

cu::Result launch_ex(const cu::LaunchConfig* config, cu::Function function, void** params,
                     void** extra) {
  auto l = lock();
  if (extra != nullptr)
    return refuse(cu::kNotSupported, "the `extra` argument of cuLaunchKernelEx is not simulated");
  StreamState* s = stream_of(config->stream);
  if (s == nullptr) return cu::kInvalidHandle;
  const FunctionState& f = *reinterpret_cast<FunctionState*>(function);
  LaunchConfig c;
  const cu::Result r = read_config(*config, f, &c);
  if (r != cu::kSuccess) return r;
  if (f.device != s->device)
    return refuse(cu::kInvalidHandle, "the function belongs to another device than the stream");
  try {
    check_launch(state().world.device(f.device), *f.program, c);
  } catch (const LaunchRefused& e) {
    return refuse(e.code, e.what());
  }
  std::vector<uint8_t> bytes(f.program->param_bytes);
  for (size_t k = 0; k < f.program->params.size(); ++k)
    std::memcpy(&bytes[f.program->params[k].offset], params[k], f.program->params[k].bytes);
  const Program* program = f.program;
  Work w;
  w.programmatic = c.programmatic;
  w.launch = [=](std::vector<std::shared_ptr<Grid>> after) {
    std::shared_ptr<Grid> g =
        launch(state().world, *program, bytes, c, state().options, std::move(after),
               [](Grid& done) { state().failed |= done.failed; });
    state().launches.push_back(g);
    return g;
  };
  return submit(*s, std::move(w));
}

}  // namespace

void fill_modules(cu::Driver& t) {
  t.module_load_data = load;
  t.module_unload = unload;
  t.module_get_function = function;
  t.module_get_global = global;
  t.func_set_attribute = set_attribute;
  t.func_get_attribute = get_attribute;
  t.occupancy_max_active_blocks = blocks;
  t.occupancy_max_active_clusters = clusters;
  t.tensor_map_encode_tiled = encode;
  t.launch_kernel_ex = launch_ex;
}

}  // namespace sm100sim::driver

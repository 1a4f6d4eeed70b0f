// The Python module `_sm100sim_parts`: the simulator's pure libraries, for tests that compare them
// with NumPy, ml_dtypes and CuTe.
#include "parts_binding.h"

NB_MODULE(_sm100sim_parts, module) {
  sm100sim::parts::bind_numerics(module);
  sm100sim::parts::bind_tma(module);
  sm100sim::parts::bind_tensorcore(module);
}

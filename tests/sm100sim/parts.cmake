# The pure libraries (numerics, tma, tensorcore) and the Python module that tests them alone, `_sm100sim_parts`. Included by CMakeLists.txt
# after nanobind was found.
set(SM100SIM_PARTS_DIR ${CMAKE_CURRENT_LIST_DIR}/src)

add_library(sm100sim_parts STATIC
  ${SM100SIM_PARTS_DIR}/numerics/arith.cc
  ${SM100SIM_PARTS_DIR}/numerics/convert.cc
  ${SM100SIM_PARTS_DIR}/numerics/format.cc
  ${SM100SIM_PARTS_DIR}/tma/box.cc
  ${SM100SIM_PARTS_DIR}/tma/reduce.cc
  ${SM100SIM_PARTS_DIR}/tma/tensor_map.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/arithmetic.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/block_sum.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/copy.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/descriptor.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/fragment.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/mma.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/operand.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/scale_factors.cc
  ${SM100SIM_PARTS_DIR}/tensorcore/tmem.cc)
target_include_directories(sm100sim_parts PUBLIC ${SM100SIM_PARTS_DIR})
target_compile_features(sm100sim_parts PUBLIC cxx_std_20)
set_target_properties(sm100sim_parts PROPERTIES POSITION_INDEPENDENT_CODE ON)
# Cut and compared values depend on no trap and no errno; contraction never changes a sum that is exact anyway, but elsewhere it would.
target_compile_options(sm100sim_parts PRIVATE -O3 -Wall -Wextra -fno-math-errno -fno-trapping-math -ffp-contract=off -Wno-psabi)

nanobind_add_module(_sm100sim_parts NB_STATIC
  ${SM100SIM_PARTS_DIR}/parts_binding.cc
  ${SM100SIM_PARTS_DIR}/parts_numerics.cc
  ${SM100SIM_PARTS_DIR}/parts_tma.cc
  ${SM100SIM_PARTS_DIR}/parts_tensorcore.cc)
target_link_libraries(_sm100sim_parts PRIVATE sm100sim_parts)

// The kernel of one VARIANT, for the device: nothing but its instantiation.
#include "cutlass/device_kernel.h"
#include "kernel.h"

template __global__ void cutlass::device_kernel<Kernel>(const __grid_constant__
                                                        typename Kernel::Params);

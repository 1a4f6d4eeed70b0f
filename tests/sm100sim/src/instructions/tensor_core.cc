#include "instructions/table.h"
namespace sm100sim {
void forms_tensor_core(std::vector<Form>&) {}
}  // namespace sm100sim

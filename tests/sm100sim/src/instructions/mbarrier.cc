#include "instructions/table.h"
namespace sm100sim {
void forms_mbarrier(std::vector<Form>&) {}
}  // namespace sm100sim

#include "instructions/table.h"
namespace sm100sim {
void forms_bulk(std::vector<Form>&) {}
}  // namespace sm100sim

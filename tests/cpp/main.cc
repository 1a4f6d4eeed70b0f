// Runs the registered tests; an argument selects those whose name contains it.
#include "harness.h"

int main(int argc, char** argv) { return harness::run_all(argc, argv); }

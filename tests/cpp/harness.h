// A test harness of a page: TEST registers a function, CHECK records a failure and goes on, main
// runs those whose names contain an argument (all without one) and fails if any check did.
#pragma once

#include <cstdio>
#include <cstring>
#include <vector>

namespace harness {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> list;
  return list;
}
inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline int run_all(int argc, char** argv) {
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = failures();
    test.run();
    std::printf("%s %s\n", failures() == before ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
  }
  return failures() == 0 ? 0 : 1;
}

}  // namespace harness

#define TEST(name)                                             \
  static void name();                                          \
  static const harness::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition, ...)                                               \
  do {                                                                      \
    if (!(condition)) {                                                     \
      if (++harness::failures() <= 50) {                                    \
        std::printf("%s:%d: %s is false;", __FILE__, __LINE__, #condition); \
        std::printf(" " __VA_ARGS__);                                       \
        std::printf("\n");                                                  \
      }                                                                     \
    }                                                                       \
  } while (0)

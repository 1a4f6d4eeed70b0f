// The compact form that is executed: one Instr per PTX statement, operands resolved to register
// numbers, constants pooled, branches resolved to statement indices with their reconvergence point.
// Made once per module by machine/link.cc with the builders of src/instructions; read-only
// afterwards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/ast.h"
#include "machine/value.h"

namespace sm100sim {

struct Exec;
struct Instr;

enum class Flow : uint8_t {
  kNext,  // go on with the following statement
  kWait,  // the fragment waits (Fragment::wait says for what); the same statement runs again when
          // woken
  kJump,  // the handler moved the program counter itself
};
using Handler = Flow (*)(Exec&, const Instr&);

/// Where an operand's value is.
struct Ref {
  enum Kind : uint8_t { kNone, kReg, kPred, kConst, kSpecial };
  Kind kind = kNone;
  bool negated = false;  // predicates
  int32_t index = 0;
  explicit operator bool() const { return kind != kNone; }
};

enum class Class : uint8_t {
  kInteger,
  kFloat,
  kConvert,
  kMove,
  kControl,
  kWarp,
  kShared,
  kGlobal,
  kLocal,
  kAtomic,
  kBarrier,
  kMbarrier,
  kFence,
  kBulk,
  kTensorMemory,
  kTensorCore,
  kOther,
  kCount
};
inline constexpr int kClasses = static_cast<int>(Class::kCount);
const char* class_name(Class c);

/// What only some forms need: operand lists and small settings.
struct Extra {
  std::vector<Ref> list, list2;
  std::vector<int32_t> targets;
  std::string text;
  int64_t imm[8] = {};
};

struct Instr {
  Handler fn = nullptr;
  Ref d, d2, a, b, c, e;
  int64_t imm = 0;     // address offset or form-specific
  int32_t guard = -1;  // predicate
  bool guard_negated = false;
  uint8_t bytes = 0;  // access width per element
  uint8_t count = 1;  // vector elements
  uint8_t space = 0;  // memory/space.h Space
  uint8_t order = 0;  // memory/order.h
  uint8_t scope = 0;
  uint8_t flags = 0;  // form-specific
  Class cls = Class::kOther;
  int32_t target = -1;  // branch
  int32_t reconverge = -1;
  int32_t aux = 0;     // form-specific
  int32_t extra = -1;  // Program::extras
  int32_t statement = -1;
};

enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterCtarank,
  kClusterNctarank,
  kIsExplicitCluster,
  kSmid,
  kNsmid,
  kGridid,
  kLanemaskEq,
  kLanemaskLt,
  kLanemaskLe,
  kLanemaskGt,
  kLanemaskGe,
  kDynamicSmemSize,
  kTotalSmemSize,
  kAggrSmemSize,
  kReservedSmemOffset,
  kWarpSize,
  kZero,
  kSmemBase,
  kDynamicShared,
  kClock,
  kClock64,
  kClockHi,
  kGlobaltimer,
  kGlobaltimerLo,
  kGlobaltimerHi,
  kCount
};
inline constexpr int kSpecials = static_cast<int>(Special::kCount);
inline constexpr int kFirstDynamicSpecial = static_cast<int>(Special::kClock);

struct ModuleImage;

struct ParamSlot {
  uint32_t offset, bytes;
};

struct Program {
  const Function* source = nullptr;
  ModuleImage* module = nullptr;
  std::string name;
  bool entry = false;
  std::vector<Instr> code;  // one more than statements: a final synthetic return
  std::vector<Extra> extras;
  std::vector<Reg> constants;
  std::map<std::pair<uint64_t, int>, int> constant_index;
  int reg_count = 0, pred_count = 0;
  int carry_pred = -1;               // the condition code, kept as one more predicate
  std::vector<int32_t> slot_of_reg;  // declared register -> register or predicate number
  uint32_t param_bytes = 0, result_bytes = 0;
  std::vector<ParamSlot> params, results;
  std::map<std::string, uint32_t>
      local_offset;  // .local and body .param variables, in the frame's local memory
  uint32_t local_bytes = 0;
  uint32_t static_shared = 0;  // end of the static shared variables, relative to the window's start
  uint32_t max_threads = 1024, required_threads = 0, regs_per_thread = 0;
  uint32_t cluster[3] = {0, 0, 0};  // .reqnctapercluster, 0 when absent
  bool uses_tcgen05 = false;
};

}  // namespace sm100sim

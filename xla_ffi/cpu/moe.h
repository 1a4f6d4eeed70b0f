// The layer on one device: steps 1 to 7 of the contract on plain pointers, or steps 2 to 6 alone.
//
// Nothing here knows of XLA; handlers.cc checks buffers and fills in a Problem.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "path.h"
#include "scratch.h"
#include "threads.h"

namespace megamoe::cpu {

struct Problem {
  int64_t tokens, topk, hidden, intermediate, experts;

  const uint16_t* x;        // bfloat16 [tokens, hidden]; or null, and then the two below
  const uint8_t* q;         // E4M3 [tokens, hidden]
  const uint8_t* q_scale;   // UE8M0 [tokens, hidden / 32]
  const int32_t* topk_idx;  // [tokens, topk], untrusted
  const float* topk_weights;
  const uint8_t *gate_up, *gate_up_scale, *down, *down_scale;  // prepared, layout.h
  const float *gate_up_bias, *down_bias;                       // or null
  Activation activation;

  uint16_t* y;     // bfloat16 [tokens, hidden]; or null, and then
  uint16_t* rows;  // bfloat16 [tokens, topk, hidden]: the rows of step 6, +0 for skipped slots
};

// Throws std::bad_alloc, between chunks, when no other thread is at work on the problem; nothing
// else.
void run(const Problem& problem, const Path& path, Executor& executor, Scratch& scratch);

}  // namespace megamoe::cpu

// Reconvergence points: the immediate postdominator of every branch, found on the graph of
// statements. The graph has one exit node, the synthetic return behind the last statement; `exit`
// and a kernel's `ret` lead there.

#include <algorithm>
#include <vector>

#include "machine/link.h"

namespace sm100sim {
namespace {

struct Graph {
  std::vector<int> leader;             // block -> first statement
  std::vector<int> block_of;           // statement -> block
  std::vector<std::vector<int>> next;  // block -> successors
};

bool ends_block(const Instr& i, const Statement& s) {
  return i.target >= 0 || s.base == "ret" || s.base == "exit" || s.base == "trap" ||
         s.base == "brx";
}

Graph build_graph(const Program& p) {
  const int n = static_cast<int>(p.code.size());
  const auto& body = p.source->body;
  std::vector<bool> lead(static_cast<size_t>(n) + 1);
  lead[0] = lead[static_cast<size_t>(n) - 1] = true;
  for (int i = 0; i + 1 < n; ++i) {
    const Instr& in = p.code[static_cast<size_t>(i)];
    if (!ends_block(in, body[static_cast<size_t>(i)])) continue;
    lead[static_cast<size_t>(i) + 1] = true;
    if (in.target >= 0) lead[static_cast<size_t>(in.target)] = true;
    if (in.extra >= 0) {
      for (int t : p.extras[static_cast<size_t>(in.extra)].targets)
        lead[static_cast<size_t>(t)] = true;
    }
  }
  Graph g;
  for (int i = 0; i < n; ++i) {
    if (lead[static_cast<size_t>(i)]) g.leader.push_back(i);
    g.block_of.push_back(static_cast<int>(g.leader.size()) - 1);
  }
  const int exit_block = static_cast<int>(g.leader.size()) - 1;
  g.next.resize(g.leader.size());
  for (int b = 0; b < exit_block; ++b) {
    const int last = g.leader[static_cast<size_t>(b) + 1] - 1;
    const Instr& in = p.code[static_cast<size_t>(last)];
    const Statement& s = body[static_cast<size_t>(last)];
    auto& next = g.next[static_cast<size_t>(b)];
    const bool leaves = s.base == "ret" || s.base == "exit" || s.base == "trap";
    if (leaves) next.push_back(exit_block);
    if (in.target >= 0) next.push_back(g.block_of[static_cast<size_t>(in.target)]);
    if (s.base == "brx" && in.extra >= 0) {
      for (int t : p.extras[static_cast<size_t>(in.extra)].targets)
        next.push_back(g.block_of[static_cast<size_t>(t)]);
    }
    const bool unconditional = s.guard < 0 && (leaves || in.target >= 0 || s.base == "brx");
    if (!unconditional) next.push_back(b + 1);
  }
  return g;
}

}  // namespace

std::vector<int> immediate_postdominators(const Program& p) {
  const Graph g = build_graph(p);
  const int blocks = static_cast<int>(g.leader.size());
  const int exit_block = blocks - 1;
  // Order of the reverse graph: postorder from the exit over predecessors (Cooper, Harvey,
  // Kennedy).
  std::vector<std::vector<int>> previous(static_cast<size_t>(blocks));
  for (int b = 0; b < blocks; ++b) {
    for (int s : g.next[static_cast<size_t>(b)]) previous[static_cast<size_t>(s)].push_back(b);
  }
  std::vector<int> order(static_cast<size_t>(blocks), -1), sequence;
  std::vector<std::pair<int, size_t>> stack{{exit_block, 0}};
  std::vector<bool> seen(static_cast<size_t>(blocks));
  seen[static_cast<size_t>(exit_block)] = true;
  while (!stack.empty()) {
    auto& [b, at] = stack.back();
    if (at < previous[static_cast<size_t>(b)].size()) {
      const int q = previous[static_cast<size_t>(b)][at++];
      if (!seen[static_cast<size_t>(q)]) {
        seen[static_cast<size_t>(q)] = true;
        stack.push_back({q, 0});
      }
    } else {
      order[static_cast<size_t>(b)] = static_cast<int>(sequence.size());
      sequence.push_back(b);
      stack.pop_back();
    }
  }
  std::vector<int> idom(static_cast<size_t>(blocks), -1);
  idom[static_cast<size_t>(exit_block)] = exit_block;
  const auto meet = [&](int a, int b) {
    while (a != b) {
      while (order[static_cast<size_t>(a)] < order[static_cast<size_t>(b)])
        a = idom[static_cast<size_t>(a)];
      while (order[static_cast<size_t>(b)] < order[static_cast<size_t>(a)])
        b = idom[static_cast<size_t>(b)];
    }
    return a;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t k = sequence.size(); k-- > 0;) {
      const int b = sequence[k];
      if (b == exit_block) continue;
      int best = -1;
      for (int s : g.next[static_cast<size_t>(b)]) {
        if (idom[static_cast<size_t>(s)] < 0) continue;
        best = best < 0 ? s : meet(best, s);
      }
      if (best >= 0 && idom[static_cast<size_t>(b)] != best) {
        idom[static_cast<size_t>(b)] = best;
        changed = true;
      }
    }
  }
  std::vector<int> out(p.code.size(), static_cast<int>(p.code.size()) - 1);
  for (size_t i = 0; i < p.code.size(); ++i) {
    const int d = idom[static_cast<size_t>(g.block_of[i])];
    if (d >= 0)
      out[i] = g.leader[static_cast<size_t>(d)];  // endless loops never leave: the exit node
  }
  return out;
}

}  // namespace sm100sim

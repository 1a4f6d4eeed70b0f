# ruff: noqa: E501 - CUDA and PTX text reads best with one instruction or kernel line a line
"""Short device functions around single PTX instructions, included by the CUDA sources of the tests."""

HELPERS = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef unsigned long long u64;
#define D static __device__ __forceinline__
D unsigned smem(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
D void mbar_init(unsigned bar, unsigned n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(n) : "memory"); }
D void mbar_expect(unsigned bar, unsigned bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory"); }
D void mbar_arrive(unsigned bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory"); }
D void mbar_arrive_remote(unsigned bar, unsigned rank) {
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a]; }" :: "r"(bar), "r"(rank) : "memory");
}
D void mbar_wait(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(bar), "r"(parity) : "memory");
}
D void mbar_wait_cluster(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(bar), "r"(parity) : "memory");
}
D void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
D void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
D void cluster_sync() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
D unsigned cluster_rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
D void bulk_load(unsigned dst, const void* src, unsigned n, unsigned bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(dst), "l"(src), "r"(n), "r"(bar) : "memory");
}
D void bulk_store(void* dst, unsigned src, unsigned n) { asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(dst), "r"(src), "r"(n) : "memory"); }
D void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
D void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
D void tma_load_2d(unsigned dst, const void* map, int x, int y, unsigned bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" :: "r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
D void tma_store_2d(const void* map, int x, int y, unsigned src) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" :: "l"(map), "r"(x), "r"(y), "r"(src) : "memory");
}
D void tmem_alloc(unsigned dst, unsigned n) { asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(dst), "r"(n) : "memory"); }
D void tmem_free(unsigned t, unsigned n) { asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(t), "r"(n) : "memory"); }
D void tc_commit(unsigned bar) { asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(bar) : "memory"); }
D void tc_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
D void tc_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
D void tc_wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
D void tc_wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
D unsigned tmem_ld1(unsigned t) { unsigned v; asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(v) : "r"(t) : "memory"); return v; }
D void mma_f16(unsigned d, u64 a, u64 b, unsigned idesc, unsigned accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" :: "r"(d), "l"(a), "l"(b), "r"(idesc), "r"(accumulate) : "memory");
}
"""

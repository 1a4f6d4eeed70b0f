// One function for each PTX instruction that C++ has no name for, spelled once. Decides operand
// forms and qualifiers (PTX ISA 9.0); what an instruction is for is told where it is used. Shared
// memory is addressed by 32-bit shared-window addresses throughout, so that remote and own
// addresses look alike.
#pragma once

#include <stdint.h>

#define MOE_DEVICE static __device__ __forceinline__

namespace megamoe::sm100::ptx {

// --- who am I
MOE_DEVICE uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
MOE_DEVICE uint64_t global_timer() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
MOE_DEVICE bool elect_one() {
  uint32_t p;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(p));
  return p != 0;
}
MOE_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// The same offset in the shared memory of CTA `rank` of the cluster.
MOE_DEVICE uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// --- barriers of threads
// bar.sync is for whole warps: lanes that left a loop early come back first.
MOE_DEVICE void named_barrier(uint32_t id, uint32_t threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
MOE_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
MOE_DEVICE void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
template <uint32_t kRegisters>
MOE_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
MOE_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- mbarriers
MOE_DEVICE void mbarrier_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
MOE_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MOE_DEVICE void mbarrier_arrive_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
// `bar` may lie in another CTA of the cluster.
MOE_DEVICE void mbarrier_arrive_cluster(uint32_t bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
               : "memory");
}
// Returns when the phase of `parity` has completed; what other CTAs released is then visible.
MOE_DEVICE void mbarrier_wait(uint32_t bar, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
  } while (!done);
}

// --- proxies and memory order
MOE_DEVICE void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
MOE_DEVICE void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
MOE_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

MOE_DEVICE uint32_t load_acquire_gpu(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MOE_DEVICE uint64_t load_acquire_gpu(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
MOE_DEVICE uint32_t load_acquire_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
MOE_DEVICE uint64_t load_acquire_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
MOE_DEVICE uint64_t load_relaxed_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
MOE_DEVICE void store_relaxed_system(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MOE_DEVICE void store_relaxed_system(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MOE_DEVICE void store_release_gpu(uint64_t* p, uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Old value; counts 0 .. bound and then starts again.
MOE_DEVICE uint32_t increment_wrapping(uint32_t* p, uint32_t bound) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(p), "r"(bound)
               : "memory");
  return old;
}
MOE_DEVICE void add_release_gpu(uint32_t* p, uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MOE_DEVICE uint64_t swap_if_zero_system(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;"
               : "=l"(old)
               : "l"(p), "l"(v)
               : "memory");
  return old;
}

// --- shared memory
MOE_DEVICE uint32_t load_shared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
MOE_DEVICE uint2 load_shared2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
MOE_DEVICE uint4 load_shared4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
MOE_DEVICE void store_shared(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
MOE_DEVICE void store_shared4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
// A word that threads of the pair write and read without ordering each other.
MOE_DEVICE uint32_t load_relaxed_shared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.relaxed.cluster.shared::cluster.u32 %0, [%1];"
               : "=r"(v)
               : "r"(address)
               : "memory");
  return v;
}
MOE_DEVICE void store_relaxed_cluster(uint32_t address, uint32_t v) {
  asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v)
               : "memory");
}
MOE_DEVICE void store_cluster(uint32_t address, uint32_t v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
MOE_DEVICE void store_cluster2(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}
// Four 8 x 8 matrices of 16-bit elements, transposed: lane l gives the address of row l % 8 of
// matrix l / 8; register i holds of matrix i the elements (2 (l % 4), l / 4) and (2 (l % 4) + 1,
// ..).
MOE_DEVICE void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// --- global memory
struct Words8 {
  uint32_t w[8];
};
MOE_DEVICE Words8 load_global8(const void* p) {
  Words8 v;
  asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]), "=r"(v.w[4]), "=r"(v.w[5]),
                 "=r"(v.w[6]), "=r"(v.w[7])
               : "l"(p)
               : "memory");
  return v;
}
MOE_DEVICE void store_global8(void* p, const Words8& v) {
  asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(p), "r"(v.w[0]),
               "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "r"(v.w[4]), "r"(v.w[5]), "r"(v.w[6]),
               "r"(v.w[7])
               : "memory");
}

// --- TMA into this CTA's shared memory, bytes counted at the barrier of the pair's even CTA: in a
// shared::cluster address bit 24 is the low bit of the rank.
inline constexpr uint32_t kEvenRank = 0xFEFFFFFFu;
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull, kEvictFirst = 0x12F0000000000000ull;
MOE_DEVICE void load_box(uint32_t to, const void* map, uint32_t column, uint32_t row, uint32_t bar,
                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::"
      "bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(bar & kEvenRank), "l"(policy)
      : "memory");
}
MOE_DEVICE void gather4(uint32_t to, const void* map, uint32_t column, const uint32_t (&row)[4],
                        uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(map), "r"(column), "r"(row[0]), "r"(row[1]), "r"(row[2]), "r"(row[3]),
      "r"(bar & kEvenRank)
      : "memory");
}
MOE_DEVICE void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- tensor memory and tensor core, all on the pair
MOE_DEVICE void tmem_alloc(uint32_t result, uint32_t columns) {
  asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(result),
               "r"(columns)
               : "memory");
}
MOE_DEVICE void tmem_free(uint32_t address, uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns)
               : "memory");
}
MOE_DEVICE void tmem_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
MOE_DEVICE void tmem_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
// Thread t receives of the 16 lanes from the address on and of 16 columns: register r is lane
// t / 4 + 8 (r / 2 % 2), column 2 (t % 4) + r % 2 + 8 (r / 4).
MOE_DEVICE void tmem_load_16x16(uint32_t address, uint32_t (&r)[8]) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x2.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
                 "=r"(r[7])
               : "r"(address)
               : "memory");
}
// The loaded registers pass through, so that no use of them can be moved above the wait.
MOE_DEVICE void tmem_wait_loads(uint32_t (&a)[8], uint32_t (&b)[8]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(a[4]), "+r"(a[5]), "+r"(a[6]),
                 "+r"(a[7]), "+r"(b[0]), "+r"(b[1]), "+r"(b[2]), "+r"(b[3]), "+r"(b[4]), "+r"(b[5]),
                 "+r"(b[6]), "+r"(b[7])
               :
               : "memory");
}
MOE_DEVICE void copy_scales(uint32_t tmem, uint64_t descriptor) {
  asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(descriptor)
               : "memory");
}
MOE_DEVICE void mma_scaled(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t sfa,
                           uint32_t sfb, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale [%0], %1, %2, %3, [%4], [%5], p;\n}" ::
          "r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(sfa), "r"(sfb), "r"(static_cast<uint32_t>(accumulate))
      : "memory");
}
// One arrival at the barrier at this offset in both CTAs of the pair, once all that this thread has
// issued to the tensor core has completed.
MOE_DEVICE void commit_to_pair(uint32_t bar) {
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(bar),
      "h"(static_cast<uint16_t>(3))
      : "memory");
}

// --- arithmetic
MOE_DEVICE float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MOE_DEVICE float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MOE_DEVICE uint32_t max_u16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
MOE_DEVICE float exp2_approx(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
MOE_DEVICE float reciprocal_approx(float a) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
// Two bf16, `high` in the upper half.
MOE_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
MOE_DEVICE float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
MOE_DEVICE float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
// Two E4M3, nearest even, saturating at 448.
MOE_DEVICE uint32_t pack_e4m3(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}

}  // namespace megamoe::sm100::ptx

// Kernels that use the device's features one by one, and kernels that misuse them.
#include "tests/common/device_kernels.hpp"

#include <fstream>
#include <stdexcept>

#include "common/device/kernel.hpp"

namespace flash_steps::test {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__device__ inline int thread_x() { return static_cast<int>(threadIdx.x); }
__device__ inline std::int64_t global_x() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// ---- indices, global memory

__global__ void indices_kernel(global<int> out) {
  const std::int64_t thread =
      threadIdx.x + blockDim.x * (threadIdx.y + std::int64_t{blockDim.y} * threadIdx.z);
  const std::int64_t block =
      blockIdx.x + gridDim.x * (blockIdx.y + std::int64_t{gridDim.y} * blockIdx.z);
  const std::int64_t threads = std::int64_t{blockDim.x} * blockDim.y * blockDim.z;
  const global<int> mine = out + 6 * (block * threads + thread);
  mine[0] = static_cast<int>(threadIdx.x);
  mine[1] = static_cast<int>(threadIdx.y);
  mine[2] = static_cast<int>(threadIdx.z);
  mine[3] = static_cast<int>(blockIdx.x);
  mine[4] = static_cast<int>(blockIdx.y);
  mine[5] = static_cast<int>(blockIdx.z);
}

__global__ void nothing_kernel() {}

__global__ void double_kernel(global<const float> x, global<float> y, std::int64_t N) {
  const std::int64_t i = global_x();
  if (i < N) y[i] = 2.0f * x[i];
}

__global__ void double_by_four_kernel(global<const float> x, global<float> y, std::int64_t N) {
  const std::int64_t i = global_x();
  if (4 * i >= N) return;
  const float4 four = as<const float4>(x)[i];
  as<float4>(y)[i] = make_float4(2.0f * four.x, 2.0f * four.y, 2.0f * four.z, 2.0f * four.w);
}

__global__ void add_shifted_kernel(global<const float> x, global<float> y, std::int64_t N,
                                   std::int64_t shift) {
  const std::int64_t i = global_x();
  if (i + shift < N) y[i] += (x + 2 * shift + (-shift))[i];
}

__global__ void count_blocks_kernel(global<int> x) {
  x[blockIdx.x + gridDim.x * (blockIdx.y + std::int64_t{gridDim.y} * blockIdx.z)] += 1;
}

// ---- shared memory

__global__ void reverse_kernel(global<float> x) {
  __shared__ shared_array<float, 1024> s;
  s[threadIdx.x] = x[global_x()];
  __syncthreads();  // s is complete
  x[global_x()] = s[blockDim.x - 1 - threadIdx.x];
}

__global__ void reverse_through_pieces_kernel(global<float> x) {
  dynamic_shared smem;
  const int threads = static_cast<int>(blockDim.x);
  const shared<int> from = smem.take<int>(threads);
  const shared<float> s = smem.take<float>(threads);
  const shared<float4> twice = smem.take<float4>(threads);
  s[threadIdx.x] = x[global_x()];
  from[threadIdx.x] = threads - 1 - thread_x();
  __syncthreads();  // s and from are complete
  const float value = s[from[threadIdx.x]];
  twice[threadIdx.x] = make_float4(value, 0.0f, 0.0f, value);
  __syncthreads();  // all have read s; twice is complete
  const int next = (thread_x() + 1) % threads;
  const float4 four = twice[next];
  s[next] = 0.5f * (four.x + four.w);
  __syncthreads();  // s is complete again
  x[global_x()] = (s + thread_x() + 1)[-1];
}

__global__ void reverse_at_the_end_kernel(global<float> x, std::int64_t before) {
  __shared__ shared_array<float, kBesideBytes / 4> beside;
  dynamic_shared smem;
  smem.take<float>(before);
  const shared<float> s = smem.take<float>(blockDim.x);
  s[threadIdx.x] = x[global_x()];
  beside[blockDim.x - 1 - threadIdx.x] = 1.0f;
  __syncthreads();  // s and beside are complete
  x[global_x()] = beside[threadIdx.x] * s[blockDim.x - 1 - threadIdx.x];
}

__global__ void reverse_by_four_kernel(global<float> x) {
  dynamic_shared smem;
  const int threads = static_cast<int>(blockDim.x);
  const shared<float> s = smem.take<float>(4 + 4 * threads) + 4;
  as<float4>(s)[thread_x()] = as<const float4>(x)[global_x()];
  __syncthreads();  // s is complete
  const float4 four = as<float4>(s)[threads - 1 - thread_x()];
  as<float4>(x)[global_x()] = make_float4(four.w, four.z, four.y, four.x);
}

// ---- atomics

__global__ void count_atomically_kernel(global<int> ints, global<unsigned> unsigneds,
                                        global<float> floats) {
  atomicAdd(ints + 1, -1);
  atomicAdd(unsigneds + 1, 3u);
  atomicAdd(floats + 1, 0.5f);
}

// Two words that belong together, changed under a lock.
__global__ void add_under_lock_kernel(global<unsigned> lock, global<float> sums) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock + 0, 0u, 1u) != 0u) {
    }
    __threadfence();  // what the last holder wrote is seen
    sums[0] = sums[0] + 1.0f;
    sums[1] = 2.0f * sums[0];
    __threadfence();  // and what is written here is, before the lock is free
    atomicExch(lock + 0, 0u);
  }
}

__global__ void add_zeros_kernel(global<float> x, int size, int rounds) {
  for (int i = 0; i < rounds * size; ++i) atomicAdd(x + i % size, 0.0f);
}

// Each block appends its number when all lower-numbered ones have.
__global__ void take_turns_kernel(global<unsigned> started, global<unsigned> turn,
                                  global<int> order) {
  if (threadIdx.x != 0) return;
  const unsigned block = atomicAdd(started + 0, 1u);  // whoever has a lower one has started
  while (atomicAdd(turn + 0, 0u) != block) {
  }
  __threadfence();
  order[block] = block == 0 ? 100 : order[block - 1] + 1;
  __threadfence();
  atomicAdd(turn + 0, 1u);
}

// ---- heads

__global__ void double_heads_kernel(global<const float> x, HeadsLayout x_at, global<float> y,
                                    HeadsLayout y_at) {
  const std::int64_t h = blockIdx.x, b = blockIdx.y;
  for (std::int64_t n = threadIdx.x; n < x_at.N; n += blockDim.x) {
    for (std::int64_t c = 0; c < x_at.d; ++c) {
      y[y_at.offset(b, h, n) + c] = 2.0f * x[x_at.offset(b, h, n) + c];
    }
  }
}

// ---- shuffles

__global__ void sum_over_warps_kernel(global<float> out) {
  const unsigned first = threadIdx.x / 32 * 32, left = blockDim.x - first;
  const unsigned lanes = left < 32 ? left : 32, mask = kAll >> (32 - lanes);
  float value = static_cast<float>(threadIdx.x + 1);
  for (unsigned n = 1; n < lanes; n *= 2) {
    value += __shfl_xor_sync(mask, value, static_cast<int>(n));
  }
  out[threadIdx.x] = value;
}

__global__ void exchange_in_halves_kernel(global<float> out) {
  const float mine = static_cast<float>(threadIdx.x);
  float got = 0.0f;
  if (threadIdx.x < 16) {
    got = __shfl_xor_sync(0x0000ffffu, mine, 1);
  } else {
    got = __shfl_xor_sync(0xffff0000u, mine, 2);
  }
  out[threadIdx.x] = got;
}

__global__ void exchange_after_leaving_kernel(global<float> out) {
  if (threadIdx.x % 2 == 1) return;
  out[threadIdx.x] = __shfl_xor_sync(kAll, static_cast<float>(threadIdx.x), 2);
}

__global__ void exchange_types_kernel(global<int> ints, global<unsigned> unsigneds,
                                      global<double> doubles) {
  const int thread = thread_x();
  ints[thread] = __shfl_xor_sync(kAll, -thread, 5);
  unsigneds[thread] = __shfl_xor_sync(kAll, kAll - threadIdx.x, 5);
  doubles[thread] = __shfl_xor_sync(kAll, 1.0 + 1e-12 * thread, 5);
}

// ---- barriers

__global__ void wait_often_kernel(global<float> out, int barriers) {
  __shared__ shared_array<float, 64> s;
  float sum = 0.0f;
  for (int i = 0; i < barriers; ++i) {
    if (threadIdx.x == 0 && i < 64) s[i] = static_cast<float>(i);
    if (threadIdx.x == 1 && i >= barriers - 128) {
      sum = 0.0f;
      for (int word = 0; word < 64; ++word) sum += s[word];
    }
    __syncthreads();  // this turn's accesses are over
  }
  if (threadIdx.x == 1) out[0] = sum;
}

__global__ void record_order_kernel(global<int> out, global<int> next) {
  for (int turn = 0; turn < 2; ++turn) {
    const int place = next[blockIdx.x];
    out[2 * blockDim.x * blockIdx.x + static_cast<unsigned>(place)] = thread_x();
    next[blockIdx.x] = place + 1;
    __syncthreads();  // all have been here
  }
}

__global__ void count_stale_words_kernel(global<int> stale) {
  __shared__ shared_array<float, 64> fixed;
  dynamic_shared smem;
  const shared<float> dynamic = smem.take<float>(64);
  const float a = fixed[threadIdx.x], b = dynamic[threadIdx.x];
  if (a == a) stale[blockIdx.x] += 1;
  if (b == b) stale[blockIdx.x] += 1;
  fixed[threadIdx.x] = 1.0f;
  dynamic[threadIdx.x] = 1.0f;
}

__global__ void exchange_with_absent_lanes_kernel(global<float> out) {
  const float mine = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = __shfl_xor_sync(kAll, mine, 4);
  out[8 + threadIdx.x] = __shfl_xor_sync(kAll, mine, 16);
  out[16 + threadIdx.x] = __shfl_xor_sync(kAll, mine, 36);
  out[24 + threadIdx.x] = __shfl_xor_sync(0x0fu << (threadIdx.x / 4 * 4), mine, 4);
  if (threadIdx.x > 0) return;
  out[32] = __shfl_xor_sync(kAll, mine, 1);
}

// ---- kernels that are wrong: out of bounds

__global__ void read_past_the_end(global<float> x) {
  if (blockIdx.x > 0 && threadIdx.x == 7) x[0] = x[64];  // bug: read past the end
}

__global__ void write_past_the_end(global<float> x) {
  if (blockIdx.x > 0 && threadIdx.x == 7) x[64] = 0.0f;  // bug: write past the end
}

__global__ void negative_index(global<float> x) {
  if (blockIdx.x > 0 && threadIdx.x == 7) x[thread_x() - 8] = 0.0f;  // bug: negative index
}

__global__ void unsigned_index(global<float> x) {
  if (blockIdx.x > 0 && threadIdx.x == 7) x[threadIdx.x - 8] = 0.0f;  // bug: unsigned index
}

__global__ void moved_pointer(global<float> x) {
  if (blockIdx.x > 0 && threadIdx.x == 7) (x + 60)[4] = 0.0f;  // bug: moved pointer
}

__global__ void last_float4(global<float> x) {
  if (blockIdx.x == 0 || threadIdx.x != 7) return;
  const float4 four = as<const float4>(x + 4)[15];  // bug: last float4
  x[0] = four.x;
}

__global__ void float4_before_the_start(global<float> x) {
  if (blockIdx.x == 0 || threadIdx.x != 7) return;
  const float4 four = as<const float4>(x + (-4))[0];  // bug: float4 before the start
  x[0] = four.x;
}

__global__ void misaligned_float4(global<float> x) {
  if (blockIdx.x == 0 || threadIdx.x != 7) return;
  const float4 four = as<const float4>(x + 1)[0];  // bug: misaligned float4
  x[0] = four.x;
}

__global__ void piece_overrun(global<float>) {
  dynamic_shared smem;
  const shared<float> a = smem.take<float>(8);
  const shared<float> b = smem.take<float>(8);
  if (threadIdx.x == 6) b[0] = 0.0f;
  if (blockIdx.x > 0 && threadIdx.x == 7) a[threadIdx.x + 1] = 0.0f;  // bug: piece overrun
}

__global__ void shared_array_overrun(global<float> x) {
  __shared__ shared_array<float, 8> s;
  if (threadIdx.x != 7) return;
  s[blockIdx.x] = 0.0f;
  if (blockIdx.x > 0) x[0] = s[threadIdx.x + 1];  // bug: array overrun
}

__global__ void take_too_much(global<float>) {
  if (blockIdx.x == 0) return;
  dynamic_shared smem;
  smem.take<float>(199);
  smem.take<float>(100);  // bug: take too much
}

// ---- kernels that are wrong: races

__global__ void write_write(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  // The same value: no order of threads shows it.
  if (threadIdx.x == 3 || threadIdx.x == 9) s[5] = 1.0f;  // bug: write-write
  if (threadIdx.x == 9) x[9] = s[5];
}

__global__ void read_write(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3) x[3] = s[5];  // bug: read-write, the read
  if (threadIdx.x == 9) s[5] = 1.0f;  // bug: read-write, the write
}

__global__ void write_read(global<float> x) {
  const shared<float> s = dynamic_shared().take<float>(64);
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3) s[5] = 1.0f;  // bug: write-read, the write
  if (threadIdx.x == 9) x[9] = s[5];  // bug: write-read, the read
}

__global__ void two_readers(global<float> x) {
  __shared__ shared_array<float, 64> s;
  s[threadIdx.x] = 0.0f;
  __syncthreads();  // s is complete
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3 || threadIdx.x == 9) x[threadIdx.x] = s[5];  // bug: two readers, reads
  if (threadIdx.x == 9) s[5] = 1.0f;                                // bug: two readers, writes
}

__global__ void three_readers(global<float> x) {
  __shared__ shared_array<float, 64> s;
  s[threadIdx.x] = 0.0f;
  __syncthreads();  // s is complete
  if (blockIdx.x == 0) return;
  if (threadIdx.x >= 9 && threadIdx.x < 12) x[threadIdx.x] = s[5];  // bug: three readers, read
  if (threadIdx.x == 11) s[5] = 1.0f;                               // bug: three readers, write
}

__global__ void read_again(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 3) x[3] = s[5];               // bug: read again, reads
    if (threadIdx.x == 9 && turn == 1) s[5] = 1.0f;  // bug: read again, writes
    __syncthreads();                                 // this turn's accesses are over
  }
}

__global__ void write_again(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 3) s[5] = 1.0f;               // bug: write again, writes
    if (threadIdx.x == 9 && turn == 1) x[9] = s[5];  // bug: write again, reads
    __syncthreads();                                 // this turn's accesses are over
  }
}

__global__ void first_reader(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3 || threadIdx.x == 9) x[threadIdx.x] = s[5];  // bug: first reader, reads
  x[32] = __shfl_xor_sync(kAll, 0.0f, 1);
  if (threadIdx.x == 3) s[5] = 1.0f;  // bug: first reader, writes
}

__global__ void over_a_shuffle(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3) s[5] = 1.0f;  // bug: over a shuffle, writes
  x[32] = __shfl_xor_sync(kAll, 0.0f, 1);
  if (threadIdx.x == 9) x[9] = s[5];  // bug: over a shuffle, reads
}

__global__ void float4_against_float(global<float> x) {
  const shared<float4> fours = dynamic_shared().take<float4>(16);
  const shared<float> floats = dynamic_shared().take<float>(64);  // the same memory
  if (blockIdx.x == 0) return;
  if (threadIdx.x == 3) fours[1] = make_float4(1.0f, 2.0f, 3.0f, 4.0f);  // bug: float4 writes
  if (threadIdx.x == 9) x[9] = floats[6];                                // bug: float4, float
}

__global__ void missing_barrier(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  s[threadIdx.x] = x[threadIdx.x];       // bug: missing barrier, write
  x[threadIdx.x] = s[63 - threadIdx.x];  // bug: missing barrier, read
}

__global__ void missing_second_barrier(global<float> x) {
  __shared__ shared_array<float, 64> s;
  if (blockIdx.x == 0) return;
  for (int turn = 0; turn < 2; ++turn) {
    s[threadIdx.x] = x[threadIdx.x];      // bug: missing second barrier, write
    __syncthreads();                      // s is complete
    if (threadIdx.x == 40) x[0] = s[41];  // bug: missing second barrier, read
  }
}

// ---- kernels that are wrong: who waits for whom

__global__ void barrier_in_a_branch(global<float>) {
  if (blockIdx.x == 0) return;
  if (threadIdx.x < 32) __syncthreads();  // bug: barrier in a branch
}

__global__ void early_return(global<float>) {
  if (blockIdx.x == 0) return;
  __syncthreads();  // bug: early return, before
  if (threadIdx.x >= 40) return;
  __syncthreads();  // bug: early return, after
}

__global__ void two_barriers(global<float>) {
  if (blockIdx.x == 0) return;
  if (threadIdx.x < 32) {
    __syncthreads();  // bug: two barriers, one
  } else {
    __syncthreads();  // bug: two barriers, the other
  }
}

__global__ void shuffle_and_barrier(global<float> x) {
  if (blockIdx.x == 0) return;
  if (threadIdx.x != 3) x[32] = __shfl_xor_sync(kAll, 0.0f, 1);  // bug: shuffle and barrier, s
  __syncthreads();                                               // bug: shuffle and barrier, b
}

__global__ void two_masks(global<float> x) {
  if (blockIdx.x == 0) return;
  const unsigned mask = threadIdx.x == 3 ? 0x0000ffffu : kAll;
  x[32] = __shfl_xor_sync(mask, 0.0f, 1);  // bug: two masks
}

__global__ void two_shuffles(global<float> x) {
  if (blockIdx.x == 0) return;
  if (threadIdx.x % 32 < 16) {
    x[32] = __shfl_xor_sync(kAll, 0.0f, 1);  // bug: two shuffles, one
  } else {
    x[32] = __shfl_xor_sync(kAll, 0.0f, 1);  // bug: two shuffles, the other
  }
}

__global__ void mask_without_own_lane(global<float> x) {
  if (blockIdx.x == 0 || threadIdx.x != 7) return;
  x[32] = __shfl_xor_sync(0xffu << 8, 0.0f, 1);  // bug: mask without own lane
}

// ---- kernels that are wrong: more

#if !defined(__CUDACC__)
__global__ void arrays_too_large(global<float>) {  // nvcc would refuse it
  __shared__ shared_array<float, 8192> a, b;
  if (blockIdx.x == 0) return;
  a[threadIdx.x] = 0.0f;
  b[threadIdx.x] = 0.0f;  // bug: arrays too large
}

__global__ void throwing_kernel() {
  if (blockIdx.x == 1) throw std::out_of_range("not a device's");
}
#endif

__global__ void late_bug_kernel(global<float> x, int later_turns) {
  const int turns = blockIdx.x <= 5 ? 1000 : later_turns;
  for (int i = 0; i < turns; ++i) __syncthreads();        // takes a while
  if (blockIdx.x >= 5 && threadIdx.x == 7) x[64] = 0.0f;  // bug: late bug
}

__global__ void three_dimensions_kernel(global<float> x) {
  const bool wrong = threadIdx.x == 1 && threadIdx.y == 0 && threadIdx.z == 1 &&
                     blockIdx.x == 0 && blockIdx.y == 1 && blockIdx.z == 2;
  if (wrong) x[64] = 0.0f;  // bug: three dimensions
}

struct Mark {
  global<float> x;
  __device__ explicit Mark(global<float> x) : x(x) { x[threadIdx.x] = 1.0f; }
  __device__ ~Mark() { x[threadIdx.x] = 2.0f; }
};

__global__ void wrong_while_others_wait_kernel(global<float> x) {
  const Mark mark(x);
  if (threadIdx.x == 63) x[64] = 0.0f;  // bug: while others wait
  __syncthreads();                      // all are marked
}

struct Bug {
  const char* name;
  void (*kernel)(global<float>);
};
const Bug kBugs[] = {
    {"read past the end", read_past_the_end},
    {"write past the end", write_past_the_end},
    {"negative index", negative_index},
    {"unsigned index", unsigned_index},
    {"moved pointer", moved_pointer},
    {"last float4", last_float4},
    {"float4 before the start", float4_before_the_start},
    {"misaligned float4", misaligned_float4},
    {"piece overrun", piece_overrun},
    {"array overrun", shared_array_overrun},
    {"take too much", take_too_much},
    {"write-write", write_write},
    {"read-write", read_write},
    {"write-read", write_read},
    {"two readers", two_readers},
    {"three readers", three_readers},
    {"read again", read_again},
    {"write again", write_again},
    {"first reader", first_reader},
    {"over a shuffle", over_a_shuffle},
    {"float4", float4_against_float},
    {"missing barrier", missing_barrier},
    {"missing second barrier", missing_second_barrier},
    {"barrier in a branch", barrier_in_a_branch},
    {"early return", early_return},
    {"two barriers", two_barriers},
    {"shuffle and barrier", shuffle_and_barrier},
    {"two masks", two_masks},
    {"two shuffles", two_shuffles},
    {"mask without own lane", mask_without_own_lane},
#if !defined(__CUDACC__)
    {"arrays too large", arrays_too_large},
#endif
};

__global__ void wait_for_nobody_kernel(global<unsigned> turn) {
  if (threadIdx.x == 7) {
    while (atomicAdd(turn + 0, 0u) != 1u) {  // bug: wait for nobody
    }
  }
}

__global__ void fail_while_others_wait_kernel(global<unsigned> turn) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) turn[64] = 1u;  // bug: awaited block
  while (atomicAdd(turn + 0, 0u) != 1u) {
  }
}

}  // namespace

// ---- launches

void write_indices(DeviceArray<int>& out, const Extent& grid, const Extent& block) {
  launch(indices_kernel, {grid, block}, out);
}

void do_nothing(const Extent& grid, const Extent& block, std::int64_t shared_bytes) {
  launch(nothing_kernel, {grid, block, shared_bytes});
}

void double_values(const DeviceArray<float>& x, DeviceArray<float>& y) {
  launch(double_kernel, {(x.size() + 31) / 32, 32}, x, y, x.size());
}

void double_values_by_four(const DeviceArray<float>& x, DeviceArray<float>& y) {
  launch(double_by_four_kernel, {(x.size() / 4 + 31) / 32, 32}, x, y, x.size());
}

void add_shifted(const DeviceArray<float>& x, DeviceArray<float>& y, std::int64_t shift) {
  launch(add_shifted_kernel, {(x.size() + 31) / 32, 32}, x, y, x.size(), shift);
}

void count_blocks(DeviceArray<int>& x, const Extent& grid) {
  launch(count_blocks_kernel, {grid, 1}, x);
}

void reverse_blocks(DeviceArray<float>& x, int threads) {
  launch(reverse_kernel, {x.size() / threads, threads}, x);
}

void reverse_blocks_through_pieces(DeviceArray<float>& x, int threads) {
  const std::int64_t floats = (threads + 3) / 4 * 4;
  launch(reverse_through_pieces_kernel, {x.size() / threads, threads, (4 + 4 + 16) * floats},
         x);
}

void reverse_blocks_at_the_end(DeviceArray<float>& x, int threads, std::int64_t shared_bytes) {
  launch(reverse_at_the_end_kernel, {x.size() / threads, threads, shared_bytes}, x,
         shared_bytes / 16 * 4 - threads);
}

void reverse_blocks_by_four(DeviceArray<float>& x, int threads) {
  launch(reverse_by_four_kernel, {x.size() / (4 * threads), threads, 16 * (threads + 1)}, x);
}

void count_atomically(DeviceArray<int>& ints, DeviceArray<unsigned>& unsigneds,
                      DeviceArray<float>& floats, const Extent& grid, const Extent& block) {
  launch(count_atomically_kernel, {grid, block}, ints, unsigneds, floats);
}

void add_zeros(DeviceArray<float>& x, int rounds) {
  launch(add_zeros_kernel, {1, 1}, x, static_cast<int>(x.size()), rounds);
}

void add_under_lock(DeviceArray<float>& sums, int blocks) {
  DeviceArray<unsigned> lock(std::vector<unsigned>{0});
  launch(add_under_lock_kernel, {blocks, 32}, lock, sums);
}

void take_turns(DeviceArray<int>& order) {
  DeviceArray<unsigned> started(std::vector<unsigned>{0}), turn(std::vector<unsigned>{0});
  launch(take_turns_kernel, {order.size(), 32}, started, turn, order);
}

void double_heads(const DeviceHeads<float>& x, DeviceHeads<float>& y) {
  launch(double_heads_kernel, {{x.H(), x.B()}, 32}, x, x.layout(), y, y.layout());
}

void sum_over_warps(DeviceArray<float>& out, int threads) {
  launch(sum_over_warps_kernel, {1, threads}, out);
}

void exchange_in_halves(DeviceArray<float>& out) {
  launch(exchange_in_halves_kernel, {1, 32}, out);
}

void exchange_after_leaving(DeviceArray<float>& out) {
  launch(exchange_after_leaving_kernel, {1, 32}, out);
}

void exchange_types(DeviceArray<int>& ints, DeviceArray<unsigned>& unsigneds,
                    DeviceArray<double>& doubles) {
  launch(exchange_types_kernel, {1, 32}, ints, unsigneds, doubles);
}

void wait_often(DeviceArray<float>& out, int barriers) {
  launch(wait_often_kernel, {1, 2}, out, barriers);
}

void record_order(DeviceArray<int>& out, DeviceArray<int>& next, int threads) {
  launch(record_order_kernel, {next.size(), threads}, out, next);
}

void count_stale_words(DeviceArray<int>& stale) {
  launch(count_stale_words_kernel, {stale.size(), 64, 256}, stale);
}

void exchange_with_absent_lanes(DeviceArray<float>& out) {
  launch(exchange_with_absent_lanes_kernel, {1, 8}, out);
}

std::vector<std::string> bug_names() {
  std::vector<std::string> names;
  for (const Bug& bug : kBugs) names.push_back(bug.name);
  return names;
}

void run_bug(const std::string& name) {
  DeviceArray<float> x(64);
  for (const Bug& bug : kBugs) {
    if (bug.name != name) continue;
    launch(bug.kernel, {3, 64, 1024}, x);
    return;
  }
  throw std::invalid_argument("no bug is called " + name);
}

std::string place_of(const std::string& mark) {
  std::ifstream file(__FILE__);
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    const std::string end = "// bug: " + mark;
    if (text.size() >= end.size() && text.substr(text.size() - end.size()) == end) {
      return "device_kernels.cu:" + std::to_string(line);
    }
  }
  throw std::invalid_argument("no line is marked " + mark);
}

void wait_for_nobody() {
  DeviceArray<unsigned> turn(std::vector<unsigned>(64, 0));
  launch(wait_for_nobody_kernel, {1, 64}, turn);
}

void fail_while_others_wait() {
  DeviceArray<unsigned> turn(std::vector<unsigned>(64, 0));
  launch(fail_while_others_wait_kernel, {32, 64}, turn);
}

void run_late_bug(int later_turns) {
  DeviceArray<float> x(64);
  launch(late_bug_kernel, {64, 64}, x, later_turns);
}

void run_bug_in_three_dimensions() {
  DeviceArray<float> x(64);
  launch(three_dimensions_kernel, {{1, 2, 3}, {4, 2, 2}}, x);
}

void run_bug_while_others_wait(DeviceArray<float>& x) {
  launch(wrong_while_others_wait_kernel, {1, 64}, x);
}

void run_throwing_kernel() {
#if !defined(__CUDACC__)
  launch(throwing_kernel, {4, 32});
#endif
}

}  // namespace flash_steps::test

// Small kernels for tests/common/device.cpp, and the functions that launch them: the same ones
// for the simulator and for a GPU. No Eigen here: nvcc reads this file, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/device/array.hpp"
#include "common/device/heads.hpp"
#include "common/device/launch.hpp"

namespace flash_steps::test {

// ---- what both devices must do alike

// Each thread writes threadIdx and blockIdx, six ints; threads in order, x fastest, blocks too.
void write_indices(DeviceArray<int>& out, const Extent& grid, const Extent& block);

// Nothing, with this launch.
void do_nothing(const Extent& grid, const Extent& block, std::int64_t shared_bytes = 0);

// y = 2 x, element by element; blocks of 32.
void double_values(const DeviceArray<float>& x, DeviceArray<float>& y);
// y = 2 x, 16 bytes at a time; for multiples of 4.
void double_values_by_four(const DeviceArray<float>& x, DeviceArray<float>& y);
// y[i] += x[i + shift], for all i that have one.
void add_shifted(const DeviceArray<float>& x, DeviceArray<float>& y, std::int64_t shift);
// x[block] += 1, by one thread a block.
void count_blocks(DeviceArray<int>& x, const Extent& grid);

// Turns each stretch of `threads` elements around, through a shared_array.
void reverse_blocks(DeviceArray<float>& x, int threads);
// The same through `pieces` pieces of dynamic shared memory, of three types.
void reverse_blocks_through_pieces(DeviceArray<float>& x, int threads);
// The same through the far end of a block's dynamic shared memory, beside a shared_array of
// 8192 bytes, which is kBesideBytes.
void reverse_blocks_at_the_end(DeviceArray<float>& x, int threads, std::int64_t shared_bytes);
inline constexpr std::int64_t kBesideBytes = 8192;

// Turns each stretch of 4 * `threads` elements around, 16 bytes at a time.
void reverse_blocks_by_four(DeviceArray<float>& x, int threads);

// Each thread of the grid adds -1 to ints[1], 3 to unsigneds[1], 0.5 to floats[1].
void count_atomically(DeviceArray<int>& ints, DeviceArray<unsigned>& unsigneds,
                      DeviceArray<float>& floats, const Extent& grid, const Extent& block);
// One thread adds 0 to each element in turn, again and again.
void add_zeros(DeviceArray<float>& x, int rounds);
// Each block adds 1 to sums[0], and sets sums[1] to twice that, under a lock.
void add_under_lock(DeviceArray<float>& sums, int blocks);
// A block for each element waits for the one before: order = 100, 101, 102, ...
void take_turns(DeviceArray<int>& order);

// y = 2 x, head by head, each with its own layout of the same sizes.
void double_heads(const DeviceHeads<float>& x, DeviceHeads<float>& y);

// Each thread: the sum of (threadIdx.x + 1) over its warp, by xor shuffles. The last warp may
// have fewer lanes, a power of two.
void sum_over_warps(DeviceArray<float>& out, int threads);
// Half a warp each, in two branches: lane i gets i ^ 1 and i ^ 2.
void exchange_in_halves(DeviceArray<float>& out);
// Odd lanes leave; even lanes name all in the mask and get lane ^ 2.
void exchange_after_leaving(DeviceArray<float>& out);
// What lane ^ 5 hands in: an int, an unsigned and a double.
void exchange_types(DeviceArray<int>& ints, DeviceArray<unsigned>& unsigneds,
                    DeviceArray<double>& doubles);

// Block 0 waits at this many barriers. In each of the first 64 thread 0 writes a word; thread 1
// reads them all in each of the last 128. out[0] is their sum.
void wait_often(DeviceArray<float>& out, int barriers);

// ---- what only the simulator does

// out[0 .. threads) of each block: the threads as they come, then again after a barrier.
void record_order(DeviceArray<int>& out, DeviceArray<int>& next, int threads);

// Each block counts the words of fresh shared memory that are no NaN, then fills them.
void count_stale_words(DeviceArray<int>& stale);

// A warp of 8 lanes: lane i gets 4 ^ i, 16 ^ i (absent), 36 ^ i (no lane), 4 ^ i (not
// in the mask); then all but lane 0 leave, and it gets what lane 1 has.
void exchange_with_absent_lanes(DeviceArray<float>& out);

// A kernel that is wrong on purpose, in block 1 and later. "// bug: NAME" marks its lines.
std::vector<std::string> bug_names();
void run_bug(const std::string& name);
// The place of a mark, as reports give it: "device_kernels.cu:123".
std::string place_of(const std::string& mark);

// Thread 7 polls for a value that nobody stores.
void wait_for_nobody();
// Block 0 is wrong while all other blocks poll for what it should store.
void fail_while_others_wait();

// Block 5 is wrong after 1000 turns, later ones after so many.
void run_late_bug(int later_turns);
// Thread 1,0,1 of block 0,1,2 is wrong.
void run_bug_in_three_dimensions();
// Every thread marks x[thread] with 1 and, as it is unwound, with 2; the last one is wrong.
void run_bug_while_others_wait(DeviceArray<float>& x);
// Throws std::out_of_range("not a device's").
void run_throwing_kernel();

}  // namespace flash_steps::test

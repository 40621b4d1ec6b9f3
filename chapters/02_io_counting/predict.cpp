#include "chapters/02_io_counting/predict.hpp"

#include <algorithm>
#include <cmath>

#include "common/tensor/ceil_div.hpp"
#include "common/tensor/require.hpp"

namespace flash_steps {
namespace {

// Checked in double, so that the formulas below can be written plainly in 64-bit integers.
void require_countable(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile) {
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t min) {
    if (value >= min) return;
    require(false, std::string(name) + " must be at least " + std::to_string(min) + ", found " +
                       std::to_string(value));
  };
  at_least("Nq", Nq, 0);
  at_least("Nk", Nk, 0);
  at_least("d", d, 1);
  require_tiling(tile);
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double q = real(Nq) * real(d), k = real(Nk) * real(d);
  const double total = q + k + 2 * real(ceil_div(Nq, tile.Br)) * k + 4 * real(Nq) * real(Nk) +
                       real(ceil_div(Nk, tile.Bc)) * (3 * q + 4 * real(Nq));
  require(total < 0x1p60, "the sizes are too large: their counts could pass 2^60");
}

}  // namespace

Counts predict_standard(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile) {
  require_countable(Nq, Nk, d, tile);
  const std::int64_t Tr = ceil_div(Nq, tile.Br);
  Counts counts;
  // [begin 02.predict-standard]
  counts.reads = Nq * d + Tr * Nk * d          // Q once, and K for each Q tile
                 + Nq * Nk                     // S, a row at a time
                 + Nq * Nk + Tr * Nk * d;      // P, and V for each Q tile
  counts.writes = Nq * Nk + Nq * Nk + Nq * d;  // S, P, O
  // [end]
  return counts;
}

Counts predict_q_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile) {
  require_countable(Nq, Nk, d, tile);
  const std::int64_t Tr = ceil_div(Nq, tile.Br);
  Counts counts;
  // [begin 02.predict-q-outer]
  counts.reads = Nq * d + 2 * Tr * Nk * d;  // Q once; K and V for each Q tile
  counts.writes = Nq * d;                   // O once
  counts.statistics_writes = Nq;            // LSE
  // [end]
  return counts;
}

Counts predict_kv_outer(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile) {
  require_countable(Nq, Nk, d, tile);
  const std::int64_t Tc = ceil_div(Nk, tile.Bc);
  Counts counts;
  if (Nq == 0) return counts;  // nothing to do
  // [begin 02.predict-kv-outer]
  counts.reads = 2 * Nk * d + 2 * Tc * Nq * d;  // K and V once; Q and O for each K/V tile
  counts.writes = Tc * Nq * d;                  // O for each K/V tile
  counts.statistics_reads = 2 * Tc * Nq;        // m and l, likewise
  counts.statistics_writes = 2 * Tc * Nq;
  // [end]
  return counts;
}

Counts predict_notes(std::int64_t Nq, std::int64_t Nk, std::int64_t d, Tiling tile) {
  require_countable(Nq, Nk, d, tile);
  const std::int64_t Tr = ceil_div(Nq, tile.Br), Tc = ceil_div(Nk, tile.Bc);
  Counts counts;
  // [begin 02.predict-notes]
  counts.reads = Tc * Nq * d + 2 * Tr * Nk * d;  // the fault: Q again for each K/V tile
  counts.writes = Nq * d;
  // [end]
  return counts;
}

std::int64_t bytes_per_element(const std::string& dtype) {
  if (dtype == "f32") return 4;
  if (dtype == "bf16" || dtype == "f16") return 2;
  throw std::invalid_argument("the dtype must be f32, bf16 or f16, found '" + dtype + "'");
}

Traffic bytes_moved(const Counts& counts, std::int64_t element_bytes) {
  Traffic bytes;
  // [begin 02.bytes]
  bytes.read_bytes = counts.reads * element_bytes + counts.statistics_reads * 4;
  bytes.written_bytes = counts.writes * element_bytes + counts.statistics_writes * 4;
  // [end]
  return bytes;
}

Tiling choose_tiles_kv_outer(std::int64_t M, std::int64_t d) {
  require(M >= 1, "the on-chip memory must hold at least one element");
  require(d >= 1, "the head dimension d must be at least 1");
  Tiling tile;
  // [begin 02.choose-tiles]
  tile.Bc = ceil_div(M, 4 * d);    // K_j and V_j stay: a quarter of M each
  tile.Br = std::min(tile.Bc, d);  // so that S = (Br, Bc) is no larger
  // [end]
  return tile;
}

Tiling choose_tiles_q_outer(std::int64_t M, std::int64_t d) {
  const Tiling swapped = choose_tiles_kv_outer(M, d);
  return {.Br = swapped.Bc, .Bc = swapped.Br};  // Q_i and O_i stay
}

Tiling choose_tiles_notes(std::int64_t M) {
  require(M >= 1, "the on-chip memory must hold at least one element");
  auto B = static_cast<std::int64_t>(std::sqrt(static_cast<double>(M)));
  while (B > M / B) --B;  // the root was rounded up
  return {.Br = B, .Bc = B};
}

std::int64_t tile_elements(Tiling tile, std::int64_t d) {
  require_tiling(tile);
  require(d >= 1 && static_cast<double>(tile.Br) * static_cast<double>(tile.Bc) < 0x1p60 &&
              static_cast<double>(tile.Br) + static_cast<double>(tile.Bc) <
                  0x1p60 / static_cast<double>(d),
          "the tiles are too large: their size could pass 2^60");
  std::int64_t elements = 0;
  // [begin 02.tile-elements]
  elements = 2 * tile.Br * d + 2 * tile.Bc * d + tile.Br * tile.Bc;  // Q, O; K, V; S
  // [end]
  return elements;
}

Tiling default_square_tiles(std::int64_t M, std::int64_t d) {
  std::int64_t B = 64;
  while (B > 1 && tile_elements({B, B}, d) > M) B /= 2;
  return {B, B};
}

}  // namespace flash_steps

// The body of the CUDA kernel: one warp writes one row at a time, 16 bytes per lane and store.
// Compiled by nvcc for GPUs and by any C++ compiler for tests, which run it lane by lane.
#pragma once
#include "token_code.h"

#if !defined(__CUDACC__)
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
#endif

// Code of an id. On a GPU lane j computes code bit j and a vote collects them: one AND, one
// population count and one ballot for any K. All 32 lanes must take part.
template <bool AFFINE>
FC_FN uint32_t fc_warp_encode(const fc_code& code, uint32_t id, uint32_t my_row) {
  if (!AFFINE) return (id & code.mask) ^ code.shift;
#if defined(__CUDA_ARCH__)
  return __ballot_sync(0xFFFFFFFFu, __popc(my_row & id) & 1) ^ code.shift;
#else
  (void)my_row;
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < code.num_bits; ++lane)
    votes |= (uint32_t)(__builtin_popcount(code.row[lane] & id) & 1) << lane;
  return votes ^ code.shift;
#endif
}

// Element values from bits, 16 bytes at a time. low and delta hold the pattern in both halves for
// 16-bit types; delta = low pattern xor high pattern.
template <int BYTES>
FC_FN uint4 fc_expand(uint32_t bits, uint32_t low, uint32_t delta) {
  uint4 v;
  if (BYTES == 2) {
    // Spread 8 bits: bit 2n goes to bit 0 and bit 2n + 1 to bit 16 of word n.
    const uint32_t spread = bits | (bits << 15);
    const uint32_t d = delta & 0xFFFFu;
    v.x = ((spread & 0x00010001u) * d) ^ low;
    v.y = (((spread >> 2) & 0x00010001u) * d) ^ low;
    v.z = (((spread >> 4) & 0x00010001u) * d) ^ low;
    v.w = (((spread >> 6) & 0x00010001u) * d) ^ low;
  } else {
    v.x = ((0u - (bits & 1u)) & delta) ^ low;
    v.y = ((0u - ((bits >> 1) & 1u)) & delta) ^ low;
    v.z = ((0u - ((bits >> 2) & 1u)) & delta) ^ low;
    v.w = ((0u - ((bits >> 3) & 1u)) & delta) ^ low;
  }
  return v;
}

// The bits that COUNT neighbours show under the interleave lift, the first of them being the
// `rest`-th element of its group.
template <uint32_t COUNT>
FC_FN uint32_t fc_grouped_bits(uint32_t code, uint32_t column, uint32_t rest, uint32_t group) {
  if (group % COUNT == 0) return 0u - ((code >> column) & 1u);  // all within one group
  uint32_t bits = 0;
  FC_UNROLL
  for (uint32_t i = 0; i < COUNT; ++i) {
    bits |= ((code >> column) & 1u) << i;
    rest += 1;
    column += rest == group;
    rest = rest == group ? 0 : rest;
  }
  return bits;
}

enum fc_shape {
  FC_TILE_16 = 0,      // tile, K = 16 known to the compiler
  FC_TILE = 1,         // tile, any K
  FC_INTERLEAVE = 2,   // interleave, any K
  FC_ELEMENTWISE = 3,  // rows that are not a multiple of 16 bytes: one element per lane and store
};

template <int BYTES, int SHAPE>
FC_FN void fc_warp_row(const fc_code& code, void* row_out, uint32_t bits, uint32_t low,
                       uint32_t delta, uint32_t lane) {
  constexpr uint32_t kPerStore = 16 / BYTES;
  constexpr uint32_t kStride = 32 * kPerStore;  // elements that the warp writes at once
  const uint32_t hidden = code.hidden;
  if (SHAPE == FC_ELEMENTWISE) {
    for (uint32_t i = lane; i < hidden; i += 32) {
      const uint32_t on = (bits >> fc_column(i, code.num_bits, code.group)) & 1u;
      const uint32_t value = low ^ ((0u - on) & delta);
      if (BYTES == 2) ((uint16_t*)row_out)[i] = (uint16_t)value;
      else ((uint32_t*)row_out)[i] = value;
    }
    return;
  }
  uint4* out = (uint4*)row_out;
  if (SHAPE == FC_TILE_16) {
    // kStride is a multiple of 16: a lane writes the same value all along the row.
    const uint4 value = fc_expand<BYTES>(bits >> (lane * kPerStore % 16u), low, delta);
#if defined(__CUDA_ARCH__)
#pragma unroll 8
#endif
    for (uint32_t i = lane * kPerStore; i < hidden; i += kStride) out[i / kPerStore] = value;
  } else if (SHAPE == FC_TILE) {
    const uint32_t k = code.num_bits;
    const uint64_t window = fc_repeat(bits, k);
    const uint32_t step = kStride % k;
    uint32_t offset = lane * kPerStore % k;
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
    for (uint32_t i = lane * kPerStore; i < hidden; i += kStride) {
      const uint32_t mask = BYTES == 2 ? 0xFFu : 0xFu;
      out[i / kPerStore] = fc_expand<BYTES>((uint32_t)(window >> offset) & mask, low, delta);
      offset += step;
      offset = offset >= k ? offset - k : offset;
    }
  } else {
    const uint32_t group = code.group, columns = kStride / group, step = kStride - columns * group;
    uint32_t column = lane * kPerStore / group, rest = lane * kPerStore - column * group;
    for (uint32_t i = lane * kPerStore; i < hidden; i += kStride) {
      const uint32_t mask = BYTES == 2 ? 0xFFu : 0xFu;
      const uint32_t shown = fc_grouped_bits<kPerStore>(bits, column, rest, group) & mask;
      out[i / kPerStore] = fc_expand<BYTES>(shown, low, delta);
      column += columns;
      rest += step;
      column += rest >= group;
      rest = rest >= group ? rest - group : rest;
    }
  }
}

template <int BYTES, bool AFFINE, int SHAPE>
FC_FN void fc_warp_body(const fc_code& code, const fc_call& call, uint32_t warp, uint32_t warps,
                        uint32_t lane) {
  const uint32_t copies = BYTES == 2 ? 0x00010001u : 1u;
  const uint32_t low = (uint32_t)code.low * copies;
  const uint32_t delta = (uint32_t)(code.low ^ code.high) * copies;
  const uint32_t my_row = AFFINE ? code.row[lane] : 0u;
  for (uint32_t row = warp; row < call.rows; row += warps) {
    const uint32_t bits = fc_warp_encode<AFFINE>(code, fc_load_id(call, row), my_row);
    char* out = (char*)call.out + (uint64_t)row * code.hidden * BYTES;
    fc_warp_row<BYTES, SHAPE>(code, out, bits, low, delta, lane);
  }
}

// Which of the shapes serves a call.
static inline int fc_choose_shape(const fc_code& code, const fc_call& call) {
  const bool whole = (uint64_t)code.hidden * code.element_bytes % 16 == 0;
  if (!whole || (uintptr_t)call.out % 16) return FC_ELEMENTWISE;
  if (code.group) return FC_INTERLEAVE;
  return code.num_bits == 16 ? FC_TILE_16 : FC_TILE;
}

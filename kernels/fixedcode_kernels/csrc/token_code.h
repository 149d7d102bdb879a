// The bit maths of the token code, shared by the CPU kernel, the CUDA kernel and its host build.
//
//   code(id)  = A (id mod 2^K) xor shift        over GF(2)
//   column(i) = i mod K (tile)   or   i / group (interleave, group = hidden / K)
//   element i = bit column(i) of code(id) ? high : low        (bit patterns of the output type)
//
// No library headers: any C++17 compiler builds this, with or without CUDA.
#pragma once
#include <stdint.h>

#if defined(__CUDACC__)
#define FC_FN __host__ __device__ __forceinline__
#define FC_UNROLL _Pragma("unroll")
#else
#define FC_FN static inline
#define FC_UNROLL
#endif

// Everything that stays the same from call to call. Filled by Python (native.py keeps the layout).
struct fc_code {
  uint32_t num_bits, hidden, group, element_bytes;
  uint32_t mask, shift, affine, reserved;
  uint64_t low, high;   // patterns of a 0 and a 1 bit, in the low element_bytes bytes
  uint32_t column[32];  // column k of A: id bit k flips these code bits
  uint32_t row[32];     // row j of A: code bit j is the parity of row[j] & id
};

// One call: ids [batch, *] with strides in elements, out [rows / batch, batch, hidden] contiguous.
struct fc_call {
  const void* ids;
  void* out;
  int64_t stride_b, stride_s, seq_start;
  uint32_t batch, rows;  // row = position * batch + sample, fewer than 2^31
  uint32_t id_bytes, reserved;
};

FC_FN uint32_t fc_load_id(const fc_call& call, uint32_t row) {
  const uint32_t position = row / call.batch;
  const uint32_t sample = row - position * call.batch;
  const int64_t at =
      (int64_t)sample * call.stride_b + (call.seq_start + (int64_t)position) * call.stride_s;
  return call.id_bytes == 8 ? (uint32_t)((const uint64_t*)call.ids)[at]
                            : ((const uint32_t*)call.ids)[at];
}

// A id xor shift by columns: no population count needed.
FC_FN uint32_t fc_encode(const fc_code& code, uint32_t id) {
  uint32_t result = code.shift;
  if (!code.affine) return result ^ (id & code.mask);
  for (uint32_t k = 0; k < code.num_bits; ++k) result ^= code.column[k] & (0u - ((id >> k) & 1u));
  return result;
}

// The code repeated until at least K + 8 bits are valid: every window of 8 bits is one shift away.
FC_FN uint64_t fc_repeat(uint32_t code, uint32_t num_bits) {
  uint64_t result = code;
  for (uint32_t valid = num_bits; valid < num_bits + 8; valid *= 2) result |= result << valid;
  return result;
}

FC_FN uint32_t fc_column(uint32_t element, uint32_t num_bits, uint32_t group) {
  return group ? element / group : element % num_bits;
}

// CPU kernel: each row is one short pattern written over and over, so it runs at the speed of a fill.
// GCC/Clang vector extensions only; the compiler lowers them to the widest registers there are.
#include "token_code.h"

#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

constexpr size_t kVectorBytes = 64;
constexpr size_t kBytesPastCaches = 48u << 20;

// Store 64 aligned bytes past the caches: an output larger than them would only push itself out, and
// a plain store reads each line before it writes it.
template <typename V>
inline void stream(char* to, const V& value) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i*)to, (__m512i)value);
#elif defined(__AVX__)
  __m256i halves[2];
  memcpy(halves, &value, kVectorBytes);
  _mm256_stream_si256((__m256i*)to, halves[0]);
  _mm256_stream_si256((__m256i*)to + 1, halves[1]);
#else
  memcpy(to, &value, kVectorBytes);
#endif
}

inline void end_stream() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

template <typename T>
struct Vector {
  static constexpr uint32_t lanes = kVectorBytes / sizeof(T);
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

// A id xor shift by tables of a byte each: the code is linear, so an entry with one bit more is one
// XOR more. For few rows the tables are not worth making.
class Encoder {
 public:
  Encoder(const fc_code& code, uint32_t rows) : code_(code), tables_(code.affine && rows >= 64) {
    if (!tables_) return;
    for (uint32_t byte = 0; byte < 4; ++byte) {
      table_[byte][0] = byte == 0 ? code.shift : 0;
      for (uint32_t bit = 0; bit < 8; ++bit)
        for (uint32_t i = 0; i < 1u << bit; ++i)
          table_[byte][i | 1u << bit] = table_[byte][i] ^ code.column[8 * byte + bit];
    }
  }

  uint32_t operator()(uint32_t id) const {
    if (!tables_) return fc_encode(code_, id);
    return table_[0][id & 255] ^ table_[1][id >> 8 & 255] ^ table_[2][id >> 16 & 255] ^
           table_[3][id >> 24];
  }

 private:
  const fc_code& code_;
  bool tables_;
  uint32_t table_[4][256];
};

template <typename T>
class RowWriter {
 public:
  RowWriter(const fc_code& code, bool past_caches)
      : code_(code), low_((T)code.low), delta_((T)(code.low ^ code.high)) {
    past_caches_ = past_caches && (size_t)code.hidden * sizeof(T) % kVectorBytes == 0;
    // K divides the lanes of a vector: the whole row is one vector, repeated.
    whole_vector_ = !code.group && lanes % code.num_bits == 0 && code.num_bits <= 8 * sizeof(T);
    if (whole_vector_) {
      for (uint32_t i = 0; i < lanes; ++i) select_[i] = (T)((T)1 << (i % code.num_bits));
      return;
    }
    for (uint32_t i = 0; i < 16 * 4; ++i) four_[i / 4][i % 4] = value(i / 4, i % 4);
    period_ = code.num_bits;
    while (period_ % lanes) period_ += code.num_bits;
    if (period_ > code.hidden) period_ = code.hidden;
  }

  void operator()(T* out, uint32_t bits) const {
    if (code_.group) return groups(out, bits);
    if (whole_vector_) return vectors(out, bits);
    return periods(out, bits);
  }

 private:
  using V = typename Vector<T>::type;
  static constexpr uint32_t lanes = Vector<T>::lanes;

  T value(uint32_t bits, uint32_t column) const {
    return (T)(low_ ^ (delta_ & (T)(0 - (T)((bits >> column) & 1u))));
  }

  void vectors(T* out, uint32_t bits) const {
    const V chosen = (V)((select_ & (T)bits) != 0);
    const V pattern = (chosen & delta_) ^ low_;
    size_t left = (size_t)code_.hidden * sizeof(T);
    char* to = (char*)out;
    if (past_caches_) {
      for (; left; left -= kVectorBytes, to += kVectorBytes) stream(to, pattern);
      return;
    }
    for (; left >= 4 * kVectorBytes; left -= 4 * kVectorBytes, to += 4 * kVectorBytes)
      for (size_t i = 0; i < 4; ++i) memcpy(to + i * kVectorBytes, &pattern, kVectorBytes);
    for (; left >= kVectorBytes; left -= kVectorBytes, to += kVectorBytes)
      memcpy(to, &pattern, kVectorBytes);
    memcpy(to, &pattern, left);
  }

  // Any K: the code's elements, repeated until they end with a vector (or the row does). At most 32
  // vectors, so the nearest cache holds them; from there they go to the row.
  void periods(T* out, uint32_t bits) const {
    alignas(kVectorBytes) T pattern[32 * lanes];
    for (uint32_t i = 0; i < code_.num_bits; i += 4, bits >>= 4)
      memcpy(pattern + i, four_[bits & 15], sizeof four_[0]);
    for (size_t filled = code_.num_bits; filled < period_;) {
      const size_t more = filled < period_ - filled ? filled : period_ - filled;
      memcpy(pattern + filled, pattern, more * sizeof(T));
      filled += more;
    }
    size_t left = (size_t)code_.hidden * sizeof(T);
    char* to = (char*)out;
    while (left) {
      const size_t bytes = left < period_ * sizeof(T) ? left : period_ * sizeof(T);
      const char* from = (const char*)pattern;
      left -= bytes;
      if (!past_caches_) {
        to = (char*)memcpy(to, from, bytes) + bytes;
        continue;
      }
      for (const char* end = to + bytes; to < end; to += kVectorBytes, from += kVectorBytes) {
        V part;
        memcpy(&part, from, kVectorBytes);
        stream(to, part);
      }
    }
  }

  void groups(T* out, uint32_t bits) const {
    for (uint32_t column = 0; column < code_.num_bits; ++column) {
      const T element = value(bits, column);
      for (uint32_t i = 0; i < code_.group; ++i) *out++ = element;
    }
  }

  const fc_code& code_;
  T low_, delta_;
  V select_ = {};
  T four_[16][4];       // the elements of four code bits
  size_t period_ = 0;   // elements
  bool whole_vector_, past_caches_;
};

template <typename T>
void fill_rows(const fc_code& code, const fc_call& call, uint32_t first, uint32_t last) {
  const size_t bytes = (size_t)call.rows * code.hidden * sizeof(T);
  const bool past_caches = bytes >= kBytesPastCaches && (uintptr_t)call.out % kVectorBytes == 0;
  const RowWriter<T> write(code, past_caches);
  const Encoder encode(code, last - first);
  T* out = (T*)call.out + (size_t)first * code.hidden;
  for (uint32_t row = first; row < last; ++row, out += code.hidden)
    write(out, encode(fc_load_id(call, row)));
  if (past_caches) end_stream();
}

void fill_range(const fc_code& code, const fc_call& call, uint32_t first, uint32_t last) {
  switch (code.element_bytes) {
    case 2: return fill_rows<uint16_t>(code, call, first, last);
    case 4: return fill_rows<uint32_t>(code, call, first, last);
    default: return fill_rows<uint64_t>(code, call, first, last);
  }
}

}  // namespace

extern "C" void fc_cpu_fill(const fc_code* code, const void* ids, void* out, int64_t stride_b,
                            int64_t stride_s, int64_t seq_start, uint32_t batch, uint32_t rows,
                            uint32_t id_bytes, int threads) {
  const fc_call call = {ids, out, stride_b, stride_s, seq_start, batch, rows, id_bytes, 0};
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int part = 0; part < threads; ++part)
      fill_range(*code, call, (uint32_t)((uint64_t)rows * part / threads),
                 (uint32_t)((uint64_t)rows * (part + 1) / threads));
    return;
  }
#endif
  (void)threads;
  fill_range(*code, call, 0, rows);
}

extern "C" uint32_t fc_code_size() { return sizeof(fc_code); }

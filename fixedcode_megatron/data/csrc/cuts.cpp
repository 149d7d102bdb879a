// Where to cut UTF-8 text before digits, and markers put in at cuts: see data/digits.py.

#include <cstdint>
#include <cstring>

namespace {

using Byte = uint8_t;

inline Byte is_space(Byte c) { return (c == ' ') | (static_cast<Byte>(c - '\t') < 5); }
inline Byte is_other(Byte c) { return c >> 7; }

// A digit behind two white spaces; a character outside ASCII may be one.
inline Byte is_cut(const Byte* c) {
  const Byte digit = static_cast<Byte>(c[0] - '0') < 10;
  return digit & (is_other(c[-1]) | (is_space(c[-1]) & (is_space(c[-2]) | is_other(c[-2]))));
}

}  // namespace

extern "C" {

// Writes the offsets to `cuts`, which has room for `size` / 2 of them, and returns their number.
int64_t digit_cuts(const Byte* text, int64_t size, int64_t* cuts) {
  constexpr int kChunk = 64;
  int64_t found = 0, i = 2;
  for (; i + kChunk <= size; i += kChunk) {
    Byte any = 0;
    for (int j = 0; j < kChunk; ++j) any |= is_cut(text + i + j);
    for (int j = 0; any && j < kChunk; ++j) {
      if (is_cut(text + i + j)) cuts[found++] = i + j;
    }
  }
  for (; i < size; ++i) {
    if (is_cut(text + i)) cuts[found++] = i;
  }
  return found;
}

// Copies `text` to `out` with `marker` before each of the offsets `cuts`.
void insert_markers(const Byte* text, int64_t size, const int64_t* cuts, int64_t num_cuts,
                    const Byte* marker, int64_t marker_size, Byte* out) {
  int64_t begin = 0;
  for (int64_t i = 0; i < num_cuts; ++i) {
    memcpy(out, text + begin, cuts[i] - begin);
    out += cuts[i] - begin;
    memcpy(out, marker, marker_size);
    out += marker_size;
    begin = cuts[i];
  }
  memcpy(out, text + begin, size - begin);
}

}  // extern "C"

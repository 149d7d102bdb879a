// UTF-8 text with a marker at each place where it is to be cut before an engine splits it: see
// data/digits.py.

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

// Copies a text; places come in their order, and one that comes twice is cut once.
class Copier {
 public:
  Copier(const Byte* text, const Byte* marker, int64_t marker_size, Byte* out, int64_t capacity)
      : text_(text), marker_(marker), marker_size_(marker_size), out_(out), capacity_(capacity) {}

  void cut(int64_t place) {
    if (place == last_) return;
    last_ = place;
    copy_until(place);
    if (size_ + marker_size_ <= capacity_) memcpy(out_ + size_, marker_, marker_size_);
    size_ += marker_size_;
    ++cuts_;
  }

  void copy_until(int64_t place) {
    const int64_t run = place - begin_;
    if (size_ + run <= capacity_) memcpy(out_ + size_, text_ + begin_, run);
    size_ += run;
    begin_ = place;
  }

  int64_t size() const { return size_; }
  int64_t cuts() const { return cuts_; }

 private:
  const Byte* const text_;
  const Byte* const marker_;
  const int64_t marker_size_;
  Byte* const out_;
  const int64_t capacity_;
  int64_t begin_ = 0, size_ = 0, cuts_ = 0, last_ = -1;
};

}  // namespace

extern "C" {

// Copies `text` to `out` with `marker` before digits, see above, and on both sides of the
// characters at `starts`, in increasing order, of `widths` bytes. Returns the size, which may be
// more than `capacity`: then `out` is not whole.
int64_t cut_digits(const Byte* text, int64_t size, const int64_t* starts, const int64_t* widths,
                   int64_t num_characters, const Byte* marker, int64_t marker_size, Byte* out,
                   int64_t capacity, int64_t* num_cuts) {
  constexpr int kChunk = 64;
  Copier copier(text, marker, marker_size, out, capacity);
  const int64_t num_bounds = 2 * num_characters;
  int64_t k = 0;
  const auto bound = [&] { return k % 2 ? starts[k / 2] + widths[k / 2] : starts[k / 2]; };
  const auto cut_bounds = [&](int64_t last) {
    for (; k < num_bounds && bound() <= last; ++k) copier.cut(bound());
  };
  int64_t i = 2;
  for (; i + kChunk <= size; i += kChunk) {
    Byte found[kChunk];
    for (int j = 0; j < kChunk; ++j) found[j] = is_cut(text + i + j);
    for (int j = 0; j < kChunk; j += 8) {
      uint64_t word;
      memcpy(&word, found + j, 8);
      for (; word; word &= word - 1) {
        const int64_t place = i + j + (__builtin_ctzll(word) >> 3);
        cut_bounds(place);
        copier.cut(place);
      }
    }
  }
  for (; i < size; ++i) {
    if (is_cut(text + i)) {
      cut_bounds(i);
      copier.cut(i);
    }
  }
  cut_bounds(size);
  copier.copy_until(size);
  *num_cuts = copier.cuts();
  return copier.size();
}

}  // extern "C"

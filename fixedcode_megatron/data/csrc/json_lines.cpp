// JSON lines to UTF-8: the string under one key of each line, a marker behind each.
//
// Only what is certain is done here. A line with any mistake, or anything unusual, ends the call,
// and the caller reads the block in another way, which also has the words for what is wrong.

#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lowest byte of a word is taken for its first"
#endif

namespace {

using Byte = uint8_t;

constexpr int kMaxDepth = 64;
constexpr int kWindow = 64;

// A bit for each of `kWindow` bytes that is a quote, a backslash, below a space or outside ASCII.
inline uint64_t special_bytes(const Byte* p) {
  Byte found[kWindow];
  for (int i = 0; i < kWindow; ++i) {
    found[i] = (p[i] == '"') | (p[i] == '\\') | (p[i] < ' ') | (p[i] >> 7);
  }
  uint64_t bits = 0;
  for (int i = 0; i < kWindow; i += 8) {
    uint64_t word;
    memcpy(&word, found + i, 8);
    bits |= word * 0x0102040810204080 >> 56 << i;  // eight bytes of 0 or 1 to as many bits
  }
  return bits;
}

// What a character behind a backslash means; 0 for u, and for what must not stand there.
struct Meant {
  Byte of[256] = {};
  constexpr Meant() {
    of['"'] = '"', of['\\'] = '\\', of['/'] = '/';
    of['b'] = '\b', of['f'] = '\f', of['n'] = '\n', of['r'] = '\r', of['t'] = '\t';
  }
};
constexpr Meant kMeant;

struct Output {
  Byte* text;
  int64_t size;
  const Byte *classes, *pairs;  // of each code point; of all that begin with a pair of bytes
  Byte kinds;
  int64_t* places;  // of the characters of these kinds
  int64_t num_places, max_places;
};

int hex_digit(Byte c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

class Line {
 public:
  // `data_end` is where the lines behind this one end: so far bytes may be looked at.
  Line(const Byte* begin, const Byte* end, const Byte* data_end)
      : p_(begin), end_(end), data_end_(data_end), window_(begin - kWindow) {}

  // Reads an object to the end of the line and appends the string under `key`, the last one if
  // there are several.
  bool read(const Byte* key, int64_t key_size, Output& out) {
    const int64_t size = out.size, num_places = out.num_places;
    bool found = false;
    skip_space();
    if (!take('{')) return false;
    do {
      skip_space();
      const Byte* name = p_ + 1;
      if (!skip_string()) return false;
      const int64_t name_size = p_ - 1 - name;
      if (memchr(name, '\\', name_size)) return false;  // may be the key, spelled otherwise
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (name_size == key_size && memcmp(name, key, key_size) == 0) {
        out.size = size;
        out.num_places = num_places;
        if (!read_string<true>(out)) return false;
        found = true;
      } else if (!skip_value(1)) {
        return false;
      }
      skip_space();
    } while (take(','));
    if (!found || !take('}')) return false;
    skip_space();
    return p_ == end_;
  }

 private:
  bool take(Byte c) {
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }

  bool take(const char* word, int64_t size) {
    if (end_ - p_ < size || memcmp(p_, word, size) != 0) return false;
    p_ += size;
    return true;
  }

  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }

  bool skip_digits() {
    const Byte* begin = p_;
    while (p_ != end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ != begin;
  }

  bool skip_number() {
    const Byte* begin = p_;
    take('-');
    if (!take('0') && !skip_digits()) return false;
    if (take('.') && !skip_digits()) return false;
    if (p_ - begin > 200) return false;  // with what follows it may be infinite
    if (take('e') || take('E')) {
      const int most = take('-') ? 3 : 2;
      if (most == 2) take('+');
      begin = p_;
      if (!skip_digits() || p_ - begin > most) return false;
    }
    return true;
  }

  bool skip_value(int depth) {
    if (p_ == end_ || depth > kMaxDepth) return false;
    switch (*p_) {
      case '"': return skip_string();
      case 't': return take("true", 4);
      case 'f': return take("false", 5);
      case 'n': return take("null", 4);
      case '[': return skip_items<false>(depth);
      case '{': return skip_items<true>(depth);
      default: return skip_number();
    }
  }

  template <bool kObject>
  bool skip_items(int depth) {
    constexpr Byte kEnd = kObject ? '}' : ']';
    ++p_;
    skip_space();
    if (take(kEnd)) return true;
    do {
      skip_space();
      if (kObject) {
        if (!skip_string()) return false;
        skip_space();
        if (!take(':')) return false;
        skip_space();
      }
      if (!skip_value(depth + 1)) return false;
      skip_space();
    } while (take(','));
    return take(kEnd);
  }

  bool skip_string() {
    Output none{};
    return read_string<false>(none);
  }

  template <bool kKeep>
  bool read_string(Output& out) {
    if (!take('"')) return false;
    Byte* o = kKeep ? out.text + out.size : nullptr;
    while (true) {
      while (data_end_ - p_ >= kWindow) {
        if (p_ - window_ >= kWindow) {
          window_ = p_;
          specials_ = special_bytes(p_);
        }
        const int left = static_cast<int>(window_ + kWindow - p_);
        const uint64_t specials = specials_ >> (kWindow - left);
        const int plain = specials ? __builtin_ctzll(specials) : left;
        if (kKeep) {
          memcpy(o, p_, kWindow);  // more than is needed, but always as much
          o += plain;
        }
        p_ += plain;
        if (specials) break;
      }
      if (p_ == end_) return false;
      const Byte c = *p_;
      if (c == '"') {
        ++p_;
        if (kKeep) out.size = o - out.text;
        return true;
      }
      if (c == '\\') {
        const Byte meant = end_ - p_ < 2 ? 0 : kMeant.of[p_[1]];
        if (meant) {
          if (kKeep) *o++ = meant;
          p_ += 2;
          continue;
        }
        uint32_t code;
        if (!read_escape(&code)) return false;
        if (kKeep && !put(code, o, out)) return false;
      } else if (c < ' ') {
        return false;
      } else if (c < 0x80) {
        if (kKeep) *o++ = c;
        ++p_;
      } else if (!copy_characters<kKeep>(o, out)) {
        return false;
      }
    }
  }

  // Copies characters outside ASCII as long as they follow each other.
  template <bool kKeep>
  bool copy_characters(Byte*& o, Output& out) {
    do {
      const int64_t left = end_ - p_;
      const Byte c = p_[0];
      int width;
      if (left < 4) return false;  // what stands behind the last string of a line is at least }
      if (c < 0xE0) {
        if (c < 0xC2 || !follows(p_[1])) return false;
        width = 2;
      } else if (c < 0xF0) {
        if (!follows(p_[1]) || !follows(p_[2])) return false;
        if ((c == 0xE0 && p_[1] < 0xA0) || (c == 0xED && p_[1] > 0x9F)) return false;
        width = 3;
      } else {
        if (c > 0xF3 || !follows(p_[1]) || !follows(p_[2]) || !follows(p_[3])) return false;
        if (c == 0xF0 && p_[1] < 0x90) return false;
        width = 4;
      }
      if (kKeep) {
        memcpy(o, p_, 4);
        if (out.pairs[c << 8 | p_[1]] & out.kinds && !note(o, width, out)) return false;
        o += width;
      }
      p_ += width;
    } while (p_ != end_ && *p_ >= 0x80);
    return true;
  }

  static bool follows(Byte c) { return (c & 0xC0) == 0x80; }

  static bool note(const Byte* o, int width, Output& out) {
    uint32_t code = o[0] & (0x7F >> width);
    for (int i = 1; i < width; ++i) code = code << 6 | (o[i] & 0x3F);
    if (!(out.classes[code] & out.kinds)) return true;
    if (out.num_places == out.max_places) return false;
    out.places[out.num_places++] = o - out.text;
    return true;
  }

  bool read_hex(uint32_t* code) {
    if (end_ - p_ < 4) return false;
    *code = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = hex_digit(*p_++);
      if (digit < 0) return false;
      *code = *code << 4 | digit;
    }
    return true;
  }

  // Of a character by its number.
  bool read_escape(uint32_t* code) {
    if (!take("\\u", 2) || !read_hex(code)) return false;
    if (*code < 0xD800 || *code > 0xDFFF) return true;
    uint32_t low;
    if (*code > 0xDBFF || !take("\\u", 2) || !read_hex(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return false;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return true;
  }

  static bool put(uint32_t code, Byte*& o, Output& out) {
    if (code < 0x80) {
      *o++ = static_cast<Byte>(code);
      return true;
    }
    if (code > 0xFFFFF) return false;
    Byte* begin = o;
    if (code < 0x800) {
      *o++ = static_cast<Byte>(0xC0 | code >> 6);
    } else {
      if (code < 0x10000) {
        *o++ = static_cast<Byte>(0xE0 | code >> 12);
      } else {
        *o++ = static_cast<Byte>(0xF0 | code >> 18);
        *o++ = static_cast<Byte>(0x80 | (code >> 12 & 0x3F));
      }
      *o++ = static_cast<Byte>(0x80 | (code >> 6 & 0x3F));
    }
    *o++ = static_cast<Byte>(0x80 | (code & 0x3F));
    const bool may_be = out.pairs[begin[0] << 8 | begin[1]] & out.kinds;
    return !may_be || note(begin, static_cast<int>(o - begin), out);
  }

  const Byte* p_;
  const Byte* const end_;
  const Byte* const data_end_;
  const Byte* window_;  // where the bytes of `specials_` begin
  uint64_t specials_ = 0;
};

}  // namespace

extern "C" {

// Returns the number of documents, or -1 if a line is not plain. `text` has room for `size` + 64
// bytes, `ends` for `size` / 8 + 2 numbers: a line has 8 bytes or more, and with a marker of 8 no
// less than comes out of it.
int64_t json_lines_read(const Byte* data, int64_t size, const Byte* key, int64_t key_size,
                        const Byte* marker, int64_t marker_size, const Byte* classes,
                        const Byte* pairs, int kinds, Byte* text, int64_t* ends, int64_t* places,
                        int64_t max_places, int64_t* num_places) {
  Output out{text, 0, classes, pairs, static_cast<Byte>(kinds), places, 0, max_places};
  const Byte *p = data, *const end = data + size;
  int64_t documents = 0;
  while (p != end) {
    const void* newline = memchr(p, '\n', end - p);
    const Byte* line_end = newline ? static_cast<const Byte*>(newline) : end;
    if (!Line(p, line_end, end).read(key, key_size, out)) return -1;
    ends[documents++] = out.size;
    memcpy(text + out.size, marker, marker_size);
    out.size += marker_size;
    p = newline ? line_end + 1 : end;
  }
  *num_places = out.num_places;
  return documents;
}

}  // extern "C"

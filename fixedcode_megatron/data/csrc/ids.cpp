// An engine's ids of marked text to the ids of its documents: see data/engine_ids.py.

#include <cstdint>

namespace {

template <typename Id>
int64_t collect(const uint32_t* ids, int64_t size, uint32_t first_missing, uint32_t end,
                uint32_t cut, int64_t eod, Id* out, int64_t* lengths, uint8_t* missing,
                int64_t num_documents, int64_t* num_cuts) {
  constexpr int kChunk = 16;
  int64_t written = 0, begin = 0, document = 0, cuts = 0;
  int64_t i = 0;
  while (i < size) {
    if (i + kChunk <= size) {
      bool any = false;
      for (int j = 0; j < kChunk; ++j) {
        any |= ids[i + j] >= first_missing;
        out[written + j] = static_cast<Id>(ids[i + j]);  // no more than was read
      }
      if (!any) {
        written += kChunk;
        i += kChunk;
        continue;
      }
    }
    const int64_t stop = i + kChunk < size ? i + kChunk : size;
    for (; i < stop; ++i) {
      const uint32_t id = ids[i];
      if (id < first_missing) {
        out[written++] = static_cast<Id>(id);
      } else if (document == num_documents) {
        return -1;
      } else if (id == cut) {
        ++cuts;
      } else if (id == end) {
        if (eod >= 0 && written > begin) out[written++] = static_cast<Id>(eod);
        lengths[document++] = written - begin;
        begin = written;
      } else {
        missing[document] = 1;
      }
    }
  }
  *num_cuts = cuts;
  return document == num_documents && written == begin ? written : -1;
}

}  // namespace

extern "C" {

// Writes the ids below `first_missing` to `out`, of 2 or 4 bytes each, with `eod` (-1: nothing)
// behind each document that has one; the documents' `lengths`, and which of them have ids that are
// neither of these nor a `cut` or an `end`. Returns the number of ids; -1 if there are not
// `num_documents`, each with an end. `out` has room for `size` ids.
int64_t collect_ids(const uint32_t* ids, int64_t size, uint32_t first_missing, uint32_t end,
                    uint32_t cut, int64_t eod, int width, void* out, int64_t* lengths,
                    uint8_t* missing, int64_t num_documents, int64_t* num_cuts) {
  if (width == 2) {
    return collect(ids, size, first_missing, end, cut, eod, static_cast<uint16_t*>(out), lengths,
                   missing, num_documents, num_cuts);
  }
  return collect(ids, size, first_missing, end, cut, eod, static_cast<uint32_t*>(out), lengths,
                 missing, num_documents, num_cuts);
}

}  // extern "C"

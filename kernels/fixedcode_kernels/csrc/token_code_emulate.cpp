// Host build of the CUDA kernel's body, for tests: every block, warp and lane in turn.
#include "token_code_warp.h"

namespace {

template <int BYTES, bool AFFINE, int SHAPE>
void run(const fc_code& code, const fc_call& call, uint32_t warps) {
  for (uint32_t warp = 0; warp < warps; ++warp)
    for (uint32_t lane = 0; lane < 32; ++lane)
      fc_warp_body<BYTES, AFFINE, SHAPE>(code, call, warp, warps, lane);
}

template <int BYTES, bool AFFINE>
void run_shape(const fc_code& code, const fc_call& call, uint32_t warps) {
  switch (fc_choose_shape(code, call)) {
    case FC_TILE_16: return run<BYTES, AFFINE, FC_TILE_16>(code, call, warps);
    case FC_TILE: return run<BYTES, AFFINE, FC_TILE>(code, call, warps);
    case FC_INTERLEAVE: return run<BYTES, AFFINE, FC_INTERLEAVE>(code, call, warps);
    default: return run<BYTES, AFFINE, FC_ELEMENTWISE>(code, call, warps);
  }
}

}  // namespace

extern "C" void fc_emulate_fill(const fc_code* code, const void* ids, void* out, int64_t stride_b,
                                int64_t stride_s, int64_t seq_start, uint32_t batch, uint32_t rows,
                                uint32_t id_bytes, uint32_t warps) {
  const fc_call call = {ids, out, stride_b, stride_s, seq_start, batch, rows, id_bytes, 0};
  if (code->element_bytes == 2)
    code->affine ? run_shape<2, true>(*code, call, warps) : run_shape<2, false>(*code, call, warps);
  else
    code->affine ? run_shape<4, true>(*code, call, warps) : run_shape<4, false>(*code, call, warps);
}

extern "C" void fc_layout(uint32_t* sizes) {
  sizes[0] = sizeof(fc_code);
  sizes[1] = sizeof(fc_call);
}

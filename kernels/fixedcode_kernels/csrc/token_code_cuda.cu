// CUDA kernel and launcher with a C ABI: no torch headers, so nvcc alone builds it and it fits any
// torch. The code travels in the kernel's parameters (constant bank); the only load is the token id.
#include <cuda_runtime.h>

#include "token_code_warp.h"

constexpr int kThreads = 256;

template <int BYTES, bool AFFINE, int SHAPE>
__global__ void __launch_bounds__(kThreads)
    fc_kernel(const __grid_constant__ fc_code code, const __grid_constant__ fc_call call) {
  constexpr uint32_t kWarps = kThreads / 32;  // warps are counted: all threads may pass 2^32
  fc_warp_body<BYTES, AFFINE, SHAPE>(code, call, blockIdx.x * kWarps + threadIdx.x / 32,
                                     gridDim.x * kWarps, threadIdx.x % 32);
}

template <int BYTES, bool AFFINE>
static void launch_shape(const fc_code& code, const fc_call& call, int blocks, cudaStream_t s) {
  switch (fc_choose_shape(code, call)) {
    case FC_TILE_16: fc_kernel<BYTES, AFFINE, FC_TILE_16><<<blocks, kThreads, 0, s>>>(code, call); break;
    case FC_TILE: fc_kernel<BYTES, AFFINE, FC_TILE><<<blocks, kThreads, 0, s>>>(code, call); break;
    case FC_INTERLEAVE:
      fc_kernel<BYTES, AFFINE, FC_INTERLEAVE><<<blocks, kThreads, 0, s>>>(code, call);
      break;
    default: fc_kernel<BYTES, AFFINE, FC_ELEMENTWISE><<<blocks, kThreads, 0, s>>>(code, call);
  }
}

template <int BYTES>
static void launch(const fc_code& code, const fc_call& call, int blocks, cudaStream_t s) {
  if (code.affine) launch_shape<BYTES, true>(code, call, blocks, s);
  else launch_shape<BYTES, false>(code, call, blocks, s);
}

// Returns a cudaError_t. The device is set for this runtime library and put back, because the
// caller's current device may be another.
extern "C" int fc_cuda_fill(const fc_code* code, const void* ids, void* out, int64_t stride_b,
                            int64_t stride_s, int64_t seq_start, uint32_t batch, uint32_t rows,
                            uint32_t id_bytes, int device, void* stream) {
  if (rows == 0 || code->hidden == 0) return cudaSuccess;
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess && current != device) error = cudaSetDevice(device);
  if (error != cudaSuccess) return error;
  const fc_call call = {ids, out, stride_b, stride_s, seq_start, batch, rows, id_bytes, 0};
  const int blocks = (int)(((uint64_t)rows * 32 + kThreads - 1) / kThreads);
  if (code->element_bytes == 2) launch<2>(*code, call, blocks, (cudaStream_t)stream);
  else launch<4>(*code, call, blocks, (cudaStream_t)stream);
  error = cudaGetLastError();
  if (current != device) cudaSetDevice(current);
  return error;
}

extern "C" const char* fc_cuda_error(int error) {
  return cudaGetErrorString((cudaError_t)error);
}

#!/usr/bin/env python3
"""Compile the CUDA kernel into the cache folder (FIXEDCODE_KERNELS_CACHE); needs nvcc, no GPU."""

import sys

from fixedcode_kernels import build, cuda_kernel

if __name__ == "__main__":
    found = cuda_kernel.library()
    if isinstance(found, str):
        sys.exit(f"error: the CUDA kernel was not compiled: {found}")
    print(f"compiled into {build.cache_folder()}")

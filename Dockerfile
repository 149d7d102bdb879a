# syntax=docker/dockerfile:1
# NVIDIA's PyTorch image brings torch, Transformer Engine, apex and flash-attn, built for each other.
# Nothing here replaces them; the last build step fails if torch has changed.
#
#   docker build -t fixedcode .
#   docker run --gpus all --ipc=host --ulimit memlock=-1 fixedcode        report and two iterations
#   docker run --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD/data:/data" fixedcode \
#       torchrun examples/pretrain_fixedcode.sh --data-path /data/corpus_text_document ...
ARG BASE=nvcr.io/nvidia/pytorch:25.10-py3
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /opt/fixedcode
RUN python3 -c 'import torch; print(torch.__version__)' >/opt/torch-of-the-image \
    && chmod 1777 /opt/fixedcode

# The kernels are compiled now, for A100 (sm_80) and Hopper (sm_90a), so that no node needs a
# compiler and no first step waits for one.
ENV TORCH_CUDA_ARCH_LIST="8.0;9.0a" \
    FIXEDCODE_KERNELS_CACHE=/opt/fixedcode-kernels \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# Dependencies first, so that a change of the source does not install them again. The image's own
# packages are pinned as they are.
COPY constraints/container.txt ./constraints/
RUN pip freeze --all | grep -E '^[A-Za-z0-9_.-]+==' >/opt/packages-of-the-image.txt \
    && pip install --constraint /opt/packages-of-the-image.txt --requirement constraints/container.txt

COPY . .
RUN pip install --no-deps --editable . \
    && python3 tools/compile_kernels.py \
    && chmod -R a+rX /opt/fixedcode "${FIXEDCODE_KERNELS_CACHE}" \
    && python3 -c 'import torch; print(torch.__version__)' | diff /opt/torch-of-the-image -

# Every GPU of the host by default; one communication queue, as tensor parallelism overlaps best;
# faults of one rank end the others instead of leaving them in a collective.
ENV PET_NPROC_PER_NODE=auto \
    CUDA_DEVICE_MAX_CONNECTIONS=1 \
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1 \
    NCCL_DEBUG=WARN \
    OMP_NUM_THREADS=8 \
    HOME=/tmp

# Any user id may run it: nothing outside the work folder, /tmp and mounted volumes is written.
USER 1000
CMD ["bash", "tools/smoke.sh"]

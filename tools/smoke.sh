#!/usr/bin/env bash
# Reports what is installed and takes two iterations on whatever is here: all GPUs, or the CPUs.
# What `docker run IMAGE` does. SMOKE_DIR is where it writes [a fresh folder, deleted at the end].
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
[[ -x $python ]] || python=python3
folder=${SMOKE_DIR:-$(mktemp -d)}
[[ -n ${SMOKE_DIR:-} ]] || trap 'rm -rf "$folder"' EXIT

"$python" -W ignore -m fixedcode_megatron.env_report
echo
# The quickstart's model, on text that every Python brings along.
"$python" -W ignore -m torch.distributed.run --standalone \
    --nproc-per-node "${PET_NPROC_PER_NODE:-1}" examples/pretrain_fixedcode.sh \
    --config quickstart --train-iters 2 --eval-iters 1 --log-interval 1 --num-layers 2 \
    --micro-batch-size 1 --global-batch-size "${SMOKE_BATCH:-16}" \
    --data-path "$folder/data/corpus_text_document" --tokenizer-model "$folder/data/tokenizer" \
    --prepare-data python-library --save "$folder/run" --load "$folder/run"
echo "smoke: passed"

#!/usr/bin/env bash
# From the quickstart to a model of your own, its export and a comparison: the commands of
# docs/walk.md, one after the other. Run it with the environment of `make setup` active:
#
#   . .venv/bin/activate && bash examples/walk.sh
#
# TEXTS=FOLDER trains on your .txt files, CONFIG=FILE another model or budget. To walk again, remove
# runs/walk: nothing is overwritten.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${TEXTS:=runs/walk/texts}" "${CONFIG:=quickstart}" "${STOP_AT:=160}"

# 1. The quickstart
python tools/quickstart.py --config "$CONFIG"

# 2. Your own text
if [[ ! -d $TEXTS ]]; then
    mkdir -p "$TEXTS"
    for file in "$(python -c 'import os; print(os.path.dirname(os.__file__))')"/[a-z]*.py; do
        cp "$file" "$TEXTS/$(basename "$file" .py).txt"
    done
fi

# 3. A tokenizer of your own
python tools/train_tokenizer.py --input "$TEXTS" --vocab-size 8192 --output runs/walk/tokenizer

# 4. A dataset
python tools/preprocess_data.py --input "$TEXTS" --output-prefix runs/walk/my \
    --tokenizer-model runs/walk/tokenizer --append-eod
python tools/inspect_dataset.py runs/walk/my_text_document --verify

# 5. Training on four processes
train=(torchrun --standalone --nproc-per-node 4 examples/pretrain_fixedcode.sh
    --config "$CONFIG" --vocab-size 8192 --code-bits 16
    --data-path runs/walk/my_text_document --tokenizer-model runs/walk/tokenizer
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
    --save runs/walk/binary --load runs/walk/binary)
"${train[@]}" --exit-interval "$STOP_AT"

# 6. Going on
"${train[@]}"

# 7. Export and text
python tools/convert_checkpoint.py --from megatron --to hf --load runs/walk/binary --save runs/walk/hf
python tools/generate.py --load runs/walk/hf --prompt "def main(" --max-new-tokens 40

# 8. A comparison
cat >runs/walk/grid.yaml <<GRID
title: Table or code on my own text
folder: runs/walk/compare
config: $CONFIG
flags: >-
  --vocab-size 8192 --code-bits 16
  --data-path runs/walk/my_text_document --tokenizer-model runs/walk/tokenizer
axes:
  input_interface: [learned, binary]
GRID
python tools/compare_runs.py runs/walk/grid.yaml

#!/usr/bin/env bash
# Fine-tune a model on conversations: JSON lines, loss on the answers alone (docs/sft.md).
#
#   bash examples/sft.sh --pretrained-checkpoint runs/quickstart/binary --train-data-path a.jsonl
#   torchrun --nproc-per-node 8 examples/sft.sh --config BASE/config.yaml \
#       --pretrained-checkpoint BASE --train-data-path train.jsonl --valid-data-path valid.jsonl \
#       --train-iters 1500 --lr 2e-5      the base run's model, tokenizer and input interface
#   bash examples/sft.sh --config runs/sft/config.yaml --load runs/sft --skip-train \
#       --valid-data-path test.jsonl      perplexity of the reference answers
#
# Without --config: the preset quickstart_sft on CPUs, paper_b_1.7b_sft on GPUs. The same command
# again continues from the last checkpoint.
#
# This file is bash and Python at once, because torchrun starts its script with Python, whatever the
# script's name. Bash reads the next line as the command `:`, does nothing, and runs what follows,
# up to `exec`. To Python it opens a string that ends at the three quotes.
# shellcheck disable=SC2289
''':'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$here/../.venv/bin/python # what `make setup` made, where it is there
[[ -x $python ]] || python=python3
exec "$python" "$here/$(basename "${BASH_SOURCE[0]}")" "$@"
: <<'# end of the Python part' # for linters of bash, which read on
'''
import os
import sys
from pathlib import Path

# Read once, when CUDA starts: tensor-parallel communication overlaps with computation only so.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

import torch

from fixedcode_megatron.pretrain import main

FOLDER, MEASURED = "runs/sft", "runs/sft_measured"


def default_flags(given: set[str]) -> list[str]:
    """Return the flags that stand in front of the user's, which win."""
    flags = ["--sft"]
    if "--config" not in given:
        preset = "paper_b_1.7b_sft" if torch.cuda.is_available() else "quickstart_sft"
        flags += ["--config", str(Path(__file__).parent / "configs" / f"{preset}.yaml")]
    if "--skip-train" in given:
        return [*flags, "--run-dir", MEASURED]
    if not given & {"--save", "--load"}:
        if "--pretrained-checkpoint" not in given and "--print-config" not in given:
            print("error: --pretrained-checkpoint: missing; give the base run's --save folder")
            sys.exit(2)
        flags += ["--save", FOLDER, "--load", FOLDER]
    return [*flags, "--run-dir", "none"]  # that of --save, not the base run's


if __name__ == "__main__":
    given = {argument.split("=")[0] for argument in sys.argv[1:]}
    sys.exit(main(default_flags(given) + sys.argv[1:]))
# end of the Python part

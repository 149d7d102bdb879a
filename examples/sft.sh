#!/usr/bin/env bash
# Fine-tune a model on conversations: JSON lines, loss on the answers alone (docs/sft.md).
#
#   torchrun --nproc-per-node 8 examples/sft.sh --config BASE/config.yaml --config sft \
#       --pretrained-checkpoint BASE --train-data-path train.jsonl --valid-data-path valid.jsonl
#   bash examples/sft.sh --pretrained-checkpoint runs/quickstart/binary --lr 5e-4 \
#       --train-data-path train.jsonl     without --config: quickstart on CPUs, 1.7B on GPUs
#   bash examples/sft.sh --config runs/sft/config.yaml --load runs/sft --skip-train \
#       --valid-data-path test.jsonl      perplexity of the reference answers
#
# BASE is the folder of the base run, whose model, tokenizer and input interface are taken. The same
# command again continues from the last checkpoint.
#
# This file is bash and Python at once, because torchrun starts its script with Python, whatever the
# script's name. Bash reads the next line as the command `:`, does nothing, and runs what follows,
# up to `exec`. To Python it opens a string that ends at the three quotes.
# shellcheck disable=SC2289
''':'
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
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
        for name in ("paper_b_1.7b" if torch.cuda.is_available() else "quickstart", "sft"):
            flags += ["--config", str(Path(__file__).parent / "configs" / f"{name}.yaml")]
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

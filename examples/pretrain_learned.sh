#!/usr/bin/env bash
# Pre-train a model with Megatron's trainable embedding table: the baseline.
#
#   bash examples/pretrain_learned.sh                          quickstart on CPUs, 1.7B on GPUs
#   torchrun --nproc-per-node 8 examples/pretrain_learned.sh   eight GPUs
#   bash examples/pretrain_learned.sh --lr 3e-4 --train-iters 100     any flag, passed on
#
# The same command again continues from the last checkpoint. pretrain_fixedcode.sh is its twin.
#
# This file is bash and Python at once, because torchrun starts its script with Python, whatever the
# script's name. Bash reads the next line as the command `:`, does nothing, and runs what follows, up
# to `exec`. To Python it opens a string that ends at the three quotes.
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

INPUT_INTERFACE = "learned"
FOLDER = "runs/pretrain_learned"


def default_flags(given: set[str]) -> list[str]:
    """Return the flags that stand in front of the user's, which win."""
    flags = ["--input-interface", INPUT_INTERFACE]
    if "--config" not in given:
        preset = "paper_b_1.7b" if torch.cuda.is_available() else "quickstart"
        flags += ["--config", str(Path(__file__).parent / "configs" / f"{preset}.yaml")]
    if not given & {"--save", "--load"}:
        flags += ["--save", FOLDER, "--load", FOLDER]
    return flags


if __name__ == "__main__":
    given = {argument.split("=")[0] for argument in sys.argv[1:]}
    sys.exit(main(default_flags(given) + sys.argv[1:]))
# end of the Python part

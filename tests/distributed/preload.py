"""What the fork server imports once for all ranks of all cases."""

import warnings

warnings.filterwarnings("ignore")

from fixedcode_megatron import cpu_platform  # noqa: E402

cpu_platform.install()

import fixedcode_megatron.config  # noqa: E402
import fixedcode_megatron.pretrain  # noqa: E402
import fixedcode_megatron.training.step  # noqa: E402, F401

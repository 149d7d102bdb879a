#!/usr/bin/env python3
"""Write checkpoints as Hugging Face folders, and the other way round: see --help."""

import sys

from fixedcode_megatron.interop.convert_command import main

if __name__ == "__main__":
    sys.exit(main())

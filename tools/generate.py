#!/usr/bin/env python3
"""Continue prompts with a trained model: see --help."""

import sys

from fixedcode_megatron.interop.generate_command import main

if __name__ == "__main__":
    sys.exit(main())

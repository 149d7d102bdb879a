"""Configuration: one tree of dataclasses from which flags, presets and defaults are derived."""

from fixedcode_megatron.config.cli import parse_args
from fixedcode_megatron.config.problems import ConfigError, report
from fixedcode_megatron.config.tree import RunConfig

__all__ = ["ConfigError", "RunConfig", "parse_args", "report"]

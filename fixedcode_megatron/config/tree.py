"""The tree of all settings of a run, and the registry of every option in it."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

from fixedcode_megatron.config import megatron_fields as mf
from fixedcode_megatron.config.options import Option, option_of
from fixedcode_megatron.config.sections import (
    OUR_SECTIONS,
    CheckpointConfig,
    DataConfig,
    InputConfig,
    LoggingConfig,
    ModelConfig,
    RuntimeConfig,
    TrainingConfig,
)

ACTIONS = frozenset({"count_parameters", "print_config"})
"""Options that say what to do now; they are no part of a saved configuration."""


def _registry() -> dict[str, Option]:
    """Return every option by name; a name that occurs in several sections is one option."""
    found: list[Option] = []
    for section, cls in OUR_SECTIONS.items():
        hints = typing.get_type_hints(cls)
        found += [option_of(f, hints[f.name], section) for f in dataclasses.fields(cls)]
    found += mf.TRANSFORMER_OPTIONS + mf.DDP_OPTIONS + mf.OPTIMIZER_OPTIONS
    options: dict[str, Option] = {}
    for opt in found:
        if first := options.get(opt.name):
            opt = dataclasses.replace(first, sections=first.sections + opt.sections)
        options[opt.name] = opt
    return options


OPTIONS: dict[str, Option] = _registry()


@dataclass(kw_only=True)
class RunConfig:
    """All settings of a run. Read it anywhere; nothing changes it after `parse_args`.

    Attributes
    ----------
    given
        Where each name that is not at its default was set: ``flag`` or ``preset``.
    notices
        Lines to log once at start: flags that are accepted without effect, settings that were
        changed because others demand it.
    """

    input: InputConfig = field(default_factory=InputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    transformer: Any = field(default_factory=mf.TransformerFields)
    ddp: Any = field(default_factory=mf.DDPFields)
    optimizer: Any = field(default_factory=mf.OptimizerFields)
    given: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """Return the value of an option by its name alone."""
        return getattr(getattr(self, OPTIONS[name].sections[0]), name)

    def is_chosen(self, name: str) -> bool:
        """Whether somebody chose an option: by its flag, or in a file by another value than its
        default. The files that runs write hold every option.
        """
        source = self.given.get(name)
        return source == "flag" or (source is not None and self.get(name) != OPTIONS[name].default)

    def set(self, name: str, value: Any) -> None:
        """Set an option in every section that holds it."""
        for section in OPTIONS[name].sections:
            setattr(getattr(self, section), name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as a flat ``{name: value}`` of plain values, without `ACTIONS`."""
        return {name: self.get(name) for name in OPTIONS if name not in ACTIONS}

    def to_yaml(self) -> str:
        """Return the tree as a preset: flat names under a comment for each section."""
        from fixedcode_megatron.config.presets import dump

        return dump(self)


def default_config() -> RunConfig:
    """Return the tree with every default in every section."""
    cfg = RunConfig()
    for name, opt in OPTIONS.items():
        default = list(opt.default) if isinstance(opt.default, list) else opt.default
        cfg.set(name, default)
    return cfg

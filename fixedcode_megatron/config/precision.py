"""Named precision recipes: `--precision NAME` stands for Megatron's own flags and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fixedcode_megatron.config.aliases import usual_flag
from fixedcode_megatron.config.options import negation

if TYPE_CHECKING:
    from fixedcode_megatron.config.tree import RunConfig

_SIXTEEN_BIT: dict[str, Any] = {"bf16": True, "fp16": False}

RECIPES: dict[str, dict[str, Any]] = {
    "fp32": {"bf16": False, "fp16": False, "fp8": None},
    "bf16": {**_SIXTEEN_BIT, "fp8": None},
    # One scale a tensor, from the maxima of the last 1024 steps.
    "fp8_delayed": {
        **_SIXTEEN_BIT,
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
    },
    # One scale a tensor, from the tensor itself.
    "fp8_current": {**_SIXTEEN_BIT, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    # One scale for 128 values of an activation, for 128 x 128 of a weight; so fine that gradients
    # need no wider range and E4M3 serves them, too.
    "fp8_blockwise": {**_SIXTEEN_BIT, "fp8": "e4m3", "fp8_recipe": "blockwise"},
}


def expand(cfg: RunConfig, problems: list[str]) -> None:
    """Set the fields that `precision` stands for.

    A flag goes before a preset, whichever of the two says it in other words; a contradiction
    between two flags, or within a preset, is a problem.
    """
    name = cfg.model.precision
    if name is None:
        return
    source = cfg.given["precision"]
    for field, value in RECIPES[name].items():
        other = cfg.given.get(field)
        if other is None or (other, source) == ("preset", "flag"):
            cfg.set(field, value)
            cfg.given[field] = source
        elif cfg.get(field) != value:
            if (other, source) == ("flag", "preset"):
                cfg.set("precision", None)  # what the flags say has another name
                continue
            problems.append(
                f"--precision {name}: means {_spelled(field, value)}, but "
                f"{_spelled(field, cfg.get(field))} is given, too; drop one of them"
            )


def _spelled(field: str, value: Any) -> str:
    """A field's value as a flag."""
    flag = usual_flag(field)
    if value is True:
        return flag
    if value is False:
        return negation(field)
    return f"no {flag}" if value is None else f"{flag} {value}"

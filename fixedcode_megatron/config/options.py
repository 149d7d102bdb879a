"""One configuration value: its type, how it reads from a flag or from YAML, how it prints.

Every value of the tree is an `Option`. Options are made from dataclass fields, ours and
megatron-core's alike, by looking at the field's type.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml

MISSING_VALUE = object()
"""Stands for a flag given without its value, so that parsing goes on and reports all problems."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def negation(name: str) -> str:
    """Return the flag that turns a bool off: ``--no-x``, or ``--x`` for a name like ``no_x``."""
    return flag_of(name.removeprefix("no_")) if name.startswith("no_") else flag_of(f"no_{name}")


class Unsupported(Exception):
    """The type cannot come from a command line (a callable, a process group, a context manager)."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a type says of an option's value.

    Parameters
    ----------
    kind
        ``bool``, ``int``, ``float``, ``str``, or ``yaml`` (a number or a list in YAML's notation).
    container
        ``list`` or ``tuple`` if there may be several values: a flag takes them separated by
        blanks, YAML gives a list.
    or_scalar
        A list of one is handed on as that one value.
    optional
        ``None`` (written ``none`` or ``null``) is a value.
    choices
        The only values there are.
    """

    kind: str
    container: type | None = None
    or_scalar: bool = False
    optional: bool = False
    choices: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Option(Shape):
    """One value of the tree.

    Parameters
    ----------
    name
        Field name, in snake_case; the flag is the same with dashes.
    sections
        Attribute names of the sections of the tree that hold the value; the first one's default
        holds for all.
    auto
        ``None`` means "on where this machine can": resolved when megatron-core's object is built.
    """

    name: str
    default: Any = None
    help: str = ""
    sections: tuple[str, ...] = ()
    auto: bool = False

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands alone: ``--x`` or ``--no-x``."""
        return self.kind == "bool" and self.container is None


def option(default: Any, help: str, *, choices: tuple[str, ...] | None = None) -> Any:
    """Return a dataclass field of ours with its help text (and choices) in the metadata."""
    metadata = {"help": help, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def shape_of(annotation: Any) -> Shape:
    """Return the shape of a type's values, or raise `Unsupported`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _shape_of_union(typing.get_args(annotation))
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        kind = "int" if all(isinstance(a, int) for a in args) else "str"
        return Shape(kind=kind, choices=tuple(str(a) for a in args))
    if origin in (list, tuple):
        return dataclasses.replace(shape_of(args[0]), container=origin)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return Shape(kind="str", choices=tuple(annotation.__members__))
    if annotation is torch.dtype:
        return Shape(kind="str", choices=tuple(DTYPES))
    if annotation in (bool, int, float, str):
        return Shape(kind=annotation.__name__)
    raise Unsupported(str(annotation))


def _shape_of_union(members: tuple[Any, ...]) -> Shape:
    """Text, alone or in a list, goes before the union's other types; None makes it optional."""
    optional = type(None) in members
    members = tuple(m for m in members if m is not type(None))
    if len(members) == 1:
        return dataclasses.replace(shape_of(members[0]), optional=optional)
    listed = any(typing.get_origin(m) is list for m in members)
    if str in members:
        container = list if listed else None
        return Shape(kind="str", container=container, or_scalar=listed, optional=optional)
    if int in members or float in members:
        return Shape(kind="yaml", optional=optional)
    raise Unsupported(str(members))


def option_of(f: dataclasses.Field[Any], annotation: Any, section: str) -> Option:
    """Return the `Option` of a dataclass field, or raise `Unsupported`."""
    shape = shape_of(annotation)
    default = f.default if f.default is not dataclasses.MISSING else None
    if f.default_factory is not dataclasses.MISSING:
        default = f.default_factory()
    return Option(
        name=f.name,
        kind=shape.kind,
        container=shape.container,
        or_scalar=shape.or_scalar,
        optional=shape.optional or default is None,
        choices=f.metadata.get("choices") or shape.choices,
        default=default,
        help=f.metadata.get("help", ""),
        sections=(section,),
    )


def parse(option: Option, raw: Any) -> Any:
    """Turn what a flag or a preset gives into the option's value; ValueError says what would do.

    Strings go through the same reading wherever they come from, so ``lr: 1e-5``, which YAML takes
    for a string, is a number here.
    """
    if raw is MISSING_VALUE:
        raise ValueError("needs a value")
    if isinstance(raw, list) and len(raw) == 1 and raw[0] in ("none", "null"):
        raw = raw[0]
    if raw is None or (isinstance(raw, str) and raw.lower() in ("none", "null")):
        # `none` is a choice of its own for some options; YAML's null never is.
        if option.choices and isinstance(raw, str) and raw in option.choices:
            return raw
        if option.optional:
            return None
    if option.container is not None:
        items = raw if isinstance(raw, (list, tuple)) else str(raw).split()
        values = [_parse_one(option, item) for item in items]
        return values[0] if option.or_scalar and len(values) == 1 else option.container(values)
    if isinstance(raw, (list, tuple)) and option.kind != "yaml":
        raise ValueError(f"takes one value, found {len(raw)}: {' '.join(map(str, raw))}")
    return _parse_one(option, raw)


def _parse_one(option: Option, raw: Any) -> Any:
    if option.kind == "bool":
        return _parse_bool(raw)
    if option.kind == "yaml":
        return yaml.safe_load(raw) if isinstance(raw, str) else raw
    if option.kind == "int":
        value: Any = _parse_int(raw)
    elif option.kind == "float":
        value = _parse_float(raw)
    else:
        value = _parse_str(raw)
    if option.choices and str(value) not in option.choices:
        raise ValueError(f"must be one of {', '.join(option.choices)}; found {value!r}")
    return value


def _parse_bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if str(raw).lower() in ("true", "false"):
        return str(raw).lower() == "true"
    raise ValueError(
        f"is on or off (true or false in YAML) and takes no other value; found {raw!r}"
    )


def _parse_int(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    try:
        return int(raw, 0)  # 12, 0x1F, 1_000_000
    except (TypeError, ValueError):
        pass
    try:
        return int(raw, 10)  # 007
    except (TypeError, ValueError):
        raise ValueError(f"must be a whole number, found {raw!r}") from None


def _parse_float(raw: Any) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(raw)
    except (TypeError, ValueError):
        raise ValueError(f"must be a number, found {raw!r}") from None


def _parse_str(raw: Any) -> str:
    if isinstance(raw, (str, int, float)) and not isinstance(raw, bool):
        return str(raw)
    raise ValueError(f"must be text, found {raw!r}")

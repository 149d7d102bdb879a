"""Conversations for supervised fine-tuning, from JSON lines of three common forms.

- `{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}`
- `{"prompt": "...", "response": "..."}` (or `completion` in place of `response`)
- `{"instruction": "...", "input": "...", "output": "..."}` (`input` may be empty or missing)

Each line is one conversation. What the assistant says is an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from fixedcode_megatron.data.documents import BOM
from fixedcode_megatron.data.streams import chunks
from fixedcode_megatron.errors import UserError

ROLES = ("system", "user", "assistant", "tool")
_FORMS = "messages, prompt and response, or instruction and output"


@dataclass(frozen=True)
class Message:
    """What one side says; `role` is one of `ROLES`."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """The messages of a line, and where it stands (`FILE:LINE`, for error messages)."""

    messages: tuple[Message, ...]
    where: str


def read_conversations(path: str | Path) -> list[Conversation]:
    """Read a file of JSON lines, compressed or not; blank lines are passed over.

    Raises
    ------
    UserError
        If the file cannot be read or holds none, or naming file and line, if a line is no
        conversation.
    """
    found = []
    for number, line in enumerate(_lines(Path(path)), start=1):
        if line.strip():
            where = f"{path}:{number}"
            found.append(Conversation(_messages(line, where), where))
    if not found:
        raise UserError(f"{path} holds no conversation: give a file of JSON lines, one on each")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    rest = b""
    first = True
    for data, _ in chunks(path):
        if first:
            data, first = data.removeprefix(BOM), False
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _messages(line: bytes, where: str) -> tuple[Message, ...]:
    try:
        record = orjson.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not one JSON object a line ({error})") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: a JSON object is needed, found {type(record).__name__}")
    if "messages" in record:
        return _turns(record["messages"], where)
    if "prompt" in record and ("response" in record or "completion" in record):
        answer = "response" if "response" in record else "completion"
        return _pair(_text(record, "prompt", where), _text(record, answer, where))
    if "instruction" in record and "output" in record:
        question = _text(record, "instruction", where)
        if record.get("input"):
            question = f"{question}\n\n{_text(record, 'input', where)}"
        return _pair(question, _text(record, "output", where))
    keys = ", ".join(map(repr, list(record)[:8])) or "none"
    raise UserError(f"{where}: a conversation has the keys {_FORMS}; found {keys}")


def _pair(question: str, answer: str) -> tuple[Message, ...]:
    return Message("user", question), Message("assistant", answer)


def _turns(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise UserError(f"{where}: `messages` must be a list of objects, found {value!r:.60}")
    turns = []
    for turn in value:
        role = turn.get("role")
        if role not in ROLES:
            raise UserError(f"{where}: a message's role is {role!r}; use {', '.join(ROLES)}")
        turns.append(Message(role, _text(turn, "content", where)))
    return tuple(turns)


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise UserError(f"{where}: `{key}` must be a text, found {value!r:.60}")
    return value

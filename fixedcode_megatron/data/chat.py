"""How a conversation becomes text: the tokenizer's own chat template, or a simple default.

Either gives a conversation as spans, each the prompt's or an answer's. Spans are tokenized one by
one, as generation will do it: the prompt first, then what the model says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fixedcode_megatron.data.conversations import Conversation, Message
from fixedcode_megatron.errors import UserError

PROMPT_FORMATS = ("auto", "default", "plain", "identity")
_TITLES = {"user": "User", "assistant": "Assistant", "tool": "Tool"}


@dataclass(frozen=True)
class Span:
    """A piece of a conversation.

    Attributes
    ----------
    is_answer
        Whether the assistant says it, so that it counts in the loss.
    ends
        Whether the end-of-document token follows, as a part of the answer.
    """

    text: str
    is_answer: bool
    ends: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """A way to write conversations.

    Attributes
    ----------
    name
        What it is, for the log.
    spans
        From a conversation to its spans, up to its last answer.
    has_special_tokens
        Whether the text spells special tokens.
    """

    name: str
    spans: Callable[[Conversation], list[Span]]
    has_special_tokens: bool = False


def chat_format(wanted: str, tokenizer_model: str | None) -> ChatFormat:
    """The format of `--sft-tokenizer-prompt-format`.

    Parameters
    ----------
    wanted
        `default`: the tokenizer's chat template; `plain`: roles as titles, answers end with the
        end-of-document token; `identity`: contents alone, one after the other, answers end so;
        `auto`: the tokenizer's template if it has one, else `plain`.
    tokenizer_model
        Folder or file of the tokenizer, whose template stands beside it.

    Raises
    ------
    UserError
        If a template is asked for and there is none, or it cannot be read.
    """
    if wanted in ("auto", "default"):
        folder = None if tokenizer_model is None else Path(tokenizer_model)
        if folder is not None and folder.is_file():
            folder = folder.parent
        template, special_tokens = _template(folder)
        if template is not None:
            spans = _template_spans(template, special_tokens)
            name = f"the chat template of {folder} has it"
            return ChatFormat(name, spans, has_special_tokens=True)
        if wanted == "default":
            raise UserError(
                f"--sft-tokenizer-prompt-format default: {folder or 'the tokenizer'} has no chat "
                "template (chat_template.jinja, or chat_template in tokenizer_config.json); use "
                "plain"
            )
    if wanted == "identity":
        return ChatFormat("identity", partial(_spans, prompt=lambda message: message.content))
    return ChatFormat("plain", partial(_spans, prompt=_titled, opening="Assistant:\n"))


def _titled(message: Message) -> str:
    if message.role == "system":
        return f"{message.content}\n\n"
    return f"{_TITLES[message.role]}:\n{message.content}\n\n"


def _spans(
    conversation: Conversation, *, prompt: Callable[[Message], str], opening: str = ""
) -> list[Span]:
    """Spans of a format that writes each message by itself, and `opening` before an answer."""
    spans, text = [], ""
    for message in conversation.messages:
        if message.role != "assistant":
            text += prompt(message)
            continue
        spans += [Span(text + opening, False), Span(message.content, True, ends=True)]
        text = ""
    return spans


def _template(folder: Path | None) -> tuple[str | None, dict[str, str]]:
    """The chat template of a tokenizer's folder, and the special tokens that it may name."""
    if folder is None:
        return None, {}
    config: dict[str, Any] = {}
    path = folder / "tokenizer_config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            tokens = {
                name: value["content"] if isinstance(value, dict) else value
                for name, value in config.items()
                if name.endswith("_token") and isinstance(value, str | dict)
            }
        except (ValueError, AttributeError, KeyError) as error:
            raise UserError(f"{path}: not a tokenizer's configuration ({error!r})") from error
    else:
        tokens = {}
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text(encoding="utf-8")
    return template, tokens


def _template_spans(
    template: str, special_tokens: Mapping[str, str]
) -> Callable[[Conversation], list[Span]]:
    """Spans of a Jinja template: what it adds to the text for each answer is that answer."""
    compiled = _compiled(template)

    def text(messages: Sequence[Message], where: str, *, asks: bool) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return compiled.render(messages=turns, add_generation_prompt=asks, **special_tokens)
        except Exception as error:  # a template can do anything
            raise UserError(f"{where}: the chat template fails: {error}") from error

    def spans(conversation: Conversation) -> list[Span]:
        messages = conversation.messages
        found: list[Span] = []
        so_far = ""
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            prompt = text(messages[:place], conversation.where, asks=True)
            whole = text(messages[: place + 1], conversation.where, asks=False)
            if not (prompt.startswith(so_far) and whole.startswith(prompt)):
                raise UserError(
                    f"{conversation.where}: the chat template writes earlier messages another way "
                    "once an answer follows, so that prompt and answer cannot be told apart; use "
                    "--sft-tokenizer-prompt-format plain, or simplify the template"
                )
            found += [Span(prompt[len(so_far) :], False), Span(whole[len(prompt) :], True)]
            so_far = whole
        return found

    return spans


def _compiled(template: str) -> Any:
    """A template in the environment that transformers gives it.

    But for `strftime_now`: a run that goes on tomorrow reads what it reads today.
    """
    try:
        import jinja2
        import jinja2.sandbox
    except ImportError as error:
        raise UserError(
            "--sft-tokenizer-prompt-format: chat templates need the package jinja2 (pip install "
            "jinja2); plain does without"
        ) from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_generation_tag(), "jinja2.ext.loopcontrols"],
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise UserError(f"the tokenizer's chat template is not valid: {error}") from error


def _generation_tag() -> Any:
    """transformers' mark around answers, `{% generation %}`: read, and not needed here."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - declared by jinja2

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return Generation

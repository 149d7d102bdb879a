"""Split documents into sentences: by a few rules, or by NLTK's trained splitter."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from fixedcode_megatron.errors import UserError

SPLITTERS = ("rules", "nltk")
# A mark, closing quotes and brackets, space, then what may begin a sentence; or a mark of Chinese
# and Japanese, which no space follows.
_BOUNDARY = re.compile(
    r"""(?:[.!?…]+["'”’»)\]]*(?=\s+["'“‘«(\[¿¡]*[\w])|[。！？]+["”’」』）]*)\s*""", re.UNICODE
)
_ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|vs|etc|e\.g|i\.e|cf|al|Fig|fig|No|no"""
    r"""|Vol|vol|pp|Inc|Ltd|Co|Gen|Col|Sen|Rep|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)\.$"""
)


def make_splitter(
    name: str, language: str, *, keep_newlines: bool = False
) -> Callable[[str], list[str]]:
    """A function from a document to its sentences. Line breaks alone end no sentence.

    Parameters
    ----------
    keep_newlines
        White space between two sentences, line breaks above all, stays at the end of the first;
        otherwise it belongs to neither.

    Raises
    ------
    UserError
        If `name` is "nltk" and the library or its data for `language` are missing.
    """
    split = split_by_rules if name == "rules" else _punkt(name, language)
    return (lambda text: _with_spaces(text, split(text))) if keep_newlines else split


def _with_spaces(text: str, sentences: list[str]) -> list[str]:
    begins, at = [], 0
    for sentence in sentences:
        begins.append(text.index(sentence, at))
        at = begins[-1] + len(sentence)
    return [text[a:b] for a, b in pairwise([*begins, at])] if sentences else []


def _punkt(name: str, language: str) -> Callable[[str], list[str]]:
    if name != "nltk":
        raise UserError(f"--sentence-splitter {name} is unknown: give rules or nltk")
    try:
        from nltk.tokenize import PunktTokenizer
    except ImportError as error:
        raise UserError(
            "--sentence-splitter nltk needs the nltk library (3.9 or newer): pip install nltk, or "
            "give --sentence-splitter rules"
        ) from error
    try:
        punkt = PunktTokenizer(language)
    except LookupError as error:
        raise UserError(
            f"--sentence-splitter nltk: the resource punkt_tab for --lang {language} is not "
            "installed: python -m nltk.downloader punkt_tab, or give --sentence-splitter rules"
        ) from error
    return punkt.tokenize


def split_by_rules(text: str) -> list[str]:
    """Sentences end at . ! ? … before a word in upper case, a digit or a quote, and at 。！？.

    Initials and common English abbreviations do not end one.
    """
    sentences = []
    begin = 0
    for match in _BOUNDARY.finditer(text):
        sentence = text[begin : match.end()].strip()
        following = text[match.end() : match.end() + 8].lstrip("\"'“‘«([¿¡")
        if following[:1].islower() or _ABBREVIATION.search(sentence[-12:]):
            continue
        if sentence:
            sentences.append(sentence)
        begin = match.end()
    rest = text[begin:].strip()
    return [*sentences, rest] if rest else sentences

"""Tokenizers of the `tokenizers` library: a `tokenizer.json`, or GPT-2's vocabulary and merges."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from fixedcode_megatron.data.tokenizers import Tokenizer
from fixedcode_megatron.errors import UserError

# Spellings of an end-of-document token, tried in this order where no tokenizer_config.json says.
EOD_SPELLINGS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<EOS>")


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`, or a folder that holds one, read by the `tokenizers` library.

    Parameters
    ----------
    model
        The file or folder. A `tokenizer_config.json` beside it names the end-of-document token
        (`eos_token`); without one the first of `EOD_SPELLINGS` in the vocabulary is taken.
    parse_special_tokens
        Spellings of special tokens inside a text become those tokens.

    Attributes
    ----------
    path
        The file.
    source
        The tokenizer as the content of a `tokenizer.json`.

    Raises
    ------
    UserError
        If there is no such file, or it is no tokenizer.json; what only the library notices, when
        a text is first encoded.
    """

    def __init__(self, model: str, *, parse_special_tokens: bool = False) -> None:
        path = Path(model)
        if path.is_dir():
            path = path / "tokenizer.json"
            if not path.is_file():
                raise UserError(f"--tokenizer-model {model}: the folder holds no tokenizer.json")
        if not path.is_file():
            raise UserError(
                f"--tokenizer-model {model}: no such file; give a tokenizer.json or its folder"
            )
        content = path.read_bytes()
        self.path, self.source = path, content
        self._parse_special_tokens = parse_special_tokens
        self.name = f"tokenizer {path}"
        self.eod_id = self._find_eod(self._read_vocabulary())
        digest = hashlib.sha256(content)
        digest.update(b"eod %d" % (-1 if self.eod_id is None else self.eod_id))
        digest.update(b"special" * parse_special_tokens)
        self.fingerprint = digest.hexdigest()

    def _read_vocabulary(self) -> Callable[[str], int | None]:
        """What the source says without the library, which takes five times as long to read it.

        Returns the id of a spelling; the vocabulary itself is not kept.
        """
        try:
            tree = orjson.loads(self.source)
            vocabulary, added = tree["model"]["vocab"], tree.get("added_tokens") or []
            if isinstance(vocabulary, list):  # pieces and their scores
                vocabulary = {piece[0]: i for i, piece in enumerate(vocabulary)}
            ids = {token["content"]: token["id"] for token in added}
            self.vocab_size = max((*vocabulary.values(), *ids.values())) + 1
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise UserError(
                f"--tokenizer-model {self.path}: not a tokenizer.json ({error!r})"
            ) from error
        self.added_spellings = list(ids)
        self._tree = tree
        return lambda spelling: vocabulary.get(spelling, ids.get(spelling))

    @functools.cached_property
    def _inner(self) -> Any:
        """The library's tokenizer, read when it is first needed."""
        import tokenizers

        try:
            inner = tokenizers.Tokenizer.from_str(self.source.decode("utf-8"))
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(
                f"--tokenizer-model {self.path}: not a tokenizer.json ({error})"
            ) from error
        return self._set_up(inner)

    def _set_up(self, inner: Any) -> Any:
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = not self._parse_special_tokens  # "as text", oddly
        return inner

    def _find_eod(self, id_of: Callable[[str], int | None]) -> int | None:
        """Id of the end-of-document token: the config beside the file, else the usual spellings."""
        config = self.path.with_name("tokenizer_config.json")
        if config.is_file():
            try:
                token = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
            except (ValueError, AttributeError) as error:
                raise UserError(f"{config} is not a JSON object ({error})") from error
            if isinstance(token, dict):
                token = token.get("content")
            if token is not None:
                found = id_of(token)
                if found is None:
                    raise UserError(
                        f"{config}: eos_token {token!r} is not in the vocabulary of {self.path}"
                    )
                return found
        for spelling in EOD_SPELLINGS:
            found = id_of(spelling)
            if found is not None:
                return found
        return None

    def definition(self) -> dict[str, Any] | None:
        tree, self._tree = self._tree or orjson.loads(self.source), None  # the caller changes it
        tree.update(padding=None, truncation=None, post_processor=None)
        added = tree.get("added_tokens") or []
        special = self._parse_special_tokens
        tree["added_tokens"] = [token for token in added if special or not token["special"]]
        return tree

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)


class GPT2BPETokenizer(HuggingFaceTokenizer):
    """GPT-2's byte-level BPE from its `vocab.json` and `merges.txt`."""

    def __init__(
        self, vocab_file: str, merge_file: str, *, parse_special_tokens: bool = False
    ) -> None:
        import tokenizers

        for flag, path in (("--vocab-file", vocab_file), ("--merge-file", merge_file)):
            if not Path(path).is_file():
                raise UserError(f"{flag} {path}: no such file")
        try:
            model = tokenizers.models.BPE.from_file(vocab_file, merge_file)
        except Exception as error:
            raise UserError(
                f"--vocab-file {vocab_file}, --merge-file {merge_file}: {error}"
            ) from error
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        if parse_special_tokens and inner.token_to_id(EOD_SPELLINGS[0]) is not None:
            inner.add_special_tokens([EOD_SPELLINGS[0]])
        self.path, self.source = Path(vocab_file), inner.to_str().encode()
        self._parse_special_tokens = parse_special_tokens
        self._inner = self._set_up(inner)
        self.name = f"tokenizer {vocab_file}"
        self.eod_id = self._read_vocabulary()(EOD_SPELLINGS[0])
        digest = hashlib.sha256(Path(vocab_file).read_bytes())
        digest.update(Path(merge_file).read_bytes())
        digest.update(b"special" * parse_special_tokens)
        self.fingerprint = digest.hexdigest()

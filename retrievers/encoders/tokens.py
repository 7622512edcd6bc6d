"""Tokenizers of checkpoints, and the token ids of texts."""

import hashlib
import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from foundation.arrays import Int32Array, Int64Array
from foundation.errors import BenchError, first_line
from foundation.records import read_object
from retrievers.encoders.protocol import Segments, join
from retrievers.models.card import Recipe, TruncationSide
from retrievers.models.checkpoint import Checkpoint

# Fixed texts, one per line, that reveal a changed model, tokenizer or server, and calibrate int8.
PROBE_FILE = Path(__file__).with_name("probe.txt")
TOKENIZER_FILE = "tokenizer.json"
CLASS_HINT = (
    'Write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json, or install the '
    "version of transformers that the model was made with."
)
# Options of normalizers and pre-tokenizers that tokenizer_config.json may state.
TOKENIZER_OPTIONS = (
    *("lowercase", "strip_accents", "handle_chinese_chars"),
    *("add_prefix_space", "prepend_scheme"),
)


def probe_texts() -> list[str]:
    """Return the 64 texts of `PROBE_FILE`."""
    return PROBE_FILE.read_text(encoding="utf-8").splitlines()


def load_tokenizer(
    checkpoint: Checkpoint, truncation_side: TruncationSide = "right", lower_case: bool = False
) -> Any:
    """Load the fast tokenizer of a checkpoint.

    Args:
        checkpoint: files of the model.
        truncation_side: side on which long texts are truncated.
        lower_case: lower-case text before all other steps, except special tokens, as
            sentence-transformers does if its folder states so.

    Raises:
        BenchError: it cannot be loaded, has only a slow form, or is not the one in
            ``tokenizer.json``, which depends on the version of transformers.
    """
    try:
        tokenizer = _build_tokenizer(checkpoint.folder, lower_case)
    except BenchError:
        raise
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # a panic of Rust is no Exception
            raise
        has_file = (checkpoint.folder / TOKENIZER_FILE).is_file()
        hint = CLASS_HINT if has_file else "Save it again next to the weights."
        problem = f"the tokenizer in {checkpoint.folder} cannot be loaded: {first_line(error)}"
        raise BenchError(problem, hint) from error
    tokenizer.padding_side, tokenizer.truncation_side = "right", truncation_side
    return tokenizer


def _build_tokenizer(folder: Path, lower_case: bool) -> Any:
    """Build the tokenizer in ``folder`` by transformers, and compare it with its file."""
    from tokenizers import normalizers
    from transformers import AutoTokenizer

    options = {"use_fast": True, "trust_remote_code": False, "local_files_only": True}
    load = partial(AutoTokenizer.from_pretrained, str(folder), **options)
    tokenizer = load()
    stated = _read_special_tokens(folder)
    if stated["add_eos_token"] and tokenizer("a")["input_ids"][-1] != tokenizer.eos_token_id:
        tokenizer = load(**stated)  # transformers 5 ignores the file
    tokenizer("a", "b")  # a missing special token is only missed when it is needed
    if not tokenizer.is_fast:
        raise BenchError(f"the tokenizer in {folder} has no fast form")
    stored = _read_stored_tokenizer(tokenizer, folder)
    for backend in (tokenizer.backend_tokenizer, stored):
        if lower_case and backend:
            steps = [backend.normalizer] if backend.normalizer else []
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    if stored:
        _compare_tokenizers(tokenizer, stored, folder)
    return tokenizer


def _read_special_tokens(folder: Path) -> dict[str, bool]:
    """Return whether ``tokenizer_config.json`` states that texts begin and end with a token."""
    path = folder / "tokenizer_config.json"
    config = read_object(path, "save the tokenizer again") if path.is_file() else {}
    defaults = {"add_bos_token": True, "add_eos_token": False}
    return {name: bool(config.get(name, default)) for name, default in defaults.items()}


def _read_stored_tokenizer(tokenizer: Any, folder: Path) -> Any:
    """Return the tokenizer in ``tokenizer.json``, or None without this file.

    Options that transformers reads from ``tokenizer_config.json`` are taken from the loaded one.
    """
    from tokenizers import Tokenizer

    if not (folder / TOKENIZER_FILE).is_file():
        return None
    loaded, stored = tokenizer.backend_tokenizer, Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    stored.no_truncation()
    stored.no_padding()
    for part in ("normalizer", "pre_tokenizer"):
        used, step = getattr(loaded, part), getattr(stored, part)
        if step is not None and type(step) is type(used):
            for option in filter(partial(hasattr, step), TOKENIZER_OPTIONS):
                setattr(step, option, getattr(used, option))
            setattr(stored, part, step)
    return stored


def _compare_tokenizers(tokenizer: Any, stored: Any, folder: Path) -> None:
    """Raise if a loaded tokenizer gives other ids for fixed texts than ``tokenizer.json``."""
    import transformers

    loaded, texts = tokenizer.backend_tokenizer, probe_texts()
    found = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    stored.encode_special_tokens = loaded.encode_special_tokens
    encoded = stored.encode_batch_fast(texts, add_special_tokens=False)
    sizes = [each.get_vocab_size(with_added_tokens=False) for each in (loaded, stored)]
    differing = sum(a != b.ids for a, b in zip(found, encoded, strict=True))
    if differing or sizes[0] != sizes[1]:
        kinds = [type(each.model).__name__ for each in (loaded, stored)]
        raise BenchError(
            f"{folder}: transformers {transformers.__version__} loads a {type(tokenizer).__name__} "
            f"({kinds[0]}, {sizes[0]:,} tokens), and {TOKENIZER_FILE} is a {kinds[1]} with "
            f"{sizes[1]:,} tokens: {differing} of {len(texts)} fixed texts have other token ids",
            CLASS_HINT,
        )


@dataclass(frozen=True, eq=False)
class Tokens:
    """Token ids of ``n`` texts, one text after another.

    Attributes:
        ids: int32 ``(T,)``, ids of all texts.
        lengths: int64 ``(n,)``, number of tokens of each text.
        types: int32 ``(T,)``, token types; None if the model does not read them.
    """

    ids: Int32Array
    lengths: Int64Array
    types: Int32Array | None = None

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> "Tokens":
        """Return the tokens of texts from the ``ids``, and optionally ``types``, of each."""
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        flat, *typed = (
            np.fromiter(chain.from_iterable(values), np.int32, int(lengths.sum()))
            for values in (ids, types)
            if values is not None
        )
        return cls(flat, lengths, *typed)

    @classmethod
    def join(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """Return the texts of one or more ``parts``, one part after another."""
        types = [part.types for part in parts if part.types is not None]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate(types) if types else None,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Int64Array:
        """Position in ``ids`` of each text's first token, int64 ``(n,)``."""
        starts: Int64Array = self.lengths.cumsum() - self.lengths
        return starts

    def take(self, rows: Int64Array) -> "Tokens":
        """Return the texts at ``rows``, in that order."""
        lengths = self.lengths[rows]
        ends = lengths.cumsum()
        places = np.repeat(self.starts[rows] - (ends - lengths), lengths)
        places += np.arange(len(places))
        return Tokens(self.ids[places], lengths, None if self.types is None else self.types[places])

    def filled(self, token: int) -> "Tokens":
        """Return a copy in which each empty text has the one token ``token``."""
        if self.lengths.all():
            return self
        places = self.starts[self.lengths == 0]
        types = None if self.types is None else np.insert(self.types, places, 0)
        return Tokens(np.insert(self.ids, places, token), np.maximum(1, self.lengths), types)


class TextTokenizer:
    """Tokenizer of texts and pairs of texts, with truncation. Threads can share it.

    Args:
        tokenizer: a ``tokenizers.Tokenizer`` that is not used elsewhere.
        side: side on which long texts are truncated.
        typed: whether to return token types.
        split_special_tokens: whether to read special tokens in a text as ordinary text.
    """

    def __init__(
        self,
        tokenizer: Any,
        side: TruncationSide,
        typed: bool,
        *,
        split_special_tokens: bool = False,
    ) -> None:
        self.tokenizer, self.side, self.typed = tokenizer, side, typed
        self.split_special_tokens = split_special_tokens
        self._lock = threading.Lock()  # truncation is a state of the tokenizer
        tokenizer.encode_special_tokens = split_special_tokens
        tokenizer.no_padding()

    @classmethod
    def of(cls, tokenizer: Any, network: Any, recipe: Recipe) -> "TextTokenizer":
        """Wrap a fast tokenizer, with token types if it gives them and ``network`` reads them."""
        reads = inspect.signature(network.forward).parameters
        typed = "token_type_ids" in reads and "token_type_ids" in tokenizer.model_input_names
        return cls(
            tokenizer.backend_tokenizer,
            recipe.truncation_side,
            recipe.segment_ids and typed,
            split_special_tokens=bool(getattr(tokenizer, "split_special_tokens", False)),
        )

    def settings(self) -> dict[str, Any]:
        """Return the arguments as plain values. Parts that are written in Python raise."""
        return {
            "tokenizer": self.tokenizer.to_str(),
            "side": self.side,
            "typed": self.typed,
            "split_special_tokens": self.split_special_tokens,
        }

    def special_tokens(self, paired: bool) -> int:
        """Count the special tokens around a text, or around a pair if ``paired``."""
        return int(self.tokenizer.num_special_tokens_to_add(paired))

    def unknown_share(self, segments: Sequence[Segments], unknown: int | None) -> float:
        """Return the share of the tokens of texts that are the token ``unknown``, 0 to 1."""
        texts = [first if second is None else (first, second) for first, second in segments]
        with self._lock:
            self.tokenizer.no_truncation()
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = Tokens.of([encoding.ids for encoding in encodings]).ids
        return float((ids == unknown).mean()) if len(ids) and unknown is not None else 0.0

    def __call__(self, segments: Sequence[Segments], max_tokens: int | None) -> Tokens:
        """Return the token ids of texts and pairs, special tokens included.

        ``max_tokens`` includes special tokens and must exceed them; None does not truncate. The
        longest segment of a pair is truncated first.
        """
        texts = [first if second is None else (first, second) for first, second in segments]
        with self._lock:
            if max_tokens is None:
                self.tokenizer.no_truncation()
            else:
                self.tokenizer.enable_truncation(max_tokens, direction=self.side)
            encodings = self.tokenizer.encode_batch_fast(texts)
        types = [encoding.type_ids for encoding in encodings] if self.typed else None
        return Tokens.of([encoding.ids for encoding in encodings], types)


def hash_tokens(checkpoint: Checkpoint, side: Recipe) -> str:
    """Return the sha256 of the token ids of fixed texts, of which each second has a title.

    No weights are loaded. ``side`` is one side of a recipe, with its prompt, title rule and length.
    """
    tokenizer = load_tokenizer(checkpoint, side.truncation_side, side.lower_case)
    split = bool(getattr(tokenizer, "split_special_tokens", False))
    backend, cut = tokenizer.backend_tokenizer, side.truncation_side
    texts = TextTokenizer(backend, cut, typed=False, split_special_tokens=split)
    prompt, separator = side.prompts.query or side.prompts.document, tokenizer.sep_token or ""
    probe = probe_texts()
    titles = ["" if number % 2 else text[:40] for number, text in enumerate(reversed(probe))]
    segments = [
        join(side.title_join, prompt, title, text, separator)
        for title, text in zip(titles, probe, strict=True)
    ]
    fewest = texts.special_tokens(paired=True) + 1
    tokens = texts(segments, max(side.max_tokens, fewest))
    content = tokens.lengths.astype("<i8").tobytes() + tokens.ids.astype("<i4").tobytes()
    return hashlib.sha256(content).hexdigest()

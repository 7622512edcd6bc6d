"""A model's folder: what its files state about its use, as data.

``config.json`` and the tokenizer's files state the architecture and lengths. ``modules.json`` of a
sentence-transformers folder names Python classes. They are not imported: only the types of modules
in `retrievers.models.st_files` are understood, by name.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from os.path import lexists  # a folder, or a link to nothing, is not read as if it were absent
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple, Self, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from foundation.errors import BenchError
from foundation.files import resolve_inside, sha256_of_file
from foundation.machine import library_version
from foundation.records import decode_json, decode_object, read_content, read_json, read_object
from retrievers.models import st_files as st
from retrievers.models.card import (
    CARD_FILE,
    MAX_TOKENS,
    Card,
    CardPrompts,
    CardStage,
    Pooling,
    Stage,
    TruncationSide,
    load_card,
)
from retrievers.models.positions import position_limit, stated_positions

COPY_AGAIN = "copy or download the checkpoint again"
NO_LIMIT = MAX_TOKENS  # transformers writes 1e30 where a tokenizer has no limit
# Tokenizers that apply do_lower_case. The others, such as RoBERTa's, keep it and ignore it.
LOWER_CASING = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
WORD_PIECES = "vocab.txt"
COSINE_ASSUMED = (
    "the folder does not say which similarity it was trained for: cosine is used, as "
    "sentence-transformers does; use --like CARD for a model trained with dot products"
)
# Marks of models without a single vector per text, in their settings and the names of their files:
# sentence-transformers 5 and OpenSearch, PyLate and Stanford's ColBERT, rerankers.
OTHER_KINDS = {
    "a sparse encoder (SPLADE)": r"SparseEncoder|\.sparse_encoder\.|query_token_weights\.txt",
    "a late-interaction model (ColBERT)": r'"pylate\.|HF_ColBERT|"ColBERT"|MaxSim',
    "a cross-encoder": r"CrossEncoder|\.cross_encoder\.|\w+ForSequenceClassification|sbert_ce_\w+",
}
WRITE_A_CARD = "Write a card that states how vectors are made, and pass its file: path/to/card.toml"
F = TypeVar("F")

logger = logging.getLogger(__name__)


class HashedFile(NamedTuple):
    """A file as it was read: its sha256 (hex), its size in bytes, and when it was written."""

    sha256: str
    size: int
    modified_ns: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Hash the file ``path``."""
        before = path.stat()
        return cls(sha256_of_file(path), before.st_size, before.st_mtime_ns)

    def is_changed(self, path: Path) -> bool:
        """Return whether the file at ``path`` has another content now."""
        now = path.stat()
        is_untouched = (now.st_size, now.st_mtime_ns) == (self.size, self.modified_ns)
        return not is_untouched and sha256_of_file(path) != self.sha256


class ModelFolder:
    """A folder of a model. What its files state, and their hashes, are read when needed, and kept.

    Attributes:
        root: the folder.
        checkpoint: name to show: its Hub id, or the folder's name.
        revision: revision to show; "" for a local folder.
    """

    def __init__(self, root: Path, checkpoint: str = "", revision: str = "") -> None:
        self.root, self.checkpoint, self.revision = root, checkpoint or root.name, revision
        self._hashed: dict[Path, HashedFile] = {}
        self._contents: dict[Path, bytes] = {}  # of settings

    def hash_file(self, path: Path) -> HashedFile:
        """Hash the file ``path`` in the folder."""
        if path not in self._hashed:
            self._hashed[path] = HashedFile.read(path)
        return self._hashed[path]

    def _read(self, path: Path) -> bytes:
        if path not in self._contents:
            self._contents[path] = read_content(path)
        return self._contents[path]

    def _read_object(self, path: Path) -> dict[str, Any]:
        return decode_object(self._read(path), path, COPY_AGAIN)

    def _read_record(self, path: Path, kind: type[F], hint: str = "") -> F:
        return decode_json(self._read(path), kind, path, hint)

    def _read_if_present(self, path: Path, kind: type[F]) -> F:
        return self._read_record(path, kind) if lexists(path) else kind()

    @property
    def is_st(self) -> bool:
        """True if sentence-transformers saved the folder."""
        return lexists(self.root / st.MODULES)

    @cached_property
    def modules(self) -> list[st.Module]:
        """Entries of ``modules.json``, whose paths stay inside the folder."""
        path = self.root / st.MODULES
        modules = self._read_record(path, list[st.Module]) if self.is_st else []
        for module in modules:
            self.inside(module.path)
        return modules

    def inside(self, path: str) -> Path:
        """Return the path of a module's folder, or raise if it leads out of this one."""
        return resolve_inside(self.root, path)

    @cached_property
    def inner(self) -> Path:
        """Folder of the transformer: this one, or nested in old folders."""
        if not self.is_st:
            return self.root
        self._refuse_other_classes()
        if self.modules and self.modules[0].kind == "Transformer":
            return self.inside(self.modules[0].path)
        if (self.root / "config.json").exists():
            return self.root
        raise BenchError(f"{self.root / st.MODULES} does not begin with a Transformer")

    def _refuse_other_classes(self) -> None:
        for module in self.modules:
            if module.type.partition(".")[0] != "sentence_transformers":
                path = self.root / st.MODULES
                problem = f"{path} names {module.type!r}, which is not from sentence-transformers"
                raise BenchError(problem, "Code in a checkpoint is never run.")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of the network's ``config.json``."""
        path = self.inner / "config.json"
        if not path.is_file():
            raise BenchError(f"{path} is missing", "Give the folder of a model.")
        return self._read_object(path)

    def refuse_own_code(self) -> None:
        """Raise if the network or tokenizer has code of its own."""
        for path in (self.inner / "config.json", self.inner / "tokenizer_config.json"):
            if path.exists() and self._read_object(path).get(st.AUTO_MAP):
                problem = f"{path} asks to run code of its own (auto_map)"
                raise BenchError(
                    problem, "Code is not run here: write an encoder in a Python file."
                )

    @cached_property
    def _tokenizer(self) -> st.TokenizerConfig:
        path = self.inner / "tokenizer_config.json"
        config = self._read_if_present(path, st.TokenizerConfig)
        length = config.model_max_length
        if length is not None and not length >= 1:
            raise BenchError(f"{path}: model_max_length is {length}", "Write 1 or more tokens.")
        return config

    @cached_property
    def truncation_side(self) -> TruncationSide:
        """Side on which the tokenizer truncates long texts."""
        if self._tokenizer.truncation_side is not None:
            return self._tokenizer.truncation_side
        path = self.inner / "tokenizer.json"
        truncation = self._read_if_present(path, st.TokenizerFile).truncation
        return "left" if truncation and truncation.direction == "Left" else "right"

    @property
    def _lower_cases(self) -> bool:
        """True if the tokenizer lower-cases texts."""
        named = (self._tokenizer.tokenizer_class or "").removesuffix("Fast")
        applies = lexists(self.inner / WORD_PIECES) or named in LOWER_CASING
        return bool(self._tokenizer.do_lower_case) and applies

    @cached_property
    def _transformer(self) -> st.TransformerFile:
        path = find_transformer_file(self.inner)
        kind = st.TransformerFile
        return self._read_record(path, kind, WRITE_A_CARD) if path else kind()

    def read_card(self, typed: str, *, may_classify: bool = False) -> Card | None:
        """Return the card in the folder or one made from its sentence-transformers files, or None.

        Settings that this program does not know make a card of kind ``python``:
        sentence-transformers itself encodes, and the card's warning says why. ``typed`` is the
        folder's name in messages. ``may_classify`` accepts a plain checkpoint whose architecture is
        a classifier's.
        """
        if self.is_st or not may_classify:
            self._refuse_other_kinds(typed)
        if (self.root / CARD_FILE).is_file():
            return load_card(self.root / CARD_FILE)
        if not self.is_st:
            return None
        try:
            return self.read_st_card()
        except BenchError as error:
            if isinstance(error.__cause__, OSError):  # no library can read it either
                raise
            return self._make_library_card(error)

    def _refuse_other_kinds(self, typed: str) -> None:
        """Raise if the folder holds a sparse, late-interaction or cross-encoder model."""
        names = (st.MODULES, st.SETTINGS) if self.is_st else (st.SETTINGS, "config.json")
        files = (self.root / name for name in names)
        contents = [self._read(path) for path in files if path.is_file()]
        lines = [path.name.encode() for path in self.root.iterdir()]
        text = b"\n".join([*lines, *contents]).decode(errors="replace")
        for kind, marks in OTHER_KINDS.items():
            if mark := re.search(marks, text):
                raise BenchError(
                    f"{typed} is {kind}, as {mark[0]} shows: it does not make one vector per text",
                    "Rank with its own library, then score the run file with `python -m bench "
                    "score RUN_FILE --dataset DATASET`, and compare it with `python -m bench "
                    "compare`.",
                )

    def read_st_card(self) -> Card:
        """Read the modules, prompts, lengths and text processing of the folder as a card."""
        every = self._read_record(self.root / st.MODULES, list[st.KnownModule])
        self._refuse_other_classes()
        modules = [module for module in every if module.kind != "Dropout"]
        names = [module.kind for module in modules]
        stages = modules[2 : len(modules) - (names[-1:] == ["Normalize"])]
        known = names[:2] == ["Transformer", "Pooling"]
        if not known or not {stage.kind for stage in stages} <= st.STAGE_MODULES.keys():
            problem = f"{self.root}: the modules {' > '.join(names)} are not supported"
            supported = "Supported: Transformer, Pooling, Dense, LayerNorm, Normalize."
            raise BenchError(problem, supported)
        settings, normalize = self._read_settings(st.KnownSettings), names[-1] == "Normalize"
        if settings.truncate_dim and normalize and settings.similarity_fn_name == "dot":
            cut = settings.truncate_dim
            problem = f"{self.root}: truncate_dim = {cut} after Normalize needs cosine"
            raise BenchError(problem, "Remove truncate_dim to use all dimensions.")
        self._refuse_unknown_settings(every)
        for stage in stages:
            self.read_stage(stage.path)
        self.refuse_own_code()
        transformer, length = self._transformer, self._find_length()
        return Card(
            **self._shared_fields(settings, normalize),
            pooling=_read_pooling(self.inside(modules[1].path) / "config.json"),
            stages=tuple(CardStage(kind=st.STAGE_MODULES[s.kind], folder=s.path) for s in stages),
            max_query_tokens=length,
            max_document_tokens=length,
            dimensions=settings.truncate_dim,
            truncation_side=self.truncation_side,
            lower_case=bool(transformer.do_lower_case) and not self._lower_cases,
            warning="; ".join(
                _find_warnings(settings, normalize, length, transformer.max_seq_length)
            ),
        )

    def _refuse_unknown_settings(self, modules: Sequence[st.KnownModule]) -> None:
        """Raise if modules share a name, or a plain one has other settings than all."""
        names = [module.name for module in modules if module.name]
        if len(set(names)) < len(names):
            raise BenchError(f"{self.root / st.MODULES} gives two modules one name")
        for module in modules:
            if module.kind in st.PLAIN_MODULES:
                path = self.inside(module.path) / "config.json"
                self._read_if_present(path, st.PLAIN_MODULES[module.kind])

    def _find_length(self) -> int:
        """Return the stated length or the tokenizer's and network's, within the positions."""
        stated, tokenizers = self._transformer.max_seq_length, self._tokenizer.model_max_length
        config = self.config if (self.inner / "config.json").is_file() else {}
        limit = position_limit(config) if stated else stated_positions(config)
        known = [n for n in (stated or tokenizers, limit) if n is not None and n < NO_LIMIT]
        length = int(min(known, default=NO_LIMIT))
        if length < 1:
            raise BenchError(f"{self.inner / 'config.json'} has no positions for texts")
        return length

    def _make_library_card(self, reason: BenchError) -> Card:
        """Return the card of a folder that sentence-transformers encodes for the ``reason``."""
        settings = self._read_settings(st.Settings)
        version = library_version("sentence-transformers")
        if not version:
            raise BenchError(str(reason), "To encode it so: pip install 'retrieval-bench[train]'")
        warnings = [f"sentence-transformers {version} encodes it, since {reason}"]
        warning = "; ".join(warnings + _find_warnings(settings, normalize=False))
        return Card(kind="python", warning=warning, **self._shared_fields(settings, False))

    def _shared_fields(self, settings: st.Settings, normalize: bool) -> dict[str, Any]:
        """Return the fields of a card that all folders of sentence-transformers state."""
        dot, prompts = settings.similarity_fn_name == "dot", settings.prompts or {}
        return {
            "name": self.root.name,
            "title": f"{self.root} (sentence-transformers)",
            "checkpoint": str(self.root),
            # Of encode_query and encode_document of version 5.7, which never use the default one.
            "prompts": CardPrompts(
                query=prompts.get("query") or "", document=prompts.get("document") or ""
            ),
            "normalize": normalize or not dot,
            "similarity": "dot" if dot else "cos",
        }

    def _read_settings(self, kind: type[st.Settings]) -> st.Settings:
        """Read settings of the whole model, whose requirements are met and whose products rank."""
        path = self.root / st.SETTINGS
        settings = self._read_if_present(path, kind)
        _check_requirements(self.root, settings.requirements)
        is_unit = settings.truncate_dim is None and self._ends_at_length_1()
        if not (settings.similarity_fn_name == "euclidean" and is_unit):
            check_similarity(str(path), settings.similarity_fn_name)
        return settings

    def _ends_at_length_1(self) -> bool:
        """Return whether the last module scales vectors to length 1."""
        if not self.modules or self.modules[-1].kind != "Normalize":
            return False
        path = self.inside(self.modules[-1].path) / "config.json"
        return not path.exists() or is_known_module(self.modules[-1], path)

    @property
    def lacks_normalize(self) -> bool:
        """True if sentence-transformers saved the folder without a ``Normalize`` module."""
        return bool(self.modules) and all(each.kind != "Normalize" for each in self.modules)

    def warn_of_contradictions(self, card: Card) -> None:
        """Warn about settings in the files that differ from a ``card``, which is used."""
        stated: dict[str, Any] = {"truncation_side": self.truncation_side}
        if self.is_st:
            try:
                own = self.read_st_card()
                stated |= {"pooling": own.pooling, "lower_case": own.lower_case or card.lower_case}
                stated["dimensions"] = own.dimensions
            except BenchError as error:
                logger.warning("ignored: %s", error)
        for field, value in stated.items():
            if (used := getattr(card, field)) != value:
                logger.warning("%s states %s %s, but %s is used", self.root, field, value, used)

    def read_stages(self, stages: Sequence[CardStage], width: int) -> tuple[Stage, ...]:
        """Return the layers of a card after pooling of token vectors of ``width`` dimensions."""
        resolved = []
        for stage in stages:
            source, activation, width = f"key:{stage.key}", "identity", stage.width or width
            if stage.folder:
                config, is_dense = self.read_stage(stage.folder), stage.kind == "dense"
                stated = config.out_features if is_dense else config.dimension
                if stated is None:
                    path = self.inside(stage.folder) / "config.json"
                    key = "out_features" if is_dense else "dimension"
                    raise BenchError(f"{path} states no {key}")
                source, width = f"folder:{stage.folder}", stated
                activation = config.activation if is_dense else "identity"
            resolved.append(Stage(stage.kind, source, width, activation, stage.eps))
        return tuple(resolved)

    def read_stage(self, path: str) -> st.StageFile:
        """Read the settings of the stage in the folder ``path`` inside."""
        return self._read_record(self.inside(path) / "config.json", st.StageFile, WRITE_A_CARD)

    def list_files(self) -> list[Path]:
        """Return all files, sorted, or raise if a folder inside is a link."""
        paths = sorted(self.root.rglob("*"))
        for path in paths:
            if path.is_symlink() and path.is_dir():
                raise BenchError(f"{path} is a link to a folder", "Copy the folder there.")
        return [path for path in paths if path.is_file()]

    def find_code(self) -> str:
        """Return text about the first reference to custom code, or "" if there is none.

        sentence-transformers and transformers would run the code. Raise if the folder refers to
        code or a tokenizer outside of it, which they would use without a hash.
        """
        found: list[str] = []
        hints: list[str] = []

        def visit(item: dict[str, Any]) -> dict[str, Any]:
            types = item.get("types")
            inner = types.values() if isinstance(types, dict) else ()
            named = [*map(item.get, st.CLASS_KEYS), *inner]
            found.extend(filter(_is_other_class, named))
            keys = (st.AUTO_MAP, st.TOKENIZER_PATH)
            found.extend(f"{key} = {item[key]}" for key in keys if item.get(key))
            if "--" in str(item.get(st.AUTO_MAP)):
                remove = f"remove everything up to -- in {st.AUTO_MAP}."
                hints.append(f"Copy it into the folder, and {remove}")
            if item.get(st.TOKENIZER_PATH):
                hints.append(f"Copy the tokenizer into the folder, and remove {st.TOKENIZER_PATH}.")
            return item

        text = ""
        for path in self.list_files():
            if path.suffix != ".json" or path.name in ("tokenizer.json", "vocab.json"):
                continue
            found.clear()
            try:
                json.loads(self._read(path), object_hook=visit)
            except RecursionError:  # with a larger stack, a library might read it
                text = text or f"{path} is nested too deeply to be searched for code"
            except ValueError:  # no library can read it either
                pass
            names = f"{path} names {', '.join(found)}"
            if hints:
                raise BenchError(f"{names}, outside of its folder", " ".join(hints))
            if found:
                text = text or names
        return text


def _is_other_class(name: object) -> bool:
    """Return whether ``name`` is the path of a class outside sentence-transformers and PyTorch."""
    return isinstance(name, str) and "." in name and not st.LIBRARY_CLASS.fullmatch(name)


def check_similarity(name: str, similarity: object) -> None:
    """Raise if the model ``name`` states another similarity than cosine or the inner product."""
    if similarity not in (None, "cosine", "dot"):
        problem = f"{name} states {similarity} similarity, but the ranking is by product or cosine"
        raise BenchError(problem, 'Set similarity_fn_name to "cosine" or "dot" to use that.')


def _check_requirements(folder: Path, requirements: Mapping[str, str | st.Requirement]) -> None:
    """Raise if a library other than sentence-transformers lacks a version that is required."""
    for stated, wanted in requirements.items():
        versions = wanted if isinstance(wanted, str) else wanted.specifier
        name = {"pytorch": "torch"}.get(stated, canonicalize_name(stated))
        found = python_version() if name == "python" else library_version(name)
        try:
            is_met = bool(found) and SpecifierSet(versions).contains(found, prereleases=True)
        except InvalidSpecifier as error:
            raise BenchError(
                f"{folder}: the requirement of {stated} is not valid: {error}"
            ) from error
        if name != "sentence-transformers" and not is_met:
            state = f"{name} {found} is installed" if found else f"{name} is not installed"
            install = f"pip install '{name}{versions}'"
            raise BenchError(f"{folder} requires {stated}{versions}, and {state}", install)


def _find_warnings(
    settings: st.Settings, normalize: bool, length: int = 0, stated: int | None = None
) -> list[str]:
    """Return what users should know about settings, and about a ``length`` below the stated one."""
    prompts = settings.prompts or {}
    unused = [name for name in prompts if prompts[name] and name not in st.RETRIEVAL_PROMPTS]
    warnings = [] if settings.similarity_fn_name or normalize else [COSINE_ASSUMED]
    if settings.similarity_fn_name == "euclidean":
        warnings.append("at length 1, its euclidean distance ranks as cosine does, which is used")
    if cut := settings.truncate_dim:
        warnings.append(f"truncate_dim = {cut}, so {cut} dimensions are searched by default")
    if unused:
        warnings.append(
            f"its prompts {', '.join(unused)} are not used: retrieval uses those called query and "
            "document, as encode_query and encode_document of sentence-transformers do; to use "
            "others, write a card"
        )
    if stated is not None and stated > length:
        reads = f"its network reads at most {length:,} tokens, at which texts are cut"
        warnings.append(f"max_seq_length is {stated:,}, but {reads}")
    elif length == NO_LIMIT:
        warnings.append("it states no length, so texts are never cut, as in sentence-transformers")
    return warnings


def _read_pooling(path: Path) -> Pooling:
    config = read_json(path, st.PoolingFile)
    modes = config.modes
    if len(modes) != 1 or modes[0] not in st.POOLING:
        problem = f"{path}: pooling by {' + '.join(modes) or 'nothing'} is not supported"
        raise BenchError(problem, f"Use one of {', '.join(st.POOLING)}.")
    if not config.include_prompt:
        raise BenchError(f"{path}: pooling without the prompt's tokens is not supported")
    return st.POOLING[modes[0]]


def find_transformer_file(folder: Path) -> Path | None:
    """Return the file of a transformer's settings: the first in ``folder`` that is not empty."""
    paths = (folder / name for name in st.TRANSFORMER_FILES)
    return next((path for path in paths if lexists(path) and read_object(path)), None)


def is_known_module(module: st.Module, path: Path) -> bool:
    """Return True if the file ``path`` holds no setting that other modules of its type lack."""
    try:
        return module.kind in st.PLAIN_MODULES and bool(
            read_json(path, st.PLAIN_MODULES[module.kind])
        )
    except BenchError:
        return False

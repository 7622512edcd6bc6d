"""Configurations of an evaluation, deviations from one to another, and the answer of a search."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import msgspec

from datasets_cfg.catalogue import Metadata
from foundation.files import sha256_of_file
from retrievers.encoders.views import View
from retrievers.models.card import Prompts, StoredPooling, TruncationSide, all_cards
from retrievers.models.checkpoint import TOKENIZER as TOKENIZER_FILES
from retrievers.models.resolve import Model

TitleRule = Literal["space", "pair", "sep", "none", "template"]
Case = Literal["", "lower", "cased", "accents", "no-accents"]
Weights = Literal["document", "query", "other"]
Special = Literal["first", "last"]
Precision = Literal["float32", "float16", "bfloat16", "int8", "binary"]
EUCLIDEAN = View(normalize=False, similarity="euclidean")
LENGTHS = (64, 128, 256, 512)
LONGEST = 512  # tokens, if a recipe states no length
WIDTHS = (64, 128, 256, 512)
DEPTHS = (10, 20, 50, 100, 1000)
SPLITS = ("test", "dev", "train")
# Deviations of weights that were stored in a precision, by its name.
STORED = {
    "int8": "weights in int8, with one scale per layer",
    "float16": "weights stored in float16",
    "bfloat16": "weights stored in bfloat16",
}
CORRECT_THERE = "no setting here: correct it there"
# Files that state how a folder of sentence-transformers is used.
SETTINGS = ("*modules.json", "*sentence*.json", "*_Pooling/config.json")
TOKENIZER = "save the tokenizer there as it is here (special tokens, do_lower_case)"
# Prompts of published models that no card here has; pairs of a query's and a document's.
OTHER_PROMPTS = (
    Prompts("query: ", "passage: "),
    Prompts("search_query: ", "search_document: "),
    Prompts("Represent this sentence for searching relevant passages: "),
    Prompts("Represent the query for retrieval: ", "Represent the document for retrieval: "),
    Prompts("task: search result | query: "),
)


@dataclass(frozen=True)
class EvaluationSetup:
    """Everything that a hypothesis may change in an evaluation, from text to mean.

    Attributes:
        title: rule that joins a title and its text; ``template`` names both parts.
        case: "" as the tokenizer does it; ``lower`` lower-cases texts first, ``cased`` keeps case
            and accents, ``accents`` keeps accents only, ``no-accents`` strips them first.
        missing: special tokens that are left out, at the start or the end of a text.
        query_weights, document_weights: the encoder of each side; ``other`` is another checkpoint.
        other_tokenizer: texts are read by the other checkpoint's tokenizer.
        stored: precision to which weights are rounded; "" for none. ``int8`` is of dense layers,
            with one scale for each.
        stages: places of the layers after pooling that are applied.
        dimensions: leading dimensions that are kept; None for all.
        scaled_after_cut: bring vectors to length 1 after they were cut, not before.
        euclidean: rank by distance instead of inner product.
        precision: of document vectors; ``binary`` applies to queries, too.
        shuffled: vectors belong to other rows than their ids say.
        any_length: each vector of the evidence may have any length.
        split: of the judgements; "" for the collection's.
        keep_self: keep the document whose id equals the query's.
        depth: documents per query.
        exponential: gain of nDCG is 2^grade - 1.
        input_order: documents of equal score stay in the order of the corpus.
        answered_only: leave queries without a relevant document in the run out of the mean.
        least_grade: lowest grade that counts as relevant.
    """

    query_prompt: str
    document_prompt: str
    title: TitleRule
    max_query_tokens: int
    max_document_tokens: int
    side: TruncationSide
    pooling: StoredPooling
    normalize: bool
    stages: tuple[int, ...]
    depth: int
    keep_self: bool
    query_weights: Weights = "document"
    document_weights: Weights = "document"
    case: Case = ""
    missing: tuple[Special, ...] = ()
    other_tokenizer: bool = False
    adapter: bool = True
    stored: str = ""
    dimensions: int | None = None
    scaled_after_cut: bool = True
    euclidean: bool = False
    precision: Precision = "float32"
    shuffled: bool = False
    any_length: bool = False
    split: str = ""
    exponential: bool = False
    input_order: bool = False
    answered_only: bool = False
    least_grade: int = 1


# Fields of queries, rankings and means, on which vectors of documents do not depend.
OTHER_FIELDS = {
    *("query_prompt", "max_query_tokens", "query_weights"),
    *("euclidean", "shuffled", "any_length", "keep_self", "depth", "input_order"),
    *("split", "exponential", "answered_only", "least_grade"),
}
# Fields that are applied to the states of a forward pass. The pooler is part of the network.
VIEW_FIELDS = {*("pooling", "normalize", "stages", "dimensions", "scaled_after_cut"), "precision"}


def document_key(setup: EvaluationSetup) -> tuple[object, ...]:
    """Return the values of the fields on which vectors of documents depend."""
    return tuple(value for name, value in vars(setup).items() if name not in OTHER_FIELDS)


def forward_key(setup: EvaluationSetup) -> tuple[object, ...]:
    """Return the values of the fields on which forward passes of documents depend."""
    other = OTHER_FIELDS | VIEW_FIELDS
    known = (value for name, value in vars(setup).items() if name not in other)
    return *known, setup.pooling == "pooler"


@dataclass(frozen=True)
class Deviation:
    """One difference of configuration, as a hypothesis about how the evidence was made.

    Deviations that change the same field exclude each other. ``apply`` is the card line or command
    that does the same here, or what to correct there. Rounding is harmless if the configuration
    fits without it.
    """

    name: str
    changes: Mapping[str, Any]
    apply: str
    is_rounding: bool = False

    def on(self, setup: EvaluationSetup) -> EvaluationSetup:
        """Return ``setup`` with this deviation."""
        return replace(setup, **self.changes)


def make_setup(model: Model, metadata: Metadata) -> EvaluationSetup:
    """Return the configuration of a model with the prompts of a collection, by its protocol."""
    recipe = model.recipe
    return EvaluationSetup(
        query_prompt=recipe.prompts.query,
        document_prompt=recipe.prompts.document,
        title=recipe.title_join,
        max_query_tokens=recipe.max_query_tokens or LONGEST,
        max_document_tokens=recipe.max_document_tokens or LONGEST,
        side=recipe.truncation_side,
        pooling=recipe.pooling,
        normalize=recipe.normalize,
        stages=tuple(range(len(recipe.stages))),
        depth=metadata.depth,
        keep_self=not metadata.exclude_self,
        dimensions=recipe.compression.dimensions,
        precision=cast("Precision", recipe.compression.precision.removeprefix("u")),
        query_weights="query" if model.query else "document",
    )


def differing_files(model: Model, other: Model) -> list[str]:
    """Return the names of files whose content differs or that one of the two lacks.

    All files of weights are called ``weights``. They come last.
    """
    contents: list[dict[str, set[str]]] = []
    for each in (model, other):
        root = each.checkpoint.root
        paths = [path for pattern in SETTINGS for path in root.glob(pattern)]
        named = {path.relative_to(root).as_posix(): {sha256_of_file(path)} for path in paths}
        both = (each.checkpoint, *([each.query] if each.query else []))
        for file, digest in (item for one in both for item in one.hashes.items()):
            name = file.rpartition("/")[2]
            is_small = name in ("config.json", *TOKENIZER_FILES) and file not in named
            named.setdefault(name if is_small else "weights", set()).add(digest)
        contents.append(named)
    ours, theirs = contents
    names = sorted({**ours, **theirs}, key="weights".__eq__)
    return [name for name in names if ours.get(name) != theirs.get(name)]


def deviations(
    model: Model,
    setup: EvaluationSetup,
    other: Model | None,
    metadata: Metadata,
    lengths: Sequence[int],
) -> list[Deviation]:
    """Return every single deviation for this model on this collection.

    Some may change nothing, such as lower-casing before a tokenizer that does the same. ``other``
    is another checkpoint whose files may have been used. Files with equal content are skipped.
    Texts may be cut at one of the ``lengths``.
    """
    possible = [
        *_vary_stored(model),
        *(_vary_files(model, other) if other else ()),
        *_vary_prompts(setup),
        *_vary_texts(setup, lengths),
        *_vary_network(model, setup),
        *_vary_vectors(model, setup),
        *_vary_protocol(setup, metadata),
    ]
    return [deviation for deviation in possible if deviation.on(setup) != setup]


def _vary_prompts(setup: EvaluationSetup) -> Iterator[Deviation]:
    query, document = setup.query_prompt, setup.document_prompt
    names: dict[tuple[str, str], str] = {}  # the first name of equal pairs
    for name, q, d in (
        ("query prompt missing", "", document),
        ("document prompt missing", query, ""),
        ("no prompt at all", "", ""),
        ("query prompt doubled", query * 2, document),
        ("document prompt doubled", query, document * 2),
        ("prompts of queries and documents swapped", document, query),
    ):
        names.setdefault((q, d), name)
    pairs = [(each.query, each.document) for each in OTHER_PROMPTS]
    pairs += [(card.prompts.query, card.prompts.document) for card in all_cards().values()]
    for q, d in pairs:
        names.setdefault((q, document), f"query prompt {q!r}")
        names.setdefault((q, q), f"{q!r} before both sides")
        names.setdefault((q, d), f"prompts {q!r} and {d!r}")
    for (q, d), name in names.items():
        changes = {"query_prompt": q, "document_prompt": d}
        yield Deviation(name, changes, f"card: prompts = {{ query = {q!r}, document = {d!r} }}")


def cut_settings(length: int) -> str:
    """Return the settings that cut texts at a length in tokens."""
    return f"--set max_query_tokens={length} max_document_tokens={length}"


def _vary_texts(setup: EvaluationSetup, lengths: Sequence[int]) -> Iterator[Deviation]:
    titles = {
        "none": "title left out",
        "space": "title joined to the text by a space",
        "pair": "title and text as a pair of segments",
        "sep": "separator token between title and text",
    }
    for rule, name in titles.items():
        yield Deviation(name, {"title": rule}, f'card: title_join = "{rule}"')
    template = {"title": "template", "document_prompt": ""}
    yield Deviation("'title: {title} | text: {text}' as document", template, CORRECT_THERE)
    gemma = template | {"query_prompt": "task: search result | query: "}
    yield Deviation("prompts and title template of EmbeddingGemma", gemma, CORRECT_THERE)
    for length in lengths:
        both = {"max_query_tokens": length, "max_document_tokens": length}
        yield Deviation(f"texts cut at {length} tokens", both, cut_settings(length))
    side, lost = ("left", "first") if setup.side == "right" else ("right", "last")
    card = f'card: truncation_side = "{side}"'
    yield Deviation(f"long texts lose their {lost} tokens", {"side": side}, card)
    yield Deviation("texts not lower-cased", {"case": "cased"}, TOKENIZER)
    yield Deviation("accents kept", {"case": "accents"}, TOKENIZER)
    yield Deviation("accents stripped", {"case": "no-accents"}, TOKENIZER)
    yield Deviation("texts lower-cased", {"case": "lower"}, "card: lower_case = true")
    yield Deviation("no token before the text (BOS, [CLS])", {"missing": ("first",)}, TOKENIZER)
    yield Deviation("no token after the text (EOS, [SEP])", {"missing": ("last",)}, TOKENIZER)
    yield Deviation("no special tokens", {"missing": ("first", "last")}, TOKENIZER)


def _vary_stored(model: Model) -> Iterator[Deviation]:
    """Yield weights in 16 bits, unless they are so already."""
    config = model.checkpoint.config
    if config.get("dtype", config.get("torch_dtype", "float32")) == "float32":
        for dtype in ("float16", "bfloat16"):
            save = f"save the weights in {dtype} here, or in float32 there"
            yield Deviation(STORED[dtype], {"stored": dtype}, save)


def _vary_files(model: Model, other: Model) -> Iterator[Deviation]:
    """Yield what another checkpoint has of its own: tokenizer, weights and prompts."""
    name, files = other.card.name, differing_files(model, other)
    both = {"query_weights": "other", "document_weights": "other"}
    if tokenizer := [file for file in files if file in TOKENIZER_FILES]:
        copied = f"copy {' and '.join(tokenizer)} from one folder to the other"
        yield Deviation(f"tokenizer of {name}", {"other_tokenizer": True}, copied)
    use = f"--model {name} --like {model.recipe.model}"
    if "weights" in files:
        yield Deviation(f"weights of {name}", {**both, "other_tokenizer": bool(tokenizer)}, use)
    elif "config.json" in files:
        yield Deviation(f"config.json of {name}", both, use)
    theirs = other.recipe.prompts
    prompts = {"query_prompt": theirs.query, "document_prompt": theirs.document}
    yield Deviation(f"prompts of {name}", prompts, f"card: prompts as {name} states them")


def _vary_network(model: Model, setup: EvaluationSetup) -> Iterator[Deviation]:
    recipe = model.recipe
    is_dpr = model.document is not None and model.document.config.get("model_type") == "dpr"
    poolings = {"cls": "pooling by the first token", "mean": "mean pooling", "last": "last token"}
    for pooling, name in poolings.items() if not is_dpr else ():
        yield Deviation(name, {"pooling": pooling}, f'card: pooling = "{pooling}"')
    if model.query is not None:
        for name, query, document in (
            ("encoders of queries and documents swapped", "document", "query"),
            ("the document encoder on both sides", "document", "document"),
            ("the query encoder on both sides", "query", "query"),
        ):
            changes = {"query_weights": query, "document_weights": document}
            yield Deviation(name, changes, "card: checkpoint and query_checkpoint")
    if recipe.adapter is not None:
        yield Deviation("adapter not attached", {"adapter": False}, "card: leave the adapter out")
    card = "card: leave it out of stages"
    for place, stage in enumerate(recipe.stages):
        rest = tuple(each for each in setup.stages if each != place)
        name = f"{stage.kind} layer {stage.source.partition(':')[2]} not applied"
        yield Deviation(name, {"stages": rest}, card)
    if len(recipe.stages) > 1:
        yield Deviation("no layer after pooling applied", {"stages": ()}, card)


def _vary_vectors(model: Model, setup: EvaluationSetup) -> Iterator[Deviation]:
    card = 'card: normalize = {}, similarity = "{}"'
    yield Deviation("vectors not normalised", {"normalize": False}, card.format("false", "dot"))
    yield Deviation("cosine: vectors normalised", {"normalize": True}, card.format("true", "cos"))
    if not setup.normalize:
        grid = 'grid: similarity = "euclidean"'
        yield Deviation("ranked by Euclidean distance", {"euclidean": True}, grid)
    yield Deviation("all dimensions", {"dimensions": None}, "omit --dimensions")
    for width in WIDTHS:
        if width < model.recipe.dim and width != setup.dimensions:
            name = f"first {width} dimensions"
            yield Deviation(name, {"dimensions": width}, f"--dimensions {width}")
            if setup.normalize:
                uncut = {"dimensions": width, "scaled_after_cut": False}
                fix = "scale vectors to length 1 there after they are cut"
                yield Deviation(f"{name}, not scaled again", uncut, fix)
    plain, is_rounding = {"precision": "float32"}, setup.precision != "binary"
    yield Deviation("documents in float32", plain, "omit --precision", is_rounding)
    yield Deviation("binary vectors", {"precision": "binary"}, "--precision binary")
    for each in ("int8", "float16", "bfloat16"):
        option = CORRECT_THERE if each == "bfloat16" else f"--precision {each}"
        yield Deviation(f"documents in {each}", {"precision": each}, option, is_rounding=True)
    fix = "serve it there in higher precision"
    yield Deviation(STORED["int8"], {"stored": "int8"}, fix, is_rounding=True)
    fix = "scale vectors to length 1 there, or compare them by cosine"
    yield Deviation("vectors of another length for each text", {"any_length": True}, fix)
    order = "write the ids again in the order in which the texts were encoded"
    yield Deviation("vectors in another order", {"shuffled": True}, order)


def _vary_protocol(setup: EvaluationSetup, metadata: Metadata) -> Iterator[Deviation]:
    for split in SPLITS:
        if split != metadata.split:
            yield Deviation(f"split {split}", {"split": split}, f"--split {split}")
    kept = not setup.keep_self
    name = "document with the query's id " + ("kept" if kept else "dropped")
    declaration = f"dataset.toml: exclude_self = {'false' if kept else 'true'}"
    yield Deviation(name, {"keep_self": kept}, declaration)
    for depth in DEPTHS:
        if depth < setup.depth:
            name = f"only {depth} documents retrieved per query"
            yield Deviation(name, {"depth": depth}, f"--depth {depth}")
    as_trec_eval = "no setting: scores here are those of trec_eval"
    yield Deviation("exponential gain", {"exponential": True}, as_trec_eval)
    yield Deviation("ties in the order of the corpus", {"input_order": True}, as_trec_eval)
    yield Deviation("mean over answered queries only", {"answered_only": True}, as_trec_eval)
    grade = "--measure with (rel=2), such as R(rel=2)@100"
    yield Deviation("only grades of 2 or more relevant", {"least_grade": 2}, grade)


AnswerVerdict = Literal["reproduced", "explained", "possible", "none"]


class Observation(msgspec.Struct, frozen=True):
    """A difference that evidence shows without a search.

    ``apply`` is the setting that does the same here, or what to change there.
    """

    name: str
    apply: str


class Explanation(msgspec.Struct, frozen=True):
    """Deviations that explain the evidence together.

    Attributes:
        deviations: one, or a pair.
        share: part of the texts, queries or numbers that agree, from 0 to 1.
        precision: precision that the typical error is like; "" for scores.
        apply: card line or command for each deviation.
        cost: change of the main measure, on the sample of queries or on all; None if unknown.
        equals: other explanations that the evidence cannot tell from this one.
    """

    deviations: tuple[str, ...]
    share: float
    precision: str
    apply: tuple[str, ...]
    cost: float | None = None
    equals: tuple[str, ...] = ()
    detail: str = ""

    @property
    def name(self) -> str:
        """The deviations in words."""
        return " and ".join(self.deviations)


class Answer(msgspec.Struct, frozen=True):
    """Answer to the question why evidence differs from a model's own configuration.

    Attributes:
        evidence: kinds of evidence.
        verdict: ``reproduced`` by the configuration as it is, ``explained``, ``possible`` (agrees,
            but unrelated numbers would, too) or ``none``.
        share, precision: of the configuration as it is, as in `Explanation`.
        explanations: that fit, the best first.
        closest: the best that does not fit; None if none is closer than the configuration as it is.
        seen: differences that the evidence shows without a search.
        chance: explanations that are expected to agree by coincidence.
        singles, pairs: how many were tried.
        encoded: texts that went through a network.
        measure: measure of ``cost``.
        sampled: whether ``cost`` is of a sample of queries and documents.
    """

    model: str
    collections: tuple[str, ...]
    evidence: tuple[str, ...]
    verdict: AnswerVerdict
    share: float
    precision: str
    explanations: tuple[Explanation, ...]
    closest: Explanation | None
    seen: tuple[Observation, ...]
    chance: float
    singles: int
    pairs: int
    encoded: int
    measure: str
    sampled: bool

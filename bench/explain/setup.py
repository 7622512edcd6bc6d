"""Set-ups of a model and an evaluation, and the deviations that turn one into another."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from datasets_cfg.catalogue import Facts
from retrievers.models.card import all_cards
from retrievers.models.model import Model
from retrievers.models.recipe import Prompts, StoredPooling, TruncationSide

TitleRule = Literal["space", "pair", "sep", "none", "doubled", "only"]
Case = Literal["", "lower", "cased", "accents", "no-accents"]
Weights = Literal["document", "query", "other"]
Special = Literal["first", "last"]
Precision = Literal["float32", "float16", "bfloat16", "int8", "binary"]
LENGTHS = (64, 128, 256, 512)
LONGEST = 512  # tokens, if a recipe states no length
WIDTHS = (64, 128, 256, 512)
# Prompts of published models that no card here has; pairs of a query's and a document's.
OTHER_PROMPTS = (
    Prompts("query: ", "passage: "),
    Prompts("search_query: ", "search_document: "),
    Prompts("Represent this sentence for searching relevant passages: "),
    Prompts("Represent the query for retrieval: ", "Represent the document for retrieval: "),
)


@dataclass(frozen=True)
class EvaluationSetup:
    """Everything that a hypothesis may change in an evaluation, from text to mean.

    Attributes:
        title: rule that joins a title and its text; ``doubled`` repeats the title.
        case: "" as the tokenizer does it; ``lower`` lower-cases texts first, ``cased`` keeps case
            and accents, ``accents`` keeps accents only, ``no-accents`` strips them first.
        missing: special tokens that are left out, at the start or the end of a text.
        query_weights, document_weights: the encoder of each side; ``other`` is another checkpoint.
        stages: places of the layers after pooling that are applied.
        dimensions: leading dimensions that are kept; None for all.
        scaled_after_cut: bring vectors to length 1 after they were cut, not before.
        euclidean: rank by distance instead of inner product.
        precision: of document vectors; ``binary`` applies to queries, too.
        shift: documents have the vector of the document so many rows further down.
        shuffled: vectors belong to other rows than their ids say.
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
    adapter: bool = True
    dimensions: int | None = None
    scaled_after_cut: bool = True
    euclidean: bool = False
    precision: Precision = "float32"
    shift: int = 0
    shuffled: bool = False
    split: str = ""
    exponential: bool = False
    input_order: bool = False
    answered_only: bool = False
    least_grade: int = 1


def document_key(setup: EvaluationSetup) -> EvaluationSetup:
    """Return the set-up with every field at a fixed value that document vectors do not depend on.

    Args:
        setup: any set-up; those with equal keys have equal vectors of documents.
    """
    neutral: dict[str, Any] = {
        "query_prompt": "",
        "max_query_tokens": 0,
        "query_weights": "document",
        "euclidean": False,
        "split": "",
        "depth": 0,
        "least_grade": 1,
    }
    flags = ("shuffled", "keep_self", "exponential", "input_order", "answered_only")
    return replace(setup, **(neutral | dict.fromkeys(flags, False)))


@dataclass(frozen=True)
class Deviation:
    """One difference of set-up, as a hypothesis about how the evidence was made.

    Attributes:
        name: what was done, in words.
        kind: the part of the set-up; deviations of one kind exclude each other.
        changes: fields of `EvaluationSetup` with their values.
        apply: the card line or command that does the same here, or what to mend there.
    """

    name: str
    kind: str
    changes: Mapping[str, Any]
    apply: str

    def on(self, setup: EvaluationSetup) -> EvaluationSetup:
        """Return ``setup`` with this deviation."""
        return replace(setup, **self.changes)


@dataclass(frozen=True)
class Abilities:
    """Facts about a model's tokenizer and files that decide which deviations are possible.

    Attributes:
        lower_cases, strips_accents: what its tokenizer does to texts.
        can_keep_case: whether that can be switched off.
        first, last: whether special tokens stand around a text.
        separator: whether the tokenizer has a separator token.
        most_tokens: positions of the network.
        other: name of another checkpoint; "" for none.
    """

    lower_cases: bool
    strips_accents: bool
    can_keep_case: bool
    first: bool
    last: bool
    separator: bool
    most_tokens: int
    other: str = ""


def setup_of(model: Model, facts: Facts, depth: int | None = None) -> EvaluationSetup:
    """Return the set-up of a model with the prompts of a collection, by its protocol.

    Args:
        model: with the prompts of the collection.
        facts: of the collection.
        depth: documents per query; None for the collection's.
    """
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
        depth=depth or facts.depth,
        keep_self=not facts.exclude_self,
        query_weights="query" if model.query else "document",
    )


def deviations(
    model: Model, setup: EvaluationSetup, able: Abilities, facts: Facts
) -> list[Deviation]:
    """Return every single deviation that is possible for this model on this collection.

    Args:
        model: whose recipe is deviated from.
        setup: of the model, see `setup_of`.
        able: what its tokenizer and files allow.
        facts: of the collection.
    """
    found = [
        *_of_pooling(model, setup),
        *_of_prompts(setup),
        *_of_titles(setup, able),
        *_of_lengths(setup, able),
        *_of_tokens(able),
        *_of_weights(model, setup, able),
        *_of_vectors(model, setup),
        *_of_protocol(setup, facts),
    ]
    return [deviation for deviation in found if deviation.on(setup) != setup]


def _of_pooling(model: Model, setup: EvaluationSetup) -> Iterator[Deviation]:
    names = {"cls": "pooling by the first token", "mean": "mean pooling", "last": "last token"}
    is_dpr = model.document is not None and model.document.config.get("model_type") == "dpr"
    for pooling, name in {} if is_dpr else names.items():
        card = f'card: pooling = "{pooling}"'
        yield Deviation(name, "pooling", {"pooling": pooling}, card)


def _of_prompts(setup: EvaluationSetup) -> Iterator[Deviation]:
    query, document = setup.query_prompt, setup.document_prompt
    for side, prompt in (("query", query), ("document", document)):
        field = f"{side}_prompt"
        if prompt:
            card = f'card: prompts.{side} = ""'
            yield Deviation(f"{side} prompt missing", f"{side} prompt", {field: ""}, card)
            twice = f"{prompt}{prompt}"
            card = f"card: prompts.{side} = {twice!r}"
            yield Deviation(f"{side} prompt doubled", f"{side} prompt", {field: twice}, card)
    if query and document:
        yield _prompts("no prompt at all", "", "")
    if query != document:
        yield _prompts("prompts of queries and documents swapped", document, query)
        yield _prompts("the query prompt on both sides", query, query)
    for prompts in _known_prompts():
        name = f"query prompt {prompts.query!r}"
        card = f"--set query_prompt={prompts.query!r}"
        yield Deviation(name, "query prompt", {"query_prompt": prompts.query}, card)
        yield _prompts(f"{prompts.query!r} before both sides", prompts.query, prompts.query)
        if prompts.document:
            name = f"prompts {prompts.query!r} and {prompts.document!r}"
            yield _prompts(name, prompts.query, prompts.document)


def _prompts(name: str, query: str, document: str) -> Deviation:
    card = f"card: prompts = {{ query = {query!r}, document = {document!r} }}"
    changes = {"query_prompt": query, "document_prompt": document}
    return Deviation(name, "prompts", changes, card)


def _known_prompts() -> list[Prompts]:
    """Return prompts of all cards and of other published models, each once."""
    cards = [Prompts(c.prompts.query, c.prompts.document) for c in all_cards().values()]
    known = {(each.query, each.document): each for each in (*OTHER_PROMPTS, *cards) if each.query}
    return list(known.values())


def _of_titles(setup: EvaluationSetup, able: Abilities) -> Iterator[Deviation]:
    rules: dict[TitleRule, str] = {
        "none": "title left out",
        "space": "title joined to the text by a space",
        "pair": "title and text as a pair of segments",
        "doubled": "title twice before the text",
        "only": "title without the text",
    }
    if able.separator:
        rules["sep"] = "separator token between title and text"
    for rule, name in rules.items():
        shown = f'card: title_join = "{rule}"'
        there = "no setting does this: build the documents' texts so, or mend it there"
        card = there if rule in ("doubled", "only") else shown
        yield Deviation(name, "title", {"title": rule}, card)


def _of_lengths(setup: EvaluationSetup, able: Abilities) -> Iterator[Deviation]:
    for length in LENGTHS:
        if length <= able.most_tokens:
            card = f"--set max_query_tokens={length} max_document_tokens={length}"
            changes = {"max_query_tokens": length, "max_document_tokens": length}
            yield Deviation(f"texts cut at {length} tokens", "length", changes, card)
    side = "left" if setup.side == "right" else "right"
    name = f"long texts lose their {'first' if side == 'left' else 'last'} tokens"
    card = f'card: truncation_side = "{side}"'
    yield Deviation(name, "side", {"side": side}, card)


def _of_tokens(able: Abilities) -> Iterator[Deviation]:
    there = "save the tokenizer again without do_lower_case, or with it on their side"
    if able.lower_cases and able.can_keep_case:
        yield Deviation("texts not lower-cased", "case", {"case": "cased"}, there)
    if able.strips_accents and able.can_keep_case:
        yield Deviation("accents kept", "case", {"case": "accents"}, there)
    if not able.lower_cases:
        yield Deviation("texts lower-cased", "case", {"case": "lower"}, "card: lower_case = true")
    if not able.strips_accents:
        strip = "no setting does this: strip accents from the texts, or mend it there"
        yield Deviation("accents stripped", "case", {"case": "no-accents"}, strip)
    there = "let the tokenizer there add its special tokens (add_special_tokens)"
    both: tuple[Special, ...] = ("first", "last")
    if able.first:
        name = "no token before the text (BOS, [CLS])"
        yield Deviation(name, "special tokens", {"missing": ("first",)}, there)
    if able.last:
        name = "no token after the text (EOS, [SEP])"
        yield Deviation(name, "special tokens", {"missing": ("last",)}, there)
    if able.first and able.last:
        yield Deviation("no special tokens", "special tokens", {"missing": both}, there)


def _of_weights(model: Model, setup: EvaluationSetup, able: Abilities) -> Iterator[Deviation]:
    recipe = model.recipe
    if model.query is not None:
        swapped = {"query_weights": "document", "document_weights": "query"}
        card = "card: exchange checkpoint and query_checkpoint"
        yield Deviation("encoders of queries and documents swapped", "weights", swapped, card)
        for side in ("document", "query"):
            one = {"query_weights": side, "document_weights": side}
            card = f"card: name the {side} encoder as the only checkpoint"
            yield Deviation(f"the {side} encoder on both sides", "weights", one, card)
    if able.other:
        other = {"query_weights": "other", "document_weights": "other"}
        card = f"--model {able.other} --like {recipe.model}"
        yield Deviation(f"weights of {able.other}", "weights", other, card)
    if recipe.adapter is not None:
        card = "card: leave the adapter out"
        yield Deviation("adapter not attached", "adapter", {"adapter": False}, card)
    for place, stage in enumerate(recipe.stages):
        rest = tuple(each for each in setup.stages if each != place)
        name = f"{stage.kind} layer {stage.source.partition(':')[2]} not applied"
        yield Deviation(name, "stages", {"stages": rest}, "card: remove it from stages")
    if len(recipe.stages) > 1:
        card = "card: remove stages"
        yield Deviation("no layer after pooling applied", "stages", {"stages": ()}, card)


def _of_vectors(model: Model, setup: EvaluationSetup) -> Iterator[Deviation]:
    if setup.normalize:
        card = 'card: normalize = false, similarity = "dot"'
        yield Deviation("vectors not normalised", "norm", {"normalize": False}, card)
    else:
        card = 'card: normalize = true, similarity = "cos"'
        yield Deviation("cosine: vectors normalised", "norm", {"normalize": True}, card)
        name, far = "ranked by Euclidean distance", "no card has it; `ablate inference` does"
        yield Deviation(name, "similarity", {"euclidean": True}, far)
    for width in WIDTHS:
        if width < model.recipe.dim:
            far = f"`ablate inference` with dimensions = {width}"
            cut = {"dimensions": width}
            name = f"first {width} dimensions"
            yield Deviation(name, "dimensions", cut, far)
            if setup.normalize:
                uncut = {**cut, "scaled_after_cut": False}
                yield Deviation(f"{name}, not scaled again", "dimensions", uncut, far)
    far = '`ablate inference` with precision = "binary"'
    yield Deviation("binary vectors", "precision", {"precision": "binary"}, far)
    far = '`ablate inference` with precision = "int8"'
    yield Deviation("document vectors in int8", "precision", {"precision": "int8"}, far)
    half = "--set store_dtype=float16"
    yield Deviation("document vectors in float16", "precision", {"precision": "float16"}, half)
    brain = "no setting stores bfloat16; its rounding is harmless"
    yield Deviation("document vectors in bfloat16", "precision", {"precision": "bfloat16"}, brain)
    order = "write the ids again in the order in which the texts were encoded"
    yield Deviation("vectors in another order", "order", {"shuffled": True}, order)
    for shift in (1, -1):
        name = f"vectors one row {'late' if shift < 0 else 'early'}"
        yield Deviation(name, "order", {"shift": shift}, order)


def _of_protocol(setup: EvaluationSetup, facts: Facts) -> Iterator[Deviation]:
    for split in ("test", "dev", "train"):
        if split != facts.split:
            yield Deviation(f"split {split}", "split", {"split": split}, f"--split {split}")
    kept = not setup.keep_self
    name = "document with the query's id " + ("kept" if kept else "dropped")
    fact = f"dataset.toml: exclude_self = {'false' if kept else 'true'}"
    yield Deviation(name, "self-match", {"keep_self": kept}, fact)
    for depth in (10, 100, 1000):
        if depth < setup.depth:
            name = f"only {depth} documents retrieved per query"
            yield Deviation(name, "depth", {"depth": depth}, f"--depth {depth}")
    gain = "no setting does this: nDCG here has linear gain, as trec_eval"
    yield Deviation("exponential gain", "gain", {"exponential": True}, gain)
    ties = "no setting does this: ties here are broken by id, as trec_eval"
    yield Deviation("ties in the order of the corpus", "ties", {"input_order": True}, ties)
    mean = "no setting does this: means here are over all judged queries"
    name = "mean over answered queries only"
    yield Deviation(name, "mean", {"answered_only": True}, mean)
    grade = "--measure with (rel=2), such as R(rel=2)@100"
    yield Deviation("only grades of 2 or more relevant", "grade", {"least_grade": 2}, grade)

"""The model that is trained, as sentence-transformers has it, and its card.

Weights, tokenizer and pooling are those with which the suite evaluates the finished folder.
"""

import importlib
from typing import Any

import msgspec

from foundation.errors import BenchError
from retrievers.adapters.virtual_tokens import check_positions
from retrievers.models.card import Card
from retrievers.models.loading import load_network, load_tokenizer, quiet_transformers
from retrievers.models.lookup import of_no_checkpoint, replace_fields
from retrievers.models.model import Model
from retrievers.models.recipe import Recipe
from retrievers.models.st_writer import ST_POOLING
from retrievers.training.finetune.finetune_preset import Finetuning

OF_THE_START = ("licence", "citation")  # true of what is trained from it, too


def import_trainer() -> Any:
    """The package of sentence-transformers' bi-encoders, whose trainer has what it needs.

    Raises:
        BenchError: a package is not installed.
    """
    try:
        for name in ("accelerate", "datasets"):
            importlib.import_module(name)
        return importlib.import_module("sentence_transformers.sentence_transformer")
    except ImportError as error:
        raise BenchError(
            f"fine-tuning needs a package that cannot be imported: {error}",
            "pip install 'retrieval-bench[train]'",
        ) from error


def finished_card(model: Model, preset: Finetuning, trained_on: tuple[str, ...]) -> Card:
    """The card of the checkpoint that comes out.

    Raises:
        BenchError: the start has parts that are not trained here, or the preset does not fit.
    """
    card = model.card
    _check_trainable(model)
    blank = of_no_checkpoint().items()
    dropped = {name: value for name, value in blank if name not in OF_THE_START}
    kept = {
        "title": f"{card.name}, fine-tuned: {preset.title}",
        "checkpoint": ".",
        "dtype": "float32",
        "trained_on": tuple(dict.fromkeys((*card.trained_on, *trained_on))),
        "source": preset.source,
    }
    finished = preset.use.of(replace_fields(card, dropped | kept))
    if finished.pooling not in ST_POOLING:
        raise BenchError(
            f"pooling by {finished.pooling!r} is not trained here",
            f"set use.pooling to one of {', '.join(ST_POOLING)}",
        )
    _check_lengths(model, finished, preset)
    return finished


def training_recipe(model: Model, card: Card, preset: Finetuning) -> Recipe:
    """Recipe of vectors in training: as the card says, but for the preset's shorter texts."""
    return msgspec.structs.replace(
        model.recipe,
        pooling=card.pooling,
        normalize=card.normalize,
        similarity=card.similarity,
        title_join=card.title_join,
        segment_ids=card.segment_ids,
        truncation_side=card.truncation_side,
        lower_case=card.lower_case,
        max_query_tokens=preset.max_query_tokens or card.max_query_tokens,
        max_document_tokens=preset.max_document_tokens or card.max_document_tokens,
        dtype="float32",
    )


def build_student(model: Model, recipe: Recipe) -> Any:
    """A SentenceTransformer with the weights of a model, in float32.

    Raises:
        BenchError: the checkpoint is damaged, or a package is not installed.
    """
    package = import_trainer()
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    checkpoint = model.document
    if checkpoint is None:
        raise BenchError(f"{model.card.name} has no checkpoint to train")
    network = load_network(checkpoint, recipe)
    tokenizer = load_tokenizer(checkpoint, recipe.truncation_side, recipe.lower_case)
    local = {"local_files_only": True, "trust_remote_code": False}
    with quiet_transformers():  # of weights that are replaced in the next line
        transformer = Transformer(
            str(checkpoint.folder),
            model_kwargs={**local, "weights_only": True},
            processor_kwargs=dict(local),
            config_kwargs=dict(local),
        )
    transformer.model, transformer.processor = network, tokenizer
    transformer.max_seq_length = max(recipe.max_query_tokens, recipe.max_document_tokens)
    pooling = Pooling(network.config.hidden_size, pooling_mode=ST_POOLING[recipe.pooling])
    modules = [transformer, pooling, *([Normalize()] if recipe.normalize else [])]
    return package.SentenceTransformer(
        modules=modules,
        device="cpu",
        similarity_fn_name="cosine" if recipe.similarity == "cos" else "dot",
    )


def network_of(student: Any) -> Any:
    """The Hugging Face encoder inside a SentenceTransformer."""
    return student[0].model


def tokenizer_of(student: Any) -> Any:
    """The tokenizer inside a SentenceTransformer."""
    return student[0].processor


def _check_trainable(model: Model) -> None:
    card = model.card
    problems = {
        "it is no transformer": model.recipe.kind != "transformer" or bool(card.encoder),
        "it has two encoders": model.query is not None,
        "an adapter is attached": model.adapter is not None,
        f"it has {len(card.stages)} stages after pooling": bool(card.stages),
    }
    for problem, there in problems.items():
        if there:
            plain = "start from a plain encoder, such as --model bert"
            stack = "start from its base; with adapter.over, a new adapter is stacked on this one"
            raise BenchError(
                f"{card.name} cannot be fine-tuned: {problem}", stack if model.adapter else plain
            )


def _check_lengths(model: Model, card: Card, preset: Finetuning) -> None:
    limit = model.document.position_limit if model.document else None
    longest = max(
        card.max_query_tokens,
        card.max_document_tokens,
        preset.max_query_tokens or 1,
        preset.max_document_tokens or 1,
    )
    if limit is not None and longest > limit:
        raise BenchError(
            f"inputs of {longest} tokens do not fit {card.name}, which has positions for {limit}",
            "lower the lengths of the preset",
        )
    if preset.adapter is not None:
        check_positions(preset.adapter.virtual_tokens, longest, limit)

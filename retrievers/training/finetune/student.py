"""Student of a fine-tuning: the model as sentence-transformers has it, its card, and its inputs.

Prompts, titles, lengths and segment ids are those with which the finished folder is evaluated.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn import ModuleList
from transformers import PreTrainedModel

from foundation.errors import BenchError
from foundation.records import Record
from retrievers.adapters.adapter import AdaptedNetwork, add_adapter
from retrievers.encoders.protocol import Segments, join
from retrievers.encoders.tokens import TextTokenizer, load_tokenizer
from retrievers.encoders.tower import PaddedEncoder
from retrievers.models.adapter_files import ADAPTER_FOLDER
from retrievers.models.card import Card, Recipe, make_card_like
from retrievers.models.checkpoint import Checkpoint
from retrievers.models.loading import load_network, silence_transformers
from retrievers.models.resolve import Model
from retrievers.models.st_files import ST_POOLING
from retrievers.training.engine.identity import WEIGHT_SUFFIXES
from retrievers.training.engine.run_folder import save_checkpoint
from retrievers.training.preset import Biases, Finetuning, Part

Tensors = dict[str, torch.Tensor]


class ModelSize(Record, kw_only=True):
    """Size of a trained checkpoint or adapter.

    Attributes:
        parameters: parameters of the network including adapters. Tied parameters count once.
        trained: parameters that the optimizer changed.
        saved_bytes: total size of the weight files.
    """

    parameters: int
    trained: int
    saved_bytes: int


class Student:
    """SentenceTransformer ``model`` that is trained, with the selection of trained weights."""

    def __init__(self, preset: Finetuning, start: Model, card: Card) -> None:
        recipe = training_recipe(start, card, preset)
        torch.manual_seed(preset.seed)
        self.model = build_student(start, recipe)
        self.adapted: AdaptedNetwork | None = None
        if preset.adapter is not None:
            self.adapted = add_adapter(self.network, preset.adapter, start, preset.seed)
        if preset.part is not None:
            train_only(self.network, preset.part)
        if preset.gradient_checkpointing:
            self.network.gradient_checkpointing_enable({"use_reentrant": False})
        self.inputs = TextInputs(self.tokenizer, self.network, recipe)

    @property
    def network(self) -> Any:
        """Encoder of transformers inside the model."""
        return self.model[0].model

    @property
    def tokenizer(self) -> Any:
        """Tokenizer inside the model."""
        return self.model[0].processor

    def save(self, folder: Path, card: Card) -> None:
        """Write the trained weights to ``folder`` in evaluable form, ``card`` last."""
        if self.adapted is None:
            save_checkpoint(self.network, self.tokenizer, folder, card)
        else:
            self.adapted.save(folder, card)

    def size(self, folder: Path) -> ModelSize:
        """Return the size of the network and of the weights that were saved to ``folder``."""
        counts = [(weight.numel(), weight.requires_grad) for weight in self.network.parameters()]
        saved = (folder / ADAPTER_FOLDER).rglob("*") if self.adapted else folder.iterdir()
        return ModelSize(
            parameters=sum(count for count, _ in counts),
            trained=sum(count for count, requires_grad in counts if requires_grad),
            saved_bytes=sum(
                path.stat().st_size for path in saved if path.suffix in WEIGHT_SUFFIXES
            ),
        )


def trained_card(model: Model, preset: Finetuning, trained_on: tuple[str, ...]) -> Card:
    """Return the card of the trained checkpoint, or raise if ``model`` cannot be trained."""
    card = model.card
    _check_trainable(model)
    names = ", ".join(trained_on[:2]) + (" and others" if len(trained_on) > 2 else "")
    loss = f"{preset.loss.__struct_config__.tag} loss"
    if preset.loss.matryoshka:
        sizes = (model.recipe.dim, *preset.loss.matryoshka)
        loss += f" at {', '.join(map(str, sizes))} dimensions"
    trained = make_card_like(
        card,
        # Not the preset's title, which --set may contradict.
        title=f"{card.name}, fine-tuned on {names} ({loss})",
        checkpoint=".",
        dtype="float32",
        trained_on=tuple(dict.fromkeys((*card.trained_on, *trained_on))),
        source=preset.source,
        licence=card.licence,
        citation=card.citation,
    )
    finished = preset.use.of(trained)
    if finished.pooling not in ST_POOLING:
        raise BenchError(
            f"models with pooling {finished.pooling!r} cannot be fine-tuned",
            f"Set use.pooling to one of {', '.join(ST_POOLING)}.",
        )
    _check_lengths(model, finished, preset)
    _check_dimensions(model, finished, preset)
    return finished


def training_recipe(model: Model, card: Card, preset: Finetuning) -> Recipe:
    """Return the recipe of vectors in training: the card's, with the preset's shorter lengths."""
    changes = {
        **card.usage,
        "max_query_tokens": preset.max_query_tokens or card.max_query_tokens,
        "max_document_tokens": preset.max_document_tokens or card.max_document_tokens,
        "dtype": "float32",
    }
    return msgspec.structs.replace(model.recipe, **changes)


def build_student(model: Model, recipe: Recipe) -> Any:
    """Return a SentenceTransformer with the weights of ``model``, in float32."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    checkpoint = model.checkpoint
    network = load_network(checkpoint, recipe)
    tokenizer = load_tokenizer(checkpoint, recipe.truncation_side, recipe.lower_case)
    transformer = load_module(checkpoint)
    transformer.model, transformer.processor = network, tokenizer
    transformer.max_seq_length = recipe.max_tokens
    pooling = Pooling(network.config.hidden_size, pooling_mode=ST_POOLING[recipe.pooling])
    modules = [transformer, pooling, *([Normalize()] if recipe.normalize else [])]
    return SentenceTransformer(
        modules=modules,
        device="cpu",
        similarity_fn_name="cosine" if recipe.similarity == "cos" else "dot",
    )


def load_module(checkpoint: Checkpoint, task: str = "feature-extraction", **config: Any) -> Any:
    """Load a checkpoint as sentence-transformers does, with further values of its ``config``."""
    from sentence_transformers.base.modules import Transformer

    local = {"local_files_only": True, "trust_remote_code": False}
    with silence_transformers():
        return Transformer(
            str(checkpoint.folder),
            transformer_task=task,
            model_kwargs={**local, "weights_only": True},
            processor_kwargs=dict(local),
            config_kwargs={**local, **config},
        )


def train_only(network: PreTrainedModel, part: Part) -> None:
    """Freeze all weights of ``network`` outside ``part``."""
    if isinstance(part, Biases):
        trained = {name for name, _ in network.named_parameters() if name.endswith(".bias")}
    else:
        trained = _last_layer_parameters(network, part.layers)
    for name, weight in network.named_parameters():
        weight.requires_grad_(name in trained)


def _last_layer_parameters(network: PreTrainedModel, count: int) -> set[str]:
    depth = network.config.num_hidden_layers
    if count > depth:
        raise BenchError(
            f"part.layers is {count}, but the encoder has {depth} layers",
            f"Use part.layers = {depth} or less.",
        )
    above = next(
        f"{name}."
        for name, module in network.named_modules()
        if isinstance(module, ModuleList) and len(module) == depth
    )
    kept = tuple(f"{above}{layer}." for layer in range(depth - count, depth))
    return {name for name, _ in network.named_parameters() if name.startswith(kept)}


class TextInputs:
    """Tokenization of queries and documents by one recipe into padded batches."""

    def __init__(self, tokenizer: Any, network: Any, recipe: Recipe) -> None:
        own = copy.deepcopy(tokenizer)  # the other one is saved
        self._texts, self._recipe = TextTokenizer.of(own, network, recipe), recipe
        self._batches = PaddedEncoder(None, torch.device("cpu"), int(tokenizer.pad_token_id or 0))
        self._separator = str(tokenizer.sep_token or "")
        if recipe.title_join == "sep" and not self._separator:
            raise BenchError(
                f"{recipe.model}'s tokenizer has no separator token", 'Use title_join = "space".'
            )

    def queries(self, texts: Sequence[str]) -> Tensors:
        """Return token ids, mask and segment ids of queries, int64 ``(n, longest)``."""
        segments: list[Segments] = [(self._recipe.prompts.query + text, None) for text in texts]
        tokens = self._texts(segments, self._recipe.max_query_tokens)
        return self._batches.pack_batch(tokens).inputs

    def documents(self, titles: Sequence[str], texts: Sequence[str]) -> Tensors:
        """Return token ids, mask and segment ids of documents, int64 ``(n, longest)``."""
        rule, prompt = self._recipe.title_join, self._recipe.prompts.document
        pairs = zip(titles, texts, strict=True)
        segments = [join(rule, prompt, *pair, self._separator) for pair in pairs]
        tokens = self._texts(segments, self._recipe.max_document_tokens)
        return self._batches.pack_batch(tokens).inputs


def _check_trainable(model: Model) -> None:
    card = model.card
    problems = {
        "it is not a transformer": not model.recipe.traits.is_network or bool(card.encoder),
        "it has two encoders": model.query is not None,
        "an adapter is attached": model.adapter is not None,
        f"it has {len(card.stages)} stages after pooling": bool(card.stages),
    }
    for problem, there in problems.items():
        if there:
            other = "its base" if model.adapter else "a plain encoder, such as --model bert"
            raise BenchError(f"{card.name} cannot be fine-tuned: {problem}", f"Start from {other}.")


def _check_dimensions(model: Model, card: Card, preset: Finetuning) -> None:
    whole, cut, name = model.recipe.dim, preset.loss.matryoshka, model.card.name
    if cut and cut[0] >= whole:
        problem = f"loss.matryoshka has {cut[0]} dimensions, and vectors of {name} have {whole}"
        raise BenchError(problem, f"Use fewer than {whole}.")
    if cut and not card.normalize:
        problem = f"loss.matryoshka needs unit vectors, and {name} does not normalize them"
        raise BenchError(problem, "Use --set use.normalize=true --set use.similarity=cos.")


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
            f"{card.name} has positions for {limit} tokens, but inputs have up to {longest}",
            "Lower the lengths of the preset.",
        )

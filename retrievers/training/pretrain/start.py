"""Start of a training: the weights, heads and tokenizer of a checkpoint, or a new model.

Every weight of the encoder must be present. The language-model head may be missing, as in
all-MiniLM-L6-v2, and is new then. The folder ``heads`` of a pre-trained checkpoint holds weights
that only a further pre-training needs.

The vocabulary of a new model can be trained on the texts: WordPiece (Schuster and Nakajima, ICASSP
2012; Wu et al., "Google's Neural Machine Translation System", 2016) with Hugging Face
``tokenizers``. That trainer numbers single-character continuation pieces in an order that differs
between processes, and breaks ties by these numbers. Here they are numbered in advance.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from foundation.errors import BenchError, wrap_errors
from foundation.files import replace_entries, sha256_of_file
from foundation.records import decode_json, write_json
from retrievers.encoders.tokens import load_tokenizer
from retrievers.models.checkpoint import HEADS, HEADS_FILE, Checkpoint
from retrievers.models.loading import HEAD_ATTRIBUTES, read_weights
from retrievers.models.locate import locate_card, locate_checkpoint
from retrievers.models.names import find_card
from retrievers.models.positions import stated_positions
from retrievers.training.objectives.masked_lm import MaskedLM
from retrievers.training.objectives.objective import Objective
from retrievers.training.preset import Finetuning, Scratch, Start

OBJECTIVE_FILE = "objective.json"
NEW_HEADS = "Remove its folder to begin with new heads."
# Keys of Hugging Face checkpoints that may be missing.
HEAD_KEYS = re.compile(rf"^({'|'.join(sorted(set(HEAD_ATTRIBUTES.values())))})\.|position_ids")
PADDING, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"  # prefix of pieces inside a word
CHARACTERS = 1_000  # the most frequent ones: words with others become unknown


@dataclass(frozen=True)
class StartModel:
    """Encoder with its language-model head that a training begins with.

    ``folder`` is that of the checkpoint, None for a new model.
    """

    encoder: MaskedLM
    tokenizer: Any
    folder: Path | None
    trained_on: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """Longest input in tokens."""
        limit = stated_positions(self.encoder.config.to_dict())
        assert limit is not None  # BERT and RoBERTa have a table of positions
        return limit

    def build_module(self, objective: Objective, seed: int) -> nn.Module:
        """Build the objective's module with the checkpoint's heads, or new ones from ``seed``."""
        torch.manual_seed(seed)
        module = objective.build_module(self.encoder)
        if self.folder is not None:
            load_heads(module, self.encoder.encoder, self.folder, objective)
        return module


def open_start(start: Start, seed: int, documents: Sequence[str] = ()) -> StartModel:
    """Load a checkpoint or make a new model, with a vocabulary of ``documents`` if asked for."""
    torch.manual_seed(seed)
    if start.scratch is not None:
        return _new_model(start.scratch, documents)
    from transformers import AutoModelForMaskedLM

    checkpoint, trained_on = find_checkpoint(start.model)
    hint = f"Start from a checkpoint of one of these types: {', '.join(HEAD_ATTRIBUTES)}."
    with wrap_errors(f"the weights in {checkpoint.folder} cannot be trained", hint):
        model, report = read_weights(AutoModelForMaskedLM, checkpoint, torch.float32)
    missing = sorted(key for key in report["missing_keys"] if not HEAD_KEYS.search(key))
    if missing:
        raise BenchError(
            f"{checkpoint.folder} lacks {len(missing)} weights of its encoder: "
            f"{', '.join(missing[:5])}",
            "Does config.json belong to these weights?",
        )
    return StartModel(MaskedLM(model), load_tokenizer(checkpoint), checkpoint.root, trained_on)


def find_checkpoint(model: str) -> tuple[Checkpoint, tuple[str, ...]]:
    """Find the checkpoint of a card, folder or Hub id, and what it was trained on."""
    found = find_card(model)
    if found is None:
        return Checkpoint.of_network(locate_checkpoint(model, base=Path.cwd())), ()
    card, base = found
    if card.adapter or card.query_checkpoint:
        part = "an adapter" if card.adapter else "a second encoder"
        raise BenchError(
            f"{card.name} has {part}, which would be lost", "Start from a plain encoder."
        )
    if not card.checkpoint or card.missing:
        raise BenchError(
            f"{card.name} has no checkpoint to start from", card.missing or "Use another model."
        )
    return Checkpoint.of_network(locate_card(card, base)), card.trained_on


def hash_start(model: str, role: str = "") -> dict[str, str]:
    """Return the sha256 of each file that a training reads of ``model``, by name after ``role``."""
    checkpoint, _ = find_checkpoint(model)
    hashes = {**checkpoint.hashes, **hash_heads(checkpoint.root)}
    return {f"{role}{name}": digest for name, digest in hashes.items()}


def hash_teacher(preset: Finetuning) -> dict[str, str]:
    """Return the sha256 of each file of the teacher that ``preset`` names, or of its start."""
    named = preset.teacher and (preset.teacher.model or preset.teacher.start)
    return hash_start(named, "teacher ") if named else {}


def hash_heads(root: Path) -> dict[str, str]:
    """Return the sha256 of each file that only a pre-training reads below ``root``, by name."""
    files = {f"{HEADS}/{name}": root / HEADS / name for name in (HEADS_FILE, OBJECTIVE_FILE)}
    return {name: sha256_of_file(path) for name, path in files.items() if path.is_file()}


def hash_initial(start: Start) -> dict[str, str]:
    """Return the sha256 of each file that ``start`` reads: of its model or of its tokenizer's."""
    named = start.model or (start.scratch.tokenizer if start.scratch else "")
    return hash_start(named) if named else {}


def _new_model(scratch: Scratch, documents: Sequence[str]) -> StartModel:
    from transformers import BertConfig, BertForMaskedLM

    if scratch.vocabulary is None:
        tokenizer = load_tokenizer(find_checkpoint(scratch.tokenizer)[0])
    else:
        tokenizer = train_tokenizer(documents, scratch.vocabulary)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=scratch.width,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        intermediate_size=scratch.intermediate,
        max_position_embeddings=scratch.positions,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = scratch.positions
    return StartModel(MaskedLM(BertForMaskedLM(config)), tokenizer, None, ())


def save_heads(module: nn.Module, encoder: nn.Module, out: Path, objective: Any) -> None:
    """Write the weights of ``module`` outside ``encoder``, and the objective, below ``out``."""
    tensors = {name: value.detach().cpu() for name, value in _head_parameters(module, encoder)}
    with replace_entries(out / HEADS) as folder:
        save_file(tensors, str(folder / HEADS_FILE))
        write_json(folder / OBJECTIVE_FILE, objective)


def load_heads(module: nn.Module, encoder: nn.Module, folder: Path, objective: Any) -> None:
    """Load what `save_heads` wrote to the checkpoint ``folder``, if it has heads.

    All heads are loaded if all fit, for example from Condenser to coCondenser. Otherwise only the
    language-model head is loaded, which all objectives have.
    """
    path = folder / HEADS / HEADS_FILE
    if not path.is_file():
        return
    with wrap_errors(f"{path} is damaged", NEW_HEADS):
        heads = load_file(str(path))
    settings = folder / HEADS / OBJECTIVE_FILE
    saved = decode_json(settings.read_bytes(), dict[str, Any], settings, NEW_HEADS)
    parameters = _head_parameters(module, encoder)
    all_fit = all(name in heads and heads[name].shape == value.shape for name, value in parameters)
    if saved != msgspec.to_builtins(objective) and not all_fit:
        parameters = [(name, value) for name, value in parameters if name.startswith("encoder.")]
    for name, parameter in parameters:
        if name not in heads or heads[name].shape != parameter.shape:
            raise BenchError(f"{path} does not fit this model: {name}", NEW_HEADS)
        parameter.data.copy_(heads[name])


def _head_parameters(module: nn.Module, encoder: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of ``module`` outside ``encoder`` and not tied to it, by name."""
    inside = {id(parameter) for parameter in encoder.parameters()}
    return [(name, value) for name, value in module.named_parameters() if id(value) not in inside]


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """Train BERT's uncased tokenizer with a vocabulary of up to ``size`` pieces."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = _characters(texts, normalizer)
    inside = [CONTINUATION + character for character in characters]
    smallest = len(SPECIAL) + 2 * len(characters)
    if not characters or smallest > size:
        raise BenchError(
            f"a vocabulary of {size:,} pieces is too small for {len(characters):,} characters",
            f"Set vocabulary to {max(smallest, 100)} or more, and use texts with words.",
        )
    trained = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *inside],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    # The trainer marks single-character pieces as special tokens, so only its vocabulary is used.
    vocabulary = trained.get_vocab()
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(
        (SEP, vocabulary[SEP]), (CLS, vocabulary[CLS])
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
    )


def _characters(texts: Sequence[str], normalizer: Any) -> list[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted([character for character in ranked if not character.isspace()][:CHARACTERS])

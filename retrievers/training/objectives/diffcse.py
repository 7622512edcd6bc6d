"""DiffCSE: SimCSE, and the sentence vector must tell which words of the text were replaced.

Chuang et al., "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings", NAACL 2022,
https://arxiv.org/abs/2204.10298, and https://github.com/voidism/DiffCSE. With h_i and h_i' the
vectors of text i under two dropout masks, the contrast is that of `simcse`. Tokens of the text x
are masked, once for each of its two readings; the generator G, a smaller masked language model that
is not trained, fills them in, x'' = G(x'); and the discriminator D, which starts as a copy of the
encoder, says of each token of x'' whether it was replaced:

    L_con = − 1/n Σ_i log( exp(cos(h_i, h_i') / t) / Σ_j exp(cos(h_i, h_j') / t) )
    L_rtd = cross-entropy of D(x'', h)_p to [x''_p ≠ x_p], mean over all tokens of the 2n readings
    L     = L_con + λ L_rtd

D reads h where the embedding of ``[CLS]`` would be, so that what the text was must be in h, and the
gradient of L_rtd reaches the encoder through h alone. h is the last hidden state at ``[CLS]`` after

    dense (width → 2 width, no bias), batch norm, ReLU, dense (→ width, no bias), batch norm

whose second norm has no scale and no shift. Batch norm is over the 2n readings of a process. D and
these layers are dropped: vectors are ``[CLS]`` before them, as in the authors' evaluation.

As in the authors' code, G says its likeliest token with its dropout on, single tokens are masked
rather than words, 80 % by the mask, 10 % by a random token, and L_rtd is a mean where the paper
has a sum. There G also speaks where nothing was masked and the mean counts padding; here, as in the
paper's text, only masked tokens are replaced, and padding is not counted.

Defaults: t = 0.05, λ = 0.005, 30 % of the tokens masked, dropout of the checkpoint (0.1). For
BERT-base: G is DistilBERT, 64 texts in a batch, learning rate 7e-6, two epochs over a million
sentences of Wikipedia, 32 tokens.
"""

import copy
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor, from_numpy, nn
from torch.nn import functional

from foundation.arrays import BoolArray, Int64Array
from foundation.records import Record
from retrievers.training.objectives.contrast import cosine_contrast
from retrievers.training.objectives.example import Collator, Example
from retrievers.training.objectives.generator import check_generator, load_generator
from retrievers.training.objectives.gradient_cache import in_sub_batches
from retrievers.training.objectives.masked_lm import MaskedLM, initialise, summed
from retrievers.training.objectives.masking import NOT_A_WORD, Vocabulary, replace_masked, tokenize
from retrievers.training.objectives.masking import generator as random_numbers
from retrievers.training.objectives.objective import Rate
from retrievers.training.objectives.simcse import check_dropout, freeze_head

RANDOM = "random"


class DiffCSE(Record, kw_only=True, tag_field="name", tag="diffcse"):
    """Settings of DiffCSE.

    Attributes:
        generator: card, folder or Hub id of a masked language model with its head; or ``random``,
            which needs no model and is not in the paper: masked tokens are replaced by any of the
            vocabulary, which are easier to find.
        temperature: t.
        detection_weight: λ.
        mask: share of the tokens that the generator does not see.
        sub_batch: texts that are read at a time, see `gradient_cache`; None reads all at once. Each
            text of a batch is read twice.
    """

    name: ClassVar[str] = "diffcse"
    contrasts: ClassVar[bool] = True
    similarity: ClassVar[str] = "cos"
    generator: str
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.05
    detection_weight: Annotated[float, msgspec.Meta(gt=0)] = 0.005
    mask: Rate = 0.3
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def build_module(self, encoder: MaskedLM) -> nn.Module:
        """See `Objective`.

        Raises:
            BenchError: the encoder has no dropout, or the generator cannot be loaded.
        """
        return DiffCSETraining(encoder, self)

    def collator(self, tokenizer: Any, max_tokens: int) -> Collator:
        """See `Objective`; the texts as they are, and two masked copies.

        Raises:
            BenchError: the generator reads other tokens, or fewer.
        """
        vocabulary = Vocabulary.of(tokenizer)
        if self.generator != RANDOM:
            check_generator(self.generator, tokenizer, max_tokens)

        def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
            rng = random_numbers(examples)
            tokens = tokenize(tokenizer, [example["text"] for example in examples], max_tokens)
            ids, words = (np.tile(rows, (2, 1)) for rows in (tokens.ids, tokens.words))
            masked = (rng.random(ids.shape) < self.mask) & (words != NOT_A_WORD)
            return {
                "input_ids": from_numpy(tokens.ids),
                "attention_mask": from_numpy(tokens.real),
                "shown_ids": from_numpy(self._shown(ids, masked, vocabulary, rng)),
                "masked": from_numpy(masked),
            }

        return collate

    def _shown(
        self, ids: Int64Array, masked: BoolArray, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> Int64Array:
        if self.generator != RANDOM:
            return replace_masked(ids, masked, vocabulary, rng)
        return np.where(masked, rng.integers(0, vocabulary.size, ids.shape), ids)


class DiffCSETraining(nn.Module):
    """The encoder, the layers after it, and the discriminator.

    Raises:
        BenchError: see `DiffCSE.build_module`.
    """

    def __init__(self, encoder: MaskedLM, settings: DiffCSE) -> None:
        super().__init__()
        check_dropout(encoder, "DiffCSE")
        freeze_head(encoder)
        self.encoder = encoder
        self.projector = projector(encoder.config)
        self.discriminator = Discriminator(encoder)
        self.settings = settings
        named = settings.generator != RANDOM
        self.generator = load_generator(settings.generator) if named else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, shown_ids: Tensor, masked: Tensor
    ) -> dict[str, Tensor]:
        """``contrast``, ``detection``, which is λ L_rtd, and their sum.

        Args:
            input_ids: int64 ``(n, length)``.
            attention_mask: bool ``(n, length)``, False at padding.
            shown_ids: int64 ``(2n, length)``, masked copies of the first and second readings: what
                the generator reads or, where there is none, the texts with replaced tokens.
            masked: bool ``(2n, length)``.
        """
        size = self.settings.sub_batch
        ids, real = input_ids.repeat(2, 1), attention_mask.repeat(2, 1)
        (states,) = in_sub_batches(self.read, (ids, real), size)
        vectors: Tensor = self.projector(states)
        (edited,) = in_sub_batches(self.edited, (shown_ids, real, masked), size)
        batch = (edited, real, edited != ids, vectors)
        (losses,) = in_sub_batches(self.discriminator.losses, batch, size)
        first, second = vectors.chunk(2)
        return summed(
            contrast=cosine_contrast(first, second, self.settings.temperature),
            detection=self.settings.detection_weight * losses.sum() / real.sum(),
        )

    def read(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """Last hidden states at ``[CLS]``, ``(texts, width)``."""
        return (self.encoder(input_ids, attention_mask)[-1][:, 0],)

    def edited(self, shown: Tensor, real: Tensor, masked: Tensor) -> tuple[Tensor]:
        """The texts with what the generator replaced, int64 ``(texts, length)``."""
        if self.generator is None:
            return (shown,)
        return (self.generator.filled(shown, real, masked, dropout=self.training),)


def projector(config: Any) -> nn.Module:
    """From ``[CLS]`` to the vectors that are contrasted, ``(texts, width)`` both.

    Statistics are those of the batch alone: it is never used outside of training.
    """
    width = config.hidden_size
    up, down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
    for layer in (up, down):
        nn.init.normal_(layer.weight, std=config.initializer_range)
    first = nn.BatchNorm1d(2 * width, track_running_stats=False)
    second = nn.BatchNorm1d(width, affine=False, track_running_stats=False)
    return nn.Sequential(up, first, nn.ReLU(), down, second)


class Discriminator(nn.Module):
    """A copy of the encoder that says which tokens were replaced, given the vector of the text."""

    def __init__(self, encoder: MaskedLM) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder.encoder)
        self.head = nn.Linear(encoder.config.hidden_size, 2)
        initialise(self.head, encoder.config.initializer_range)

    def losses(
        self, input_ids: Tensor, attention_mask: Tensor, replaced: Tensor, vectors: Tensor
    ) -> tuple[Tensor]:
        """For each text the sum of the cross-entropies of its tokens, ``(texts,)``.

        Args:
            input_ids: int64 ``(texts, length)``, tokens replaced.
            attention_mask: bool ``(texts, length)``, False at padding.
            replaced: bool ``(texts, length)``.
            vectors: of the texts as they were, ``(texts, width)``.
        """
        logits = self.head(self.states(input_ids, attention_mask, vectors))
        losses = functional.cross_entropy(
            logits.flatten(0, 1), replaced.long().flatten(), reduction="none"
        )
        return ((losses.view_as(input_ids) * attention_mask).sum(dim=1),)

    def states(self, input_ids: Tensor, attention_mask: Tensor, vectors: Tensor) -> Tensor:
        """Last hidden states ``(texts, length, width)``; the vector is embedded at position 0."""

        def conditioned(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
            return torch.cat([vectors[:, None].to(embedded.dtype), embedded[:, 1:]], dim=1)

        # The model has no other way in between its embeddings and its first layer.
        hook = self.encoder.embeddings.register_forward_hook(conditioned)
        try:
            states: Tensor = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask.long(), return_dict=True
            ).last_hidden_state
        finally:
            hook.remove()
        return states

"""A WordPiece vocabulary that is trained on the texts which a model from scratch will read.

Schuster and Nakajima, "Japanese and Korean Voice Search", ICASSP 2012; Wu et al., "Google's Neural
Machine Translation System", 2016; as trained by Hugging Face ``tokenizers``: from single characters
on, the most frequent pair of neighbouring pieces becomes a piece. That trainer numbers the pieces
of one character inside a word in an order that is random in each process, and breaks ties by these
numbers. Here they are numbered beforehand, so that equal texts give equal vocabularies.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from foundation.errors import BenchError

PADDING, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INSIDE = "##"  # before a piece that begins inside a word
CHARACTERS = 1_000  # the most frequent ones; words with others are unknown


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """BERT's uncased tokenizer with a vocabulary of its own.

    Args:
        size: of the vocabulary in pieces, the five special ones among them; texts with fewer words
            give a smaller one.

    Returns:
        A fast tokenizer of Hugging Face.

    Raises:
        BenchError: the characters of the texts alone are more than ``size`` pieces, or there are
            none.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=True)
    characters = _characters(texts, normalizer)
    inside = [INSIDE + character for character in characters]
    smallest = len(SPECIAL) + 2 * len(characters)
    if not characters or smallest > size:
        raise BenchError(
            f"a vocabulary of {size:,} pieces has no room for the {len(characters):,} characters "
            "of the texts",
            f"vocabulary = {max(smallest, 100)} or more, and texts with words",
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
    # The trainer leaves the pieces of one character as special tokens: only its vocabulary is kept.
    tokenizer = Tokenizer(models.WordPiece(trained.get_vocab(), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    return _wrapped(tokenizer)


def _characters(texts: Sequence[str], normalizer: Any) -> list[str]:
    """The most frequent characters of the texts, sorted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted([character for character in ranked if not character.isspace()][:CHARACTERS])


def _wrapped(tokenizer: Any) -> Any:
    """With BERT's special tokens around each text."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = tokenizer.get_vocab()
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

"""A real training: the Hugging Face Trainer on a tiny BERT."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from tests.support.tiny_checkpoints import SIZES, VOCABULARY, WORDS, write_tokenizer

STEPS = (2, 4, 6)  # with a checkpoint


def train(folder: Path) -> None:
    """Train six steps."""
    tokenizer = write_tokenizer(folder / "tokenizer")
    torch.manual_seed(0)
    sizes = {**SIZES, "initializer_range": 0.02}
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, **sizes)
    )
    texts = [f"{one} {other}" for one in WORDS for other in WORDS]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS[-1],
        per_device_train_batch_size=16,
        learning_rate=0.003,
        save_steps=STEPS[0],
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=[tokenizer(text) for text in texts],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
        processing_class=tokenizer,
    ).train()

"""A real training: the Hugging Face Trainer on a tiny BERT. As a program: see `main`."""

import sys
import time
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.support.tiny_checkpoints import SIZES, VOCABULARY, WORDS, write_tokenizer


class Pause(TrainerCallback):
    """Waits after each checkpoint, so that another process sees it come."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_save(self, args, state, control, **others) -> None:
        time.sleep(self.seconds)


def train(
    folder: Path, steps: int, save_every: int, pause_s: float = 0.0, keep: int | None = None
) -> None:
    """Train, with a checkpoint every so many steps; ``keep`` of them stay."""
    tokenizer = write_tokenizer(folder / "tokenizer")
    torch.manual_seed(0)
    sizes = {**SIZES, "initializer_range": 0.02}
    model = BertForMaskedLM(
        BertConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, **sizes)
    )
    texts = [f"{one} {other}" for one in WORDS for other in WORDS]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=0.003,
        save_steps=save_every,
        save_total_limit=keep,
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
        callbacks=[Pause(pause_s)],
    ).train()


def main() -> None:
    """``python -m tests.support.training FOLDER STEPS SAVE_EVERY PAUSE_S [KEEP]``."""
    folder, steps, save_every, pause_s, *keep = sys.argv[1:]
    train(Path(folder), int(steps), int(save_every), float(pause_s), *map(int, keep))


if __name__ == "__main__":
    main()

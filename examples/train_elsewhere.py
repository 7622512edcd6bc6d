"""A training with transformers alone, to be a row of a grid: in-batch negatives on [CLS].

    python examples/train_elsewhere.py --start BERT --pairs FILE --lr 2e-5 --seed 0 --output OUT

Each line of the pairs is a query, a tab, and a relevant text. See docs/how-to/trained-elsewhere.md.
"""

import argparse
import random
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--start", required=True)
parser.add_argument("--pairs", type=Path, required=True)
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--output", required=True)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=16)
arguments = parser.parse_args()

torch.manual_seed(arguments.seed)
order = random.Random(arguments.seed)
tokenizer = AutoTokenizer.from_pretrained(arguments.start)
model = AutoModel.from_pretrained(arguments.start)
pairs = [line.split("\t") for line in arguments.pairs.read_text(encoding="utf-8").splitlines()]
optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)


def encode(texts: tuple[str, ...]) -> torch.Tensor:
    """Return the [CLS] states of texts, float32 ``(texts, width)``."""
    inputs = tokenizer(
        list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt"
    )
    return model(**inputs).last_hidden_state[:, 0]


for step in range(arguments.steps):
    batch = order.sample(pairs, min(arguments.batch, len(pairs)))
    queries, texts = zip(*batch, strict=True)
    scores = encode(queries) @ encode(texts).T
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(batch)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)

model.save_pretrained(arguments.output)
tokenizer.save_pretrained(arguments.output)

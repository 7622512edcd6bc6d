"""What several commands do: open what was named, and print."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.evaluate.judging import check_relevant
from bench.monitor.collections import Opened
from datasets_cfg.dataset import Dataset, open_dataset
from datasets_cfg.published import check_published
from datasets_cfg.remembered import remember
from datasets_cfg.verify import remarks
from reports.tables import facts_table, finding_lines
from retrievers.adapters.bases import Bases
from retrievers.encoders.protocol import Encoder
from retrievers.models.model import Model, open_encoder, resolve_model


@dataclass(frozen=True)
class Contender:
    """A model with its encoder; BM25 has none."""

    model: Model
    encoder: Encoder | None

    def on(self, collection: str) -> "Contender":
        """With the prompts of one collection, and the same loaded weights."""
        encoder = self.encoder.for_dataset(collection) if self.encoder else None
        return Contender(self.model.for_dataset(collection), encoder)


def open_contender(name: str, options: argparse.Namespace, bases: Bases | None = None) -> Contender:
    """The model of this name with its encoder, as the options of the command line say.

    Adapters that are opened with the same ``bases`` share the weights of their base.
    """
    model = resolve_model(
        name,
        like=options.like,
        adapter=options.adapter,
        dtype=options.dtype,
        backend=options.backend,
        store_dtype=options.store_dtype or "float32",
        max_query_tokens=options.max_query_tokens,
        max_document_tokens=options.max_document_tokens,
        trust_code=options.trust_code,
    )
    if model.recipe.kind == "bm25":
        return Contender(model, None)
    return Contender(model, open_encoder(model, getattr(options, "device", "auto"), bases=bases))


def open_named(
    name: str, options: argparse.Namespace, cache_dir: Path, with_corpus: bool = True
) -> Dataset:
    """The collection of this name, found or downloaded as the options say.

    Without its corpus, a run file can be scored.
    """
    return open_dataset(
        name,
        cache_dir=cache_dir,
        data_dir=options.data_dir,
        split=getattr(options, "split", None),
        download=not options.offline,
        with_corpus=with_corpus,
    )


def open_evaluated(name: str, options: argparse.Namespace, cache_dir: Path) -> Opened:
    """A collection to evaluate on: checked, and what its scores depend on said on stderr.

    Raises:
        BenchError: it cannot be had, is not the published one of its name, or its corpus has no
            relevant document.
    """
    dataset = open_named(name, options, cache_dir)
    official = check_published(dataset, options.allow_mismatch)
    check_relevant(dataset)
    for finding in remarks(dataset):
        print(finding_lines(finding, dataset.name), file=sys.stderr)
    remember(dataset)
    return Opened(dataset, official)


def print_rows(rows: Sequence[dict[str, str]], as_json: bool) -> None:
    """Names with a line about each, as a table or as JSON."""
    if as_json:
        print_json(rows)
    else:
        print(facts_table([(row["name"], row["about"]) for row in rows]))


def print_json(document: Any) -> None:
    """One document on stdout."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())

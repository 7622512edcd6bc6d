"""A model as other tools take one: a folder in the form of sentence-transformers."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from foundation.errors import BenchError
from retrievers.models.model import Model
from retrievers.models.recipe import Recipe
from retrievers.models.st_folder import is_st_folder

POOLING: Mapping[str, str] = MappingProxyType({"cls": "cls", "mean": "mean", "last": "lasttoken"})
MODULES = "sentence_transformers.models"


@contextmanager
def as_sentence_transformers(model: Model, place: Path) -> Iterator[Path]:
    """The model's own folder where it is one, else a temporary one that links to its files.

    The temporary folder says how the checkpoint is used: pooling, length and normalisation of
    the recipe.

    Raises:
        BenchError: what this model does cannot be told to sentence-transformers.
    """
    checkpoint = model.document
    problems = _problems(model)
    if checkpoint is None or problems:
        raise BenchError(
            f"{model.card.name} cannot be raced against other tools: {', '.join(problems)}",
            "leave --against out",
        )
    if is_st_folder(checkpoint.root):
        yield checkpoint.root
        return
    with TemporaryDirectory(dir=place) as temporary:
        folder = Path(temporary)
        for path in checkpoint.folder.iterdir():
            (folder / path.name).symlink_to(path.resolve())
        _describe(folder, model.recipe)
        yield folder


def _problems(model: Model) -> list[str]:
    recipe, checkpoint = model.recipe, model.document
    if recipe.kind != "transformer" or checkpoint is None:
        return ["it has no transformer"]
    plain = not is_st_folder(checkpoint.root)
    problems = {
        "its queries have an encoder of their own": model.query is not None,
        "it has an adapter": recipe.adapter is not None,
        f"its title_join is {recipe.title_join}": recipe.title_join != "space",
        f"its pooling is {recipe.pooling}": plain and recipe.pooling not in POOLING,
        "it has layers after pooling": plain and bool(recipe.stages),
    }
    return [problem for problem, is_one in problems.items() if is_one]


def _describe(folder: Path, recipe: Recipe) -> None:
    """``modules.json`` and the settings of each module."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if recipe.normalize:
        modules.append(("2_Normalize", "Normalize"))
    entries = [
        {"idx": place, "name": str(place), "path": path, "type": f"{MODULES}.{kind}"}
        for place, (path, kind) in enumerate(modules)
    ]
    _write(folder / "modules.json", entries)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": recipe.max_document_tokens})
    pooling = {"word_embedding_dimension": recipe.dim, "pooling_mode": POOLING[recipe.pooling]}
    _write(folder / "1_Pooling" / "config.json", pooling)
    (folder / "2_Normalize").mkdir(exist_ok=True)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")

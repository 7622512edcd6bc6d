"""A model as other tools take one: a folder in the form of sentence-transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from foundation.errors import BenchError
from retrievers.models.model import Model
from retrievers.models.recipe import Prompts
from retrievers.models.st_folder import is_st_folder
from retrievers.models.st_writer import ST_POOLING, write_st_files


@contextmanager
def as_sentence_transformers(model: Model, place: Path) -> Iterator[Path]:
    """The model's own folder where it is one, else a temporary one that links to its files.

    The temporary folder says how the checkpoint is used: pooling, length and normalisation of
    the recipe, no prompts, which a `Job` has. The checkpoint's own folder is only read.

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
        length = model.recipe.max_document_tokens
        alone = msgspec.structs.replace(model.recipe, prompts=Prompts(), max_query_tokens=length)
        write_st_files(folder, alone, alone.dim)
        for path in checkpoint.folder.iterdir():  # after what is written, never through a link
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path.resolve())
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
        f"its pooling is {recipe.pooling}": recipe.pooling not in ST_POOLING,
        "it has layers after pooling": plain and bool(recipe.stages),
    }
    return [problem for problem, is_one in problems.items() if is_one]

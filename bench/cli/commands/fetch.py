"""``fetch``: download collections and models, and build the corpora."""

from bench.cli.commands.common import load_model, workspace
from bench.cli.options.data import FetchOptions
from bench.cli.printing import print_rows
from bench.exit_codes import ExitCode
from foundation.errors import BenchError
from retrievers.models.model import Model


def fetch(options: FetchOptions) -> int:
    """``fetch``: download collections and models, and build the corpora."""
    if not options.names and not options.model:
        raise BenchError(
            "nothing to fetch was named", "python -m bench fetch beir --model retromae"
        )
    space = workspace(options.places)
    rows = []
    for name in space.expand(options.names):
        dataset = space.dataset(name)
        about = f"{len(dataset.corpus):,} documents, {len(dataset.queries):,} queries"
        rows.append({"name": name, "about": about})
    for name in options.model:
        model = load_model(space, name, options.use).model
        rows.append({"name": model.card.name, "about": _files_of(model)})
    print_rows(rows, options.output.json)
    return ExitCode.OK


def _files_of(model: Model) -> str:
    """Folder of each encoder, with its commit where it is one of the Hub."""
    recipe = model.recipe
    encoders = ((model.document, recipe.revision), (model.query, recipe.query_revision))
    folders = [
        f"{checkpoint.root}, revision {revision}" if revision else str(checkpoint.root)
        for checkpoint, revision in encoders
        if checkpoint
    ]
    return "; queries: ".join(folders) or "needs no files"

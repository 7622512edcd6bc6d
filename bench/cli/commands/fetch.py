"""``fetch``: download collections and models, and build the corpora."""

from bench.cli.commands.common import load_model, workspace
from bench.cli.options.data import FetchOptions
from bench.cli.printing import print_rows
from bench.exit_codes import ExitCode
from foundation.errors import BenchError


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
        where = str(model.document.root) if model.document else "needs no files"
        revision = model.recipe.revision
        about = f"{where}, revision {revision}" if revision else where
        rows.append({"name": model.card.name, "about": about})
    print_rows(rows, options.output.json)
    return ExitCode.OK

"""``work``: encode together with others, as a worker that joins from anywhere."""

import sys

import msgspec

from bench.cli.commands.common import load_model, workspace
from bench.cli.options.evaluate import WorkOptions
from bench.cli.terminal import print_json
from bench.evaluate.retrieval import check_encoder, encode_documents
from bench.exit_codes import ExitCode
from retrievers.encoders.protocol import Clock
from retrievers.models.model import Bases


class EncodedHere(msgspec.Struct, frozen=True):
    """Number of texts of a collection that this worker encoded; all have vectors now."""

    collection: str
    model: str
    encoded: int


def work(options: WorkOptions) -> int:
    """``work``: returns when the vectors of all collections are there."""
    space, bases = workspace(options.places, options.hardware), Bases()
    models = [load_model(space, name, options.use, bases) for name in options.model]
    for model in models:
        model.require_encoder()
    done = []
    for name in space.expand(options.names):
        dataset = space.dataset(name)
        for model in models:
            encoder = model.on(dataset.name).require_encoder()
            check_encoder(dataset, encoder, space.store)
            plan = space.store.plan(encoder, dataset.corpus)
            clock: Clock = getattr(encoder, "clock", None) or Clock()
            stored = encode_documents(dataset, encoder, space.store, plan, clock)
            dataset.corpus.check()
            done.append(EncodedHere(dataset.name, model.name, stored.encoded))
            print(
                f"{dataset.name}, {model.name}: {stored.encoded:,} texts encoded here; the vectors "
                f"of all {len(dataset.corpus):,} documents are in {space.vectors_dir}",
                file=sys.stderr,
            )
    if options.output.json:
        print_json(done)
    return ExitCode.OK

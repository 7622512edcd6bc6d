"""The checkpoints that continual pre-training leaves, one for each domain, and their order."""

from pathlib import Path

from foundation.records import Record, read_json, write_json

SEQUENCE_FILE = "sequence.json"


class LearntSequence(Record, kw_only=True):
    """The model that a sequence starts from, and a checkpoint after each domain.

    Attributes:
        start: model that the first training starts from: card, folder or Hub id.
        domains: names of the collections, in the order that they were learnt.
        checkpoints: their folders beside this record, one for each domain.
        losses: of masked language modelling alone at the end of each training, in nats.
        separate: each domain keeps a model, or an adapter, of its own, trained from the start.
    """

    start: str
    domains: tuple[str, ...]
    checkpoints: tuple[str, ...]
    losses: tuple[float, ...]
    separate: bool

    def own(self, domain: str) -> str:
        """The checkpoint that was just trained on a domain."""
        return self.checkpoints[self.domains.index(domain)]

    def after(self, collection: str) -> str:
        """The checkpoint that a collection is searched with after the sequence.

        It is the last one, or the domain's own where each has one.
        """
        if self.separate and collection in self.domains:
            return self.own(collection)
        return self.checkpoints[-1]


def write_sequence(sequence: LearntSequence, folder: Path) -> None:
    """Keep the record in a folder, whole or not at all."""
    write_json(folder / SEQUENCE_FILE, sequence)


def read_sequence(folder: Path) -> LearntSequence | None:
    """The record of a folder; None where it holds no sequence.

    Raises:
        BenchError: the record is damaged.
    """
    path = folder / SEQUENCE_FILE
    return read_json(path, LearntSequence) if path.is_file() else None


def last_checkpoint(model: str) -> str:
    """The last checkpoint of a folder with a sequence; any other model as it is."""
    sequence = read_sequence(Path(model))
    return str(Path(model) / sequence.checkpoints[-1]) if sequence else model

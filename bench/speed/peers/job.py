"""The job of a peer. Imports the standard library alone: a peer's start is timed."""

import json
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """One peer's work, handed over as a JSON argument.

    Attributes:
        weights: folder in the form of sentence-transformers.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: of the weights.
        threads: of torch's operators.
        max_tokens: of documents and queries, special tokens included.
        batch_size: texts of a batch.
        similarity: ``cos`` or ``dot``.
        query_prompt, document_prompt: put before texts.
        folder: collection in BEIR's layout, for an evaluation.
        exclude_self: whether the document whose id is the query's counts as no answer.
    """

    weights: str
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    max_tokens: int = 512
    batch_size: int = 32
    similarity: str = "cos"
    query_prompt: str = ""
    document_prompt: str = ""
    folder: str = ""
    exclude_self: bool = True

    def to_json(self) -> str:
        """The argument of a peer's process."""
        return json.dumps(asdict(self))


def job_of_this_process() -> Job:
    """The job that this process was started with."""
    return Job(**json.loads(sys.argv[1]))


def answer(**fields: object) -> None:
    """One line of JSON on stdout, at once: the last line is the result of an evaluation."""
    print(json.dumps(fields), flush=True)

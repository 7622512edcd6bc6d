"""Requests that read stored results: `compare`, `check`, `explain`, `leaderboard`, `judge`, ..."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs
from attrs import field, frozen
from attrs.converters import optional

from bench.requests.fields import (
    RESULTS,
    CompressionFields,
    FolderFields,
    HardwareFields,
    MismatchFields,
    ModelFields,
    Request,
    ResamplingFields,
    SystemFields,
    to_items,
    to_names,
    to_optional_path,
    to_paths,
)
from foundation.errors import BenchError
from foundation.files import local_path
from retrievers.models.settings import CARD_FIELDS, LikeSettings, to_optional_text


@frozen(kw_only=True, slots=False)
class CompareRequest(ResamplingFields, FolderFields):
    """Compare models: which is better, by how much, and on which queries.

    Attributes:
        a: Name of a model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, run file, evaluation, or list of evaluations of one model.
        b: The other model, in the same forms.
        others: Further models. Every pair is compared.
        on: Compare only on these collections or suites (a suite of your own is a TOML file).
        changed: Show the N queries with the largest differences in favour of each model.
        holes: Show how far labels of unjudged documents could move each difference.
        measure: Measure to compare by. Default: each collection's main measure.
        group: Field of the queries' metadata that depending queries share, such as the question of
            paraphrases. The means of groups are compared. Default: `group` in dataset.toml.
        by: Also compare on slices of each collection: queries that share a value of this field of
            their metadata, or of words (length of the query), relevant (number of relevant
            documents) or collection. Numbers are split into quartiles, unless queries share them like ids.
        results: Folders of stored results.
        dataset: Collection or folder whose judgements score run files.
        depth: Documents per query of run files. Default: the collection's, usually 1,000.
        split: Split whose judgements score run files. Default: the collection's.
        sequence: Collections on which the models were trained, one after the other. Show backward
            and forward transfer. The first model may be the start of the training.

    Examples:
        python -m bench compare minilm bm25
        python -m bench compare minilm bm25 --on beir --changed 3
        python -m bench compare minilm bm25 --on beir/scifact --holes
        python -m bench compare minilm bm25 --on beir/scifact --by words
        python -m bench compare minilm@dtype=float16 minilm@dtype=float32
        python -m bench compare one.trec other.trec --dataset beir/scifact
        python -m bench compare start after-bio after-law --sequence beir/nfcorpus my-law
    """

    rest: ClassVar[str] = "others"

    a: Any = field(kw_only=False)
    b: Any = field(kw_only=False)
    others: tuple[Any, ...] = field(default=(), converter=to_items)
    on: tuple[str, ...] = field(default=(), converter=to_names)
    changed: int = 0
    holes: bool = False
    measure: str | None = None
    group: str = ""
    by: str = ""
    results: tuple[Path, ...] = field(default=RESULTS, converter=to_paths)
    dataset: str | None = field(default=None, converter=to_optional_text)
    depth: int | None = None
    split: str | None = None
    sequence: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class GateSettings(Request):
    """Limits of a decision.

    Attributes:
        margin: Largest mean loss that passes. The 95 % confidence bound of the loss must be within
            it.
        floor: Largest significant loss on a single collection that passes.
        expect_same: Expect the baseline's scores, query by query: a difference in either direction
            is drift (exit code 5).
        tolerance: Largest difference of a query that ``expect_same`` accepts; published scores
            state their own.
    """

    margin: float = 0.02
    floor: float = 0.1
    expect_same: bool = False
    tolerance: float = 0.0005


@frozen(kw_only=True, slots=False)
class CandidateFields(Request):
    """Model under test, and where.

    Attributes:
        candidate: Candidate: a name, card file, folder, Hub id or path/to/file.py:NAME (an encoder
            or a search system), a run file of one collection, or the name of stored results of
            `score`.
        on: Collections, suites or folders (a suite of your own is a TOML file). Default: the
            baseline's. With ``served``, texts of one collection. Default: stdlib-code.

    In Python:
        candidate: also an evaluation, a list of evaluations of one model, or an object that
            searches.
    """

    candidate: Any = field(kw_only=False, default="")
    on: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class ScoreCheckRequest(
    GateSettings,
    CandidateFields,
    ResamplingFields,
    MismatchFields,
    CompressionFields,
    SystemFields,
    HardwareFields,
    FolderFields,
):
    """Compare the scores of a candidate with those of a baseline.

    Attributes:
        baseline: Model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, `published` for the scores that the card claims, or path/to/file.py:NAME or a
            URL, which is evaluated first.
        measure: Measure to decide by. Default: each collection's main measure.
        group: Field of the queries' metadata that depending queries share, such as the question of
            paraphrases. The means of groups decide. Default: `group` in dataset.toml.
        by: Also test slices of each collection, as `compare` does: a significant loss of more than
            ``floor`` on a slice, after correction over all slices and collections, is a regression.
        results: Folder of stored results. New results are added to it.

    In Python:
        baseline: also what the candidate may be.
    """

    baseline: Any = field(kw_only=False, default="")
    measure: str | None = None
    group: str = ""
    by: str = ""
    results: Path = field(default=RESULTS, converter=local_path)


@frozen(kw_only=True, slots=False)
class ServerCheckRequest(ModelFields, HardwareFields, FolderFields):
    """Compare the vectors of a server with those of its checkpoint.

    Attributes:
        served: Address of a server of OpenAI's embeddings API, checked instead of a candidate: does
            it return the vectors of ``against``, also under load? ``dtype`` is its intended
            precision.
        against: Checkpoint of the server: a name, card file, folder or Hub id.
    """

    on: tuple[str, ...] = field(default=(), converter=to_names)
    served: str = ""
    against: str = ""


@frozen(kw_only=True, slots=False)
class StackCheckRequest(CandidateFields, LikeSettings, HardwareFields, FolderFields):
    """Compare the vectors of a model in two environments.

    Attributes:
        stack: Python of another environment, such as new/bin/python: does the candidate have the
            same token ids and vectors there, and with ``on`` the same score? It needs transformers
            or sentence-transformers, not this program.
    """

    stack: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class CheckRequest(ServerCheckRequest, StackCheckRequest, ScoreCheckRequest):
    """Decide whether a checkpoint may ship, or a server is faithful. The exit code is the verdict.

    Exit codes: 0 OK, 1 regression, 2 bad input, 3 inconclusive, 4 missing evaluation or baseline
    result, 5 drift (the scores or vectors are not those of the checkpoint it claims to be). In
    JUnit XML a regression and inconclusive are failures, missing results and drift are errors.

    Examples:
        python -m bench check path/to/ckpt --like retromae --baseline retromae --on beir
        python -m bench check path/to/ckpt --like minilm --baseline minilm --margin 0.01
        python -m bench check search.py:prod --baseline minilm --on path/to/mine --trust-code
        python -m bench check path/to/ckpt --like minilm --baseline minilm --by words
        python -m bench check minilm --baseline published --expect-same
        python -m bench check --served http://localhost:8080/v1 --against minilm
        python -m bench check path/to/ckpt --stack new/bin/python --on beir/scifact
    """

    def require_fields_of(self, kind: type[Request], condition: str) -> None:
        """Raise if a field that ``kind`` does not have is given, under a ``condition``."""
        blank = CheckRequest()
        others = sorted(attrs.fields_dict(CheckRequest).keys() - attrs.fields_dict(kind).keys())
        for name in (name for name in others if getattr(self, name) != getattr(blank, name)):
            option = f"--set {name}" if name in CARD_FIELDS else f"--{name.replace('_', '-')}"
            raise BenchError(f"{option} has no effect {condition}", f"Leave {option} out.")


@frozen(kw_only=True, slots=False)
class DeployRequest(MismatchFields, ModelFields, HardwareFields, FolderFields):
    """Find the smallest deployment of a model that is not worse: dimensions, precision, index.

    From one encoding, settings are tested from mild to strong against exact search of all
    dimensions in float32, until a loss beyond the margin cannot be ruled out. Bytes, milliseconds
    on this machine, recall and score are shown for each tested setting. In a fusion or reranking,
    the vectors of its encoder have the settings, with their bytes and milliseconds, and the whole
    ranking is tested. Exit codes: 0 a setting is proved, 3 none is, 2 bad input.

    Attributes:
        model: Model: a name (see `list models`), card file, folder, Hub id,
            path/to/file.py:NAME, or a fusion such as minilm+bm25.
        on: Collections, suites or folders (a suite of your own is a TOML file). The margin must
            hold on each.
        margin: Largest mean loss of the main measure that passes. The 95 % confidence bound of the
            loss must be within it.
        limit_bytes: Consider only settings of at most so many bytes per document. The answer is
            then the fastest of them, otherwise the smallest.
        limit_ms: Accept only settings whose median time of a query, with one thread, is at most so
            many milliseconds.
        write: Folder to write the index of the answer to, as `index` does (single collection only).

    Examples:
        python -m bench deploy minilm --on beir/scifact
        python -m bench deploy minilm --on beir/scifact --margin .02 --write scifact-index
        python -m bench deploy minilm --on beir/scifact beir/nfcorpus --limit-bytes 500
        python -m bench deploy minilm+bm25 --on beir/scifact --margin .02
    """

    model: str = field(kw_only=False, converter=str)
    on: tuple[str, ...] = field(kw_only=False, converter=to_names)
    margin: float = 0.01
    limit_bytes: int | None = None
    limit_ms: float | None = None
    write: Path | None = field(default=None, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class CutoffRequest(MismatchFields, CompressionFields, HardwareFields, FolderFields):
    """Find the score below which to return nothing, with a proof of what remains.

    The answer is the highest cut-off that, over new queries like those of the collections, keeps a
    share of the relevant documents that a search returns (95 % confidence). What it does to queries
    without an answer is measured on the same queries, after their relevant documents were taken out
    of the rankings. Exit codes: 0 a cut-off is proved and silences queries without an answer, 3 the
    queries are too few, or the scores hardly separate, 2 bad input.

    Attributes:
        model: Model: a name (see `list models`), card file, folder, Hub id, path/to/file.py:NAME,
            or a run file of one collection.
        on: Collections, suites or folders (a suite of your own is a TOML file). The proof must hold
            on each.
        keep: Share of the relevant documents that must remain, in the mean over queries with a
            relevant document among the first ``at``.
        at: Number of documents that a search returns.
        like_cutoff: Another model, or its run file, and its cut-off, as MODEL=SCORE: find the
            cut-off of the first model that keeps as much on these queries, instead of a share.
        without_answer: File of queries that have no answer in the collections, one a line.
        by: Find one cut-off per slice: queries with the same value of this field, as in `compare`.
            The promises hold on all slices together.
        split: Split whose queries and judgements are used. Default: the collection's.

    Examples:
        python -m bench cutoff minilm --on beir/scifact
        python -m bench cutoff minilm --on beir/scifact beir/nfcorpus --keep .9 --at 5
        python -m bench cutoff minilm --on beir/scifact --without-answer off-topic.txt
        python -m bench cutoff minilm --on beir/scifact --like-cutoff bm25=12.5
        python -m bench cutoff minilm --on my-questions --by tenant --keep .9
    """

    model: str = field(kw_only=False, converter=str)
    on: tuple[str, ...] = field(kw_only=False, converter=to_names)
    keep: float = 0.95
    at: int = 10
    like_cutoff: str | None = None
    without_answer: Path | None = field(default=None, converter=to_optional_path)
    by: str = ""
    split: str | None = None


@frozen(kw_only=True, slots=False)
class TuneRequest(ResamplingFields, MismatchFields, ModelFields, HardwareFields, FolderFields):
    """Find the cheapest pipeline that is proved better than a baseline: is hybrid search worth it?

    Each ranking alone and fusions of them are compared with the first one. Their 95 % intervals
    hold together, so any setting that is proved better may be chosen. How much of the largest gain
    comes from choosing it on these queries is shown, too. Exit codes: 0 a setting is proved
    better, 3 none is, 2 bad input.

    Attributes:
        models: Models (names, see `list models`, card files, folders, Hub ids or
            path/to/file.py:NAME) or run files. The first one is the baseline.
        on: Collection or folder (see `list datasets`).
        measure: Measure to choose by. Default: the collection's main measure.
        reranker: Cross-encoder (a folder or Hub id) or path/to/file.py:NAME that also reranks the
            first 10, 20, 50 and 100 documents of every setting.
        limit_ms: Consider only settings that cost at most so many milliseconds of a query, measured
            on this machine.
        only: Card of a fusion, such as one written by ``out`` for other queries. It alone is
            tested, with the rankings of this command in place of its models.
        out: File to write the card of the answer to (TOML).
        group: Field of the queries' metadata that depending queries share, such as the question of
            paraphrases. The means of groups are compared. Default: `group` in dataset.toml.
        split: Split whose queries and judgements are used. Default: the collection's.
        results: Folder of stored results. Rankings in it are used, and new ones added.

    Examples:
        python -m bench tune minilm bm25 --on beir/scifact
        python -m bench tune minilm bm25 --on beir/scifact --limit-ms 20 --out hybrid.toml
        python -m bench tune minilm bm25 --on beir/nfcorpus --only hybrid.toml
        python -m bench tune minilm bm25 --reranker path/to/folder --on beir/scifact
        python -m bench tune prod.trec other.trec --on path/to/mine --figure costs.svg
    """

    models: tuple[str, ...] = field(kw_only=False, converter=to_names)
    on: str = field(kw_only=False, converter=str)
    measure: str | None = None
    reranker: str | None = None
    limit_ms: float | None = None
    only: Path | None = field(default=None, converter=to_optional_path)
    out: Path | None = field(default=None, converter=to_optional_path)
    group: str = ""
    split: str | None = None
    results: Path | None = field(default=RESULTS, converter=to_optional_path)


@frozen(kw_only=True, slots=False)
class LeaderboardRequest(ResamplingFields, FolderFields):
    """Show stored results side by side, as a table or as a page.

    Attributes:
        results: Folders of stored results.
        suite: Show only the collections of this suite and its mean, including gaps (a suite of your
            own is a TOML file). Default: all collections.
        measure: Measure to show. Default: each collection's main measure.
        published: Also show published scores of other systems, marked as claims: names of the
            tables in bench/boards/published, `cards` for the models of `list models`, or `all`.
        baseline: Compare every model with these, as `compare` and `check` do: daggers mark scores
            that are significantly better, the page shows differences and verdicts.
        by: Also compare with each baseline on slices: queries with the same value of a field, as in
            `compare`. The page of a model draws their intervals.
        every_measure: Include every measure of the results, as the page does.

    Examples:
        python -m bench leaderboard --format html > leaderboard.html
        python -m bench leaderboard --format latex --baseline bm25 > table.tex
        python -m bench leaderboard --suite beir --format csv
        python -m bench leaderboard --published beir-paper dupmae
        python -m bench leaderboard --baseline bm25 --by words --format html > leaderboard.html
    """

    results: tuple[Path, ...] = field(kw_only=False, default=RESULTS, converter=to_paths)
    suite: str = field(default="", converter=str)
    measure: str = ""
    published: tuple[str, ...] | None = field(default=None, converter=optional(to_names))
    baseline: tuple[str, ...] = field(default=(), converter=to_names)
    by: tuple[str, ...] = field(default=(), converter=to_names)
    every_measure: bool = False


@frozen(kw_only=True, slots=False)
class ExplainRequest(CompressionFields, HardwareFields, FolderFields):
    """Find the difference of configuration that explains other vectors, another run or other
    scores.

    Tries single deviations (pooling, prompts, titles, lengths, special tokens, layers, precision,
    order, protocol), then pairs, and lists all that fit. "Your configuration reproduces it" and
    "none of these" are answers, too. Several kinds of evidence must fit together.

    For a search system, shows where its score is lost: missing documents, stored vectors, search,
    query vectors. Exit codes: 0 nothing is lost beyond noise, 5 a loss is certain.

    Attributes:
        model: Name of `list models`, card file, folder or Hub id, as you use it. Or a search
            system, path/to/file.py:NAME.
        on: Collections or folders of the evidence; the first is sampled.
        published: A score as [DATASET:][MEASURE=]VALUE, rounded as published; several are possible.
        per_query: File of scores by query, such as the output of trec_eval -q.
        run_file: Run file, as for `score`.
        vectors: Vectors as .npy, .npz, .parquet or .safetensors; ids in it, or in FILE.ids.txt.
        checkpoint: Another checkpoint. Alone, its vectors are the evidence ("why is it worse?");
            next to other evidence, its weights may be the cause. For a search system, the model
            whose vectors it is meant to search.
        measure: Measures of a search system's ledger. Default: the collection's main measure and
            its deepest.

    In Python:
        model: also an object with search(queries, k).

    Examples:
        python -m bench explain minilm --on beir/scifact --published .6451 --published R@100=.925
        python -m bench explain minilm --on beir/scifact --run-file theirs.trec
        python -m bench explain minilm --on beir/scifact --vectors theirs.npz
        python -m bench explain minilm --on beir/scifact --checkpoint path/to/worse-checkpoint
        python -m bench explain search.py:prod --on mine --checkpoint minilm --trust-code
    """

    model: Any = field(kw_only=False)
    on: tuple[str, ...] = field(converter=to_names)
    published: tuple[str, ...] = field(default=(), converter=to_names)
    per_query: Path | None = field(default=None, converter=to_optional_path)
    run_file: Path | None = field(default=None, converter=to_optional_path)
    vectors: Path | None = field(default=None, converter=to_optional_path)
    checkpoint: str | None = field(default=None, converter=to_optional_text)
    measure: tuple[str, ...] = field(default=(), converter=to_names)


@frozen(kw_only=True, slots=False)
class ExportRequest(Request):
    """Write stored rankings as TREC run files (MODEL/COLLECTION.trec.gz).

    trec_eval, ir_measures and ranx read them. Existing files are never overwritten.

    Attributes:
        names: Models with stored results, named as in `compare`.
        out: Folder to write.
        on: Export only these collections or suites.
        results: Folders of stored results.

    Examples:
        python -m bench export minilm bm25 --out runs
    """

    names: tuple[str, ...] = field(kw_only=False, converter=to_names)
    out: Path = field(converter=local_path)
    on: tuple[str, ...] = field(default=(), converter=to_names)
    results: tuple[Path, ...] = field(default=RESULTS, converter=to_paths)


@frozen(kw_only=True, slots=False)
class JudgeRequest(FolderFields):
    """Write a list of unjudged documents that settle a comparison, or add their judgements.

    export writes the pairs of query and document that can change a comparison most, as CSV, JSON
    lines and a page to judge them in a browser without a network. import reads judged lists and
    scores stored results again with these judgements. The collection stays as it is.

    Attributes:
        action: export or import.
        names: The two models of `compare` to export for; or the judged lists (CSV or JSON lines) to
            import, of all rounds.
        on: Collection or folder.
        budget: Number of pairs to export.
        measure: Measure to compare by. Default: the collection's main measure.
        out: Folder to write. Default: to-judge for export; for import judged, a folder of results.
        results: Folders of stored results.

    Examples:
        python -m bench judge export minilm bm25 --on beir/scifact --budget 50
        python -m bench judge import to-judge/pairs.csv --on beir/scifact
        python -m bench compare minilm bm25 --results judged
    """

    action: Literal["export", "import"] = field(kw_only=False)
    names: tuple[str, ...] = field(kw_only=False, converter=to_names)
    on: str = field(converter=str)
    budget: int = 50
    measure: str | None = None
    out: Path | None = field(default=None, converter=to_optional_path)
    results: tuple[Path, ...] = field(default=RESULTS, converter=to_paths)

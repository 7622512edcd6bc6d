"""Requests that read stored results: `compare`, `check`, `explain`, `leaderboard`, `export`."""

from pathlib import Path
from typing import Any, Literal

import attrs

from bench.gate.settings import GateSettings
from bench.requests.fields import (
    RESULTS,
    FolderFields,
    HardwareFields,
    MismatchFields,
    ModelFields,
    Request,
    ResamplingFields,
    to_items,
    to_location,
    to_locations,
    to_names,
    to_optional_path,
    to_optional_text,
)
from foundation.locations import Location


@attrs.frozen(slots=False)
class CompareRequest(ResamplingFields, FolderFields):
    """Compare models: which is better, by how much, and on which queries.

    Attributes:
        a: Name of a model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, run file, evaluation, or list of evaluations of one model.
        b: The other model, in the same forms.
        others: Further models. Every pair is compared.
        on: Compare only on these collections or suites (a suite of your own is a TOML file).
        changed: Show the N queries with the largest differences in favour of each model.
        measure: Measure to compare by. Default: each collection's main measure.
        results: Folders of stored results, or URLs such as s3://bucket/prefix.
        force: Compare across different protocols. The table is marked.
        dataset: Collection or folder whose judgements score run files.
        depth: Documents per query of run files. Default: the collection's, usually 1,000.
        split: Split whose judgements score run files. Default: the collection's.
        sequence: Collections on which the models were trained, one after the other. Show backward
            and forward transfer. The first model may be the start of the training; name further
            collections in ``on``.
    """

    a: Any
    b: Any
    others: tuple[Any, ...] = attrs.field(default=(), converter=to_items, kw_only=True)
    on: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)
    changed: int = attrs.field(default=0, kw_only=True)
    measure: str | None = attrs.field(default=None, kw_only=True)
    results: tuple[Location, ...] = attrs.field(
        default=RESULTS, converter=to_locations, kw_only=True
    )
    force: bool = attrs.field(default=False, kw_only=True)
    dataset: str | None = attrs.field(default=None, converter=to_optional_text, kw_only=True)
    depth: int | None = attrs.field(default=None, kw_only=True)
    split: str | None = attrs.field(default=None, kw_only=True)
    sequence: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)


@attrs.frozen(slots=False)
class CheckRequest(ResamplingFields, MismatchFields, ModelFields, HardwareFields, FolderFields):
    """Decide whether a checkpoint may ship, or a server is faithful. The exit code is the verdict.

    Exit codes: 0 OK, 1 regression, 2 bad input, 3 inconclusive, 4 missing evaluation or baseline
    result, 5 drift (the scores or vectors are not those of the checkpoint it claims to be). In
    JUnit XML a regression is a failure, missing results and drift are errors, and inconclusive is
    skipped.

    Attributes:
        candidate: Candidate: a name, card file, folder or Hub id.
        baseline: Model with stored results (MODEL@FIELD=VALUE selects one of several), folder of
            results, or `published` for the scores that the card claims.
        on: Collections, suites or folders (a suite of your own is a TOML file). Default: the
            baseline's. With ``served``, texts of one collection. Default: stdlib-code.
        anchor: Older release to check against, too. The worse outcome decides.
        measure: Measure to decide by. Default: each collection's main measure.
        results: Folder of stored results, or a URL such as s3://bucket/prefix. New results are
            added to it.
        rule: loss fails on a significant loss; margin (non-inferiority) passes only if a loss
            beyond ``margin`` is ruled out.
        margin: Largest loss of the mean that rule margin accepts.
        floor: No candidate passes that lost more than this on any collection, under either rule.
        expect_same: Expect the baseline's scores: a difference in either direction is drift (exit
            code 5).
        tolerance: Largest difference that ``expect_same`` accepts; published scores state their
            own.
        served: Address of a server of OpenAI's embeddings API, checked instead of a candidate: does
            it return the vectors of ``against``, also under load? ``dtype`` is its intended
            precision.
        against: Checkpoint of the server: a name, card file, folder or Hub id.
    """

    candidate: Any = ""
    baseline: Any = ""
    on: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)
    anchor: str | None = attrs.field(default=None, kw_only=True)
    measure: str | None = attrs.field(default=None, kw_only=True)
    results: Location = attrs.field(default=RESULTS, converter=to_location, kw_only=True)
    rule: Literal["loss", "margin"] = attrs.field(default="loss", kw_only=True)
    margin: float = attrs.field(default=0.01, kw_only=True)
    floor: float = attrs.field(default=0.1, kw_only=True)
    expect_same: bool = attrs.field(default=False, kw_only=True)
    tolerance: float = attrs.field(default=0.0005, kw_only=True)
    served: str = attrs.field(default="", kw_only=True)
    against: str = attrs.field(default="", kw_only=True)

    @property
    def settings(self) -> GateSettings:
        """Rule and limits of the decision.

        Raises:
            BenchError: a limit is so wide that any model would pass.
        """
        return GateSettings(
            rule=self.rule,
            margin=self.margin,
            floor=self.floor,
            expect_same=self.expect_same,
            tolerance=self.tolerance,
        )


@attrs.frozen(slots=False)
class LeaderboardRequest(ResamplingFields, FolderFields):
    """Show stored results side by side, as a table or as a page.

    Attributes:
        results: Folders of stored results, or URLs such as s3://bucket/prefix.
        suite: Show only the collections of this suite and its mean, including gaps (a suite of your
            own is a TOML file). Default: all collections.
        measure: Measure to show. Default: each collection's main measure.
        published: Also show published scores of other systems, marked as claims: names of the
            tables in bench/boards/published, `cards` for the models of `list models`, or `all`.
        every_measure: Include every measure of the results, as the page does.
    """

    results: tuple[Location, ...] = attrs.field(default=RESULTS, converter=to_locations)
    suite: str = attrs.field(default="", converter=str, kw_only=True)
    measure: str = attrs.field(default="", kw_only=True)
    published: tuple[str, ...] | None = attrs.field(
        default=None, converter=attrs.converters.optional(to_names), kw_only=True
    )
    every_measure: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen(slots=False)
class ExplainRequest(ModelFields, HardwareFields, FolderFields):
    """Find the difference of set-up that explains other vectors, another run or other scores.

    Tries single deviations (pooling, prompts, titles, lengths, special tokens, layers, precision,
    order, protocol), then pairs, and lists all that fit. "Your set-up reproduces it" and "none of
    these" are answers, too. Several kinds of evidence must fit together.

    Attributes:
        model: Name of `list models`, card file, folder or Hub id, as you use it.
        on: Collections or folders of the evidence; the first is sampled.
        published: A score as [DATASET:][MEASURE=]VALUE, rounded as published; several are possible.
        per_query: File of scores by query, such as the output of trec_eval -q.
        run_file: TREC run file.
        vectors: Vectors as .npy, .npz, .parquet or .safetensors; ids in it, or in FILE.ids.txt.
        served: Address of a server of OpenAI's embeddings API, such as http://localhost:8080/v1.
        checkpoint: Another checkpoint. Alone, its vectors are the evidence ("why is it worse?");
            next to other evidence, its weights may be the cause.
        canary: File of ``save_canary``: do texts still have the vectors that they had?
        save_canary: Save texts of the collection with the model's vectors.
    """

    model: str = attrs.field(converter=str)
    on: tuple[str, ...] = attrs.field(converter=to_names, kw_only=True)
    published: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)
    per_query: Path | None = attrs.field(default=None, converter=to_optional_path, kw_only=True)
    run_file: Path | None = attrs.field(default=None, converter=to_optional_path, kw_only=True)
    vectors: Path | None = attrs.field(default=None, converter=to_optional_path, kw_only=True)
    served: str = attrs.field(default="", kw_only=True)
    checkpoint: str | None = attrs.field(default=None, converter=to_optional_text, kw_only=True)
    canary: Path | None = attrs.field(default=None, converter=to_optional_path, kw_only=True)
    save_canary: Path | None = attrs.field(default=None, converter=to_optional_path, kw_only=True)


@attrs.frozen(slots=False)
class ExportRequest(Request):
    """Write stored results in the formats of mteb and trec_eval.

    mteb writes scores (MODEL/REVISION/SciFact.json, for mteb 2). trec writes rankings
    (MODEL/COLLECTION.trec.gz). Existing files are never overwritten.

    Attributes:
        form: Format to write.
        names: Models with stored results, named as in `compare`.
        out: Folder to write, or a URL such as s3://bucket/prefix.
        on: Export only these collections or suites.
        name: Name of the model in the files (single model only). Default: its own name.
        results: Folders of stored results, or URLs such as s3://bucket/prefix.
    """

    form: Literal["mteb", "trec"]
    names: tuple[str, ...] = attrs.field(converter=to_names)
    out: Location = attrs.field(converter=to_location, kw_only=True)
    on: tuple[str, ...] = attrs.field(default=(), converter=to_names, kw_only=True)
    name: str | None = attrs.field(default=None, kw_only=True)
    results: tuple[Location, ...] = attrs.field(
        default=RESULTS, converter=to_locations, kw_only=True
    )

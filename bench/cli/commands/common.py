"""The workspace, model and resampling that the options of a command describe."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from bench.cli.options.shared import FolderOptions, HardwareOptions, ModelOptions, ResamplingOptions
from bench.comparing.statistics import Resampling
from bench.evaluate.index_search import parse_size
from bench.evaluate.retrieval import LoadedModel
from bench.workspace import Workspace, cache_folder
from datasets_cfg.verify import Finding
from foundation.errors import BenchError
from foundation.records import Record, convert_table
from reports.evaluation import finding_lines
from retrievers.models.locate import is_card
from retrievers.models.model import SharedNetworks
from retrievers.models.recipe import StoreDtype

logger = logging.getLogger(__name__)

DEFAULT_HARDWARE = HardwareOptions()


def make_workspace(
    folders: FolderOptions,
    hardware: HardwareOptions = DEFAULT_HARDWARE,
    allow_mismatch: bool = False,
) -> Workspace:
    """The workspace that the options describe."""
    memory = hardware.max_memory
    return Workspace(
        cache_dir=cache_folder(folders.cache_dir),
        data_dir=folders.data_dir,
        offline=os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"),
        device=hardware.device,
        max_memory=None if memory is None else parse_size(memory),
        allow_mismatch=allow_mismatch,
        report_finding=print_finding,
    )


def refuse_duplicates(names: Iterable[str], hint: str = "name it once") -> None:
    """Refuse a model or collection that is named twice.

    Raises:
        BenchError: one is.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"{name} is named {times} times", hint)


def print_finding(collection: str, finding: Finding) -> None:
    """Print a finding about a collection on stderr, and log it if it is a warning."""
    lines = finding_lines(finding, collection)
    if finding.severity == "warning":
        logger.warning("%s", lines.removeprefix("warning: "))
    else:
        print(lines, file=sys.stderr)


class CardSettings(Record):
    """What ``--set`` gives a model instead of its card's."""

    max_query_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_document_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    query_prompt: str | None = None
    store_dtype: StoreDtype = "float32"


def load_model(
    workspace: Workspace,
    name: str,
    model_options: ModelOptions,
    networks: SharedNetworks | None = None,
) -> LoadedModel:
    """The model of this name with its encoder, as the options say."""
    settings = convert_table(parse_assignments(model_options.set), CardSettings, "--set")
    dtype, backend = (
        (None, model_options.dtype)
        if model_options.dtype == "int8"
        else (model_options.dtype, None)
    )
    return workspace.load(
        name,
        networks,
        like=model_options.like,
        adapter=model_options.adapter,
        dtype=dtype,
        backend=backend,
        trust_code=model_options.trust_code,
        **msgspec.structs.asdict(settings),
    )


def load_models(
    workspace: Workspace, names: Sequence[str], model_options: ModelOptions
) -> list[LoadedModel]:
    """Load several models that share bases. ``--like`` applies to those without a card.

    Raises:
        BenchError: one cannot be used, or ``--like`` was given and all are cards.
    """
    networks, cards = SharedNetworks(), [name for name in names if is_card(name)]
    card_options = replace(model_options, like=None) if len(cards) < len(names) else model_options
    return [
        load_model(workspace, name, card_options if name in cards else model_options, networks)
        for name in names
    ]


def parse_assignments(typed: Sequence[str]) -> dict[str, Any]:
    """``optimizer.warmup=0.2`` as a name and a value; what is no TOML value is a string.

    Raises:
        BenchError: one has no name or no value.
    """
    overrides = {}
    for assignment in typed:
        name, sign, value = assignment.partition("=")
        if not (name and sign):
            raise BenchError(
                f"--set {assignment} is not FIELD=VALUE", "such as --set optimizer.warmup=0"
            )
        try:
            overrides[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except msgspec.DecodeError:
            overrides[name] = value
    return overrides


def make_resampling(options: ResamplingOptions) -> Resampling:
    """The resampling behind intervals and p-values."""
    return Resampling(options.resamples)

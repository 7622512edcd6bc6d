"""Workspace, models and resampling from the options of a command."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from bench.cli.options.shared import CommonOptions, HardwareOptions, ModelOptions, ResamplingOptions
from bench.comparing.statistics import Resampling
from bench.evaluation.collection_search import LoadedModel
from bench.evaluation.index_search import parse_size
from bench.workspace import Workspace, cache_folder
from datasets_cfg.verify import Finding
from foundation.errors import BenchError
from foundation.records import Record, convert_table
from reports.evaluation import finding_lines
from retrievers.encoders.open import open_encoder
from retrievers.encoders.protocol import Encoder
from retrievers.encoders.transformer import SharedNetworks
from retrievers.models.locate import is_card, is_url
from retrievers.models.recipe import StoreDtype
from retrievers.models.resolve import resolve_endpoint
from retrievers.models.resolve_card import card_of_endpoint

logger = logging.getLogger(__name__)

DEFAULT_HARDWARE = HardwareOptions()


def make_workspace(
    common: CommonOptions,
    hardware: HardwareOptions = DEFAULT_HARDWARE,
    allow_mismatch: bool = False,
) -> Workspace:
    """Return a workspace.

    Args:
        common: folders of collections and of the cache.
        hardware: device and memory limit.
        allow_mismatch: whether collections may differ from the published ones.
    """
    memory = hardware.max_memory
    return Workspace(
        cache_dir=cache_folder(common.cache_dir),
        data_dir=common.data_dir,
        offline=is_offline(),
        device=hardware.device,
        max_memory=None if memory is None else parse_size(memory),
        allow_mismatch=allow_mismatch,
        report_finding=print_finding,
    )


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    return os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")


def refuse_duplicates(names: Iterable[str], hint: str = "give it once") -> None:
    """Raise if a model or collection is named twice.

    Args:
        names: names in the order in which they were typed.
        hint: what to type instead.

    Raises:
        BenchError: a name occurs more than once.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"{name} is given {times} times", hint)


def print_finding(collection: str, finding: Finding) -> None:
    """Print ``finding`` about ``collection`` on stderr, or log it if it is a warning."""
    lines = finding_lines(finding, collection)
    if finding.severity == "warning":
        logger.warning("%s", lines.removeprefix("warning: "))
    else:
        print(lines, file=sys.stderr)


class CardSettings(Record):
    """Fields of a card that ``--set`` may override.

    Attributes:
        max_query_tokens: length at which queries are truncated, in tokens.
        max_document_tokens: length at which documents are truncated, in tokens.
        query_prompt: prefix of every query.
        store_dtype: precision of cached vectors.
    """

    max_query_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_document_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    query_prompt: str | None = None
    store_dtype: StoreDtype = "float32"


def load_model(
    workspace: Workspace, name: str, settings: ModelOptions, networks: SharedNetworks | None = None
) -> LoadedModel:
    """Load the model called ``name`` with its encoder.

    Args:
        workspace: folders, device and memory.
        name: name of a card, card file, folder or Hub id.
        settings: options that override the card.
        networks: networks that are already loaded, which models with one base share.

    Raises:
        BenchError: there is no such model, or an option does not fit it.
    """
    fields = convert_table(parse_assignments(settings.set), CardSettings, "--set")
    return workspace.load(
        name,
        networks,
        like=settings.like,
        endpoint_model=settings.endpoint_model,
        adapter=settings.adapter,
        dtype=settings.dtype,
        trust_code=settings.trust_code,
        **msgspec.structs.asdict(fields),
    )


def open_endpoint(url: str, settings: ModelOptions, model: LoadedModel) -> Encoder:
    """Return an encoder that sends texts of ``model`` to a server, to compare their vectors.

    Args:
        url: address of the server. Its host is the encoder's name.
        settings: its ``endpoint_model`` is the name of the model on the server. Default: the
            checkpoint's.
        model: the checkpoint, whose prompts and title rule are used.

    Raises:
        BenchError: the URL is malformed, or the server does not answer.
    """
    card = card_of_endpoint(
        url,
        settings.endpoint_model or model.model.recipe.checkpoint or model.name,
        name=url.partition("://")[2].partition("/")[0],
        prompts=model.model.card.prompts,
        title_join="none" if model.model.card.title_join == "none" else "space",
    )
    return open_encoder(resolve_endpoint(card))


def load_models(
    workspace: Workspace, names: Sequence[str], settings: ModelOptions
) -> list[LoadedModel]:
    """Load several models, which share the network of a common base.

    ``--like`` in ``settings`` applies only to models without a card, and ``--endpoint-model`` only
    to URLs. ``workspace`` and ``names`` are as in `load_model`.

    Raises:
        BenchError: a model cannot be used, or one of these options applies to none of the models.
    """
    networks, models = SharedNetworks(), []
    only_cards, has_url = all(map(is_card, names)), any(map(is_url, names))
    for name in names:
        like = settings.like if only_cards or not is_card(name) else None
        endpoint_model = settings.endpoint_model if is_url(name) or not has_url else None
        use = replace(settings, like=like, endpoint_model=endpoint_model)
        models.append(load_model(workspace, name, use, networks))
    return models


def parse_assignments(typed: Sequence[str]) -> dict[str, Any]:
    """Parse words such as ``optimizer.warmup=0.2`` into a dictionary.

    Values are read as TOML. A value that is not valid TOML is a string.

    Args:
        typed: values of ``--set``.

    Raises:
        BenchError: a word has no name or no ``=``.
    """
    overrides = {}
    for word in typed:
        name, sign, value = word.partition("=")
        if not (name and sign):
            raise BenchError(f"--set {word} is not FIELD=VALUE", "write it like --set seed=1")
        try:
            overrides[name] = msgspec.toml.decode(f"value = {value}")["value"]
        except msgspec.DecodeError:
            overrides[name] = value
    return overrides


def make_resampling(options: ResamplingOptions) -> Resampling:
    """Return the resampling of queries that ``options`` describe."""
    return Resampling(options.resamples)

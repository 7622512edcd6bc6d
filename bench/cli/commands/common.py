"""What several commands do: open what was named, by their options."""

import os
import sys
from dataclasses import asdict
from pathlib import Path

import platformdirs

from bench.cli.options.shared import Hardware, ModelUse, Places, Resamples
from bench.compare.statistics import Resampling
from bench.evaluate.memory import parse_size
from bench.workspace import LoadedModel, Workspace
from datasets_cfg.verify import Finding
from reports.findings import finding_lines
from retrievers.adapters.bases import Bases

DEFAULT_HARDWARE = Hardware()


def workspace(
    places: Places, hardware: Hardware = DEFAULT_HARDWARE, allow_mismatch: bool = False
) -> Workspace:
    """The workspace that the options describe."""
    memory = hardware.max_memory
    return Workspace(
        cache_dir=cache_folder(places.cache_dir),
        data_dir=places.data_dir,
        offline=places.offline,
        device=hardware.device,
        max_memory=None if memory is None else parse_size(memory),
        allow_mismatch=allow_mismatch,
        remark=print_remark,
    )


def print_remark(collection: str, finding: Finding) -> None:
    """Say what is peculiar in a collection, on stderr."""
    print(finding_lines(finding, collection), file=sys.stderr)


def cache_folder(typed: Path | None) -> Path:
    """Where downloads, corpora and vectors are kept."""
    named = typed or os.environ.get("BENCH_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("retrieval-bench")


def load_model(
    space: Workspace, name: str, use: ModelUse, bases: Bases | None = None
) -> LoadedModel:
    """The model of this name with its encoder, as the options say."""
    settings = asdict(use)
    return space.load(
        name, bases, **settings | {"store_dtype": settings["store_dtype"] or "float32"}
    )


def resampling_of(options: Resamples) -> Resampling:
    """How intervals and p-values are drawn."""
    return Resampling(options.resamples, options.seed)

"""The workspace, model and resampling that the options of a command describe."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from bench.cache_folders import cache_folder, shared_vectors
from bench.cli.options.shared import Hardware, ModelUse, Places, Resamples
from bench.comparing.statistics import Resampling
from bench.evaluate.memory import parse_size
from bench.workspace import LoadedModel, Workspace
from datasets_cfg.verify import Finding
from foundation.errors import BenchError
from reports.findings import finding_lines
from reports.plots.style import can_plot
from retrievers.adapters.bases import Bases

DEFAULT_HARDWARE = Hardware()


def workspace(
    places: Places, hardware: Hardware = DEFAULT_HARDWARE, allow_mismatch: bool = False
) -> Workspace:
    """The workspace that the options describe.

    Raises:
        BenchError: vectors are to be shared where nothing can be written.
    """
    memory = hardware.max_memory
    shared = shared_vectors(places.cache_dir)
    if shared:
        shared.check_writable()
    return Workspace(
        cache_dir=cache_folder(places.cache_dir),
        data_dir=places.data_dir,
        offline=places.offline,
        device=hardware.device,
        max_memory=None if memory is None else parse_size(memory),
        allow_mismatch=allow_mismatch,
        remark=print_remark,
        shared=shared,
    )


def check_once(names: Iterable[str]) -> None:
    """Refuse a model or collection that is named twice.

    Raises:
        BenchError: one is.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise BenchError(f"{name} is named {times} times", "name it once")


def check_can_plot(option: str) -> None:
    """Refuse a picture before hours of work, not after.

    Raises:
        BenchError: matplotlib is not installed.
    """
    if not can_plot():
        raise BenchError(f"{option} needs matplotlib", "pip install 'retrieval-bench[plots]'")


def print_remark(collection: str, finding: Finding) -> None:
    """Print a finding about a collection on stderr."""
    print(finding_lines(finding, collection), file=sys.stderr)


def load_model(
    space: Workspace, name: str, use: ModelUse, bases: Bases | None = None
) -> LoadedModel:
    """The model of this name with its encoder, as the options say."""
    settings = asdict(use)
    return space.load(
        name, bases, **settings | {"store_dtype": settings["store_dtype"] or "float32"}
    )


def resampling_of(options: Resamples) -> Resampling:
    """The resampling behind intervals and p-values."""
    return Resampling(options.resamples, options.seed)

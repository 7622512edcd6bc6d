"""Names of the adapter methods that can be trained."""

from foundation.errors import BenchError, did_you_mean
from retrievers.adapters import hub, peft
from retrievers.adapters.settings import FUSION, Adapter, Library

# Names of papers and of older versions of AdapterHub.
KNOWN_AS = {
    "pfeiffer": "seq_bn",
    "bottleneck": "seq_bn",
    "houlsby": "double_seq_bn",
    "parallel": "par_bn",
    "prefix": "prefix_tuning",
    "prompt": "prompt_tuning",
    "p-tuning": "p_tuning",
    "reft": "loreft",
    "fuse": FUSION,
}


def methods_of(library: Library) -> tuple[str, ...]:
    """Names of the methods of a library."""
    return tuple(peft.METHODS) if library == "peft" else hub.METHODS


def check_method(adapter: Adapter) -> None:
    """Refuse unknown methods and options.

    Raises:
        BenchError: an unknown name (with what was meant), or the library is not installed.
    """
    names = methods_of(adapter.library)
    if adapter.method not in names:
        meant = KNOWN_AS.get(adapter.method.lower())
        close = did_you_mean(adapter.method, names, f"there are: {', '.join(names)}")
        raise BenchError(
            f"{adapter.library} has no adapter method {adapter.method!r}",
            f"did you mean {meant}?" if meant in names else close,
        )
    (peft if adapter.library == "peft" else hub).configuration(adapter.method, adapter.options)

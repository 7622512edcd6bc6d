"""PEFT's adapters in a network that is trained."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retrievers.errors import RetrieverError
from retrievers.training.adapting import PEFT_METHODS, Adapter, check_options, library_of

# Fields of PEFT's records that are not settings of a method.
NOT_OPTIONS = {
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
    *("revision", "inference_mode", "modules_to_save"),
}


def configuration(method: str, options: Mapping[str, Any]) -> Any:
    """PEFT's record of a method and its options.

    Raises:
        RetrieverError: an unknown option, or values that PEFT refuses.
    """
    kind = getattr(library_of("peft"), PEFT_METHODS[method])
    known = {one.name for one in dataclasses.fields(kind)} - NOT_OPTIONS
    check_options(method, options, known)
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise RetrieverError(f"the adapter method {method}: {error}") from error


def put_into(network: Any, adapter: Adapter) -> Callable[[Path], None]:
    """Freeze a network and put what is trained into it.

    Returns:
        What writes the trained adapter to a folder.
    """
    from peft import PeftModel

    wrapped = PeftModel(network, configuration(adapter.method, adapter.options))

    def save(folder: Path) -> None:
        wrapped.save_pretrained(str(folder), safe_serialization=True)
        (folder / "README.md").unlink(missing_ok=True)  # a form that nobody filled in

    return save

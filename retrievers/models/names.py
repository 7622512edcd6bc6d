"""Names of models: the card that a name stands for, and the folder of the card's paths.

A card's name, a card's file, a folder with a card and a sentence-transformers folder state how
vectors are made. A plain checkpoint does not and is refused, unless it is used like a named card.
"""

import logging
import re
from pathlib import Path
from typing import Any

from foundation.errors import BenchError, did_you_mean, format_names
from foundation.records import read_object
from retrievers.models.card import (
    CARD_FILE,
    Card,
    all_cards,
    card_names,
    load_card,
    make_card,
    make_card_like,
    replace_fields,
)
from retrievers.models.checkpoint import ADAPTER_CONFIG
from retrievers.models.folder import ModelFolder
from retrievers.models.kinds import TEXTS
from retrievers.models.locate import locate_checkpoint

PYTHON_FILE = re.compile(r"(.+\.py)(?::(\w+))?")  # a class, function or object in a user's file
READY_VECTORS = re.compile(r"vectors:(.+?)(?::(dot|cos))?")  # a folder, and their similarity
TRAINING_FILE = "training.json"  # in the folder of a training, whose card comes last
BASE_NAMES = ("base_model_name_or_path", "model_name")  # in files of PEFT and of AdapterHub

logger = logging.getLogger(__name__)


def resolve_card(
    model: str, like: str | None = None, endpoint_model: str | None = None
) -> tuple[Card, Path]:
    """Return the card to use for a model, and the folder that its paths are relative to.

    ``like`` and ``endpoint_model`` are those of `ModelSettings`.
    """
    if is_url(model):
        usage = {name: getattr(load_card(like), name) for name in TEXTS} if like else {}
        return card_of_endpoint(model, endpoint_model or "", **usage), Path.cwd()
    if endpoint_model is not None:
        raise BenchError(
            f"{model} is not a URL, so --endpoint-model has no effect", "Leave it out."
        )
    if like is not None:
        if is_card(model):
            problem = f"{model} is a card, but --like {like} needs a checkpoint without one"
            raise BenchError(problem, "Leave --like out, or give the folder of a checkpoint.")
        return _card_like(load_card(like), model), Path.cwd()
    return find_card(model) or (_declared_card(model), Path.cwd())


def find_card(name: str) -> tuple[Card, Path] | None:
    """Return the card that ``name`` stands for, and the folder that its paths are relative to.

    It is None for a folder without a card, and for a Hub id. Nothing is downloaded.
    """
    here, folder = Path.cwd(), Path(name).expanduser()
    if members := _split_fusion(name):
        names = [_name_of(member) for member in members]
        fields = {"name": "+".join(names), "title": name, "kind": "fusion", "models": members}
        return make_card(fields), here
    if found := READY_VECTORS.fullmatch(name):
        return _card_of_vectors(name, *found.groups()), here
    is_folder = folder.is_dir()  # also one that is called like a file, as in model.toml/
    if name.endswith(".toml") and not is_folder:
        return load_card(name), Path(name).resolve().parent
    if not is_folder and (found := PYTHON_FILE.fullmatch(name)):
        if not found[2]:
            add = f"Add the class, function or object in it that encodes: {name}:NAME"
            raise BenchError(f"{name} is a file of Python code", add)
        encoder = f"{Path(found[1]).expanduser().resolve()}:{found[2]}"
        return Card(name=found[2], title=name, kind="python", encoder=encoder), here
    if name in card_names():
        return load_card(name), here
    if (folder / CARD_FILE).is_file():
        folder = folder.resolve()
        return replace_fields(load_card(folder / CARD_FILE), {"name": folder.name}), folder
    if is_folder or (name.count("/") == 1 and not name.startswith((".", "~", "/"))):
        return None
    file = f"{name}.toml"
    meant = f"Did you mean {file}?" if Path(file).is_file() else did_you_mean(name, card_names())
    hint = f"{meant} See `python -m bench list models`.".strip()
    raise BenchError(f"there is no model card and no folder {name!r}", hint)


def _card_of_vectors(typed: str, folder: str, similarity: str | None) -> Card:
    """Return the card of ready vectors. Without a similarity, they must have length 1."""
    path = Path(folder).expanduser()
    if not path.exists():
        raise BenchError(f"there is no folder {path}", "Give the folder of the vectors.")
    return Card(
        name=path.resolve().stem,
        title=typed,
        kind="vectors",
        checkpoint=str(path.resolve()),
        similarity="dot" if similarity == "dot" else "cos",
        normalize=similarity == "cos",
    )


def _split_fusion(name: str) -> tuple[str, ...]:
    """Return the models of ``one+another``, or none if it is the name of a file or one model."""
    members = tuple(name.split("+"))
    if len(members) < 2 or is_url(name) or Path(_path_in(name)).expanduser().exists():
        return ()
    if not all(members):
        raise BenchError(f"{name}: a model is missing next to +", "Name two, such as minilm+bm25.")
    return members


def _name_of(member: str) -> str:
    """Return the name of a model in results."""
    found = find_card(member)
    return found[0].name if found else Path(member).resolve().name


def _path_in(name: str) -> str:
    """Return the path in the name of ready vectors or of Python code, or the name."""
    found = READY_VECTORS.fullmatch(name) or PYTHON_FILE.fullmatch(name)
    return found[1] if found else name


def anchor_members(card: Card, base: Path) -> Card:
    """Return a pipeline's card with the paths in its models and reranker below ``base``."""
    anchored = {
        "models": tuple(anchor_path(name, base) for name in card.models),
        **{name: anchor_path(getattr(card, name), base) for name in ("model", "reranker")},
    }
    return replace_fields(card, anchored)


def anchor_path(name: str, base: Path) -> str:
    """Return ``name`` with each path in it that exists below ``base`` written in full."""
    if not name:
        return ""
    file = _path_in(name)
    path = base / Path(file).expanduser()
    if path.exists():
        return name.replace(file, str(path), 1)
    return "+".join(anchor_path(each, base) for each in _split_fusion(name)) or name


def is_card(model: str) -> bool:
    """Return whether ``model`` names a card or Python code rather than a folder or Hub id."""
    named = model in card_names() or model.endswith(".toml") or _split_fusion(model)
    patterns = READY_VECTORS.fullmatch(model) or PYTHON_FILE.fullmatch(model)
    return bool(named or patterns) and not Path(model).expanduser().is_dir()


def is_url(model: str) -> bool:
    """Return whether ``model`` is the URL of an endpoint."""
    return model.startswith(("http://", "https://"))


def card_of_endpoint(url: str, endpoint_model: str, **fields: Any) -> Card:
    """Return the card of a model behind a URL, with other ``fields``.

    Its name is the last part of ``endpoint_model``, the name on the server.
    """
    if not endpoint_model:
        problem = "the URL of a server needs the name of one of its models"
        raise BenchError(problem, "Add --endpoint-model NAME, as listed at /v1/models")
    named = {"name": endpoint_model.rpartition("/")[2], "title": f"{endpoint_model} at {url}"}
    address = {"kind": "endpoint", "url": url, "endpoint_model": endpoint_model}
    return make_card({**named, **address, **fields})


def _declared_card(name: str) -> Card:
    """Return the card of a checkpoint whose files state how vectors are made."""
    is_folder = Path(name).expanduser().is_dir()
    known = next((card for card in all_cards().values() if card.checkpoint == name), None)
    if known is not None and not is_folder:
        raise BenchError(f"{name} has a card", f"Use its card: {known.name}")
    folder = locate_checkpoint(name, base=Path.cwd(), with_weights=False)
    card = folder.read_card(name)
    if card is None:
        raise _explain_missing_settings(folder.root, name)
    changes = {"name": Path(name).name, "title": f"{name} (sentence-transformers)"}
    return replace_fields(card, changes | ({} if is_folder else {"checkpoint": name}))


def _card_like(card: Card, checkpoint: str) -> Card:
    """Return a card for another checkpoint, without what the card says of its own."""
    if not card.traits.is_network:
        problem = f"--like {card.name}: its card does not describe a transformer checkpoint"
        raise BenchError(problem, "See `python -m bench list models`.")
    if card.query_checkpoint:
        problem = f"--like {card.name}: that model has two encoders, but one checkpoint was given"
        raise BenchError(problem, "Write a card with checkpoint and query_checkpoint, and pass it.")
    path = Path(checkpoint).expanduser()
    folder = locate_checkpoint(checkpoint, base=Path.cwd(), with_weights=False)
    # ANCE's weights state a classifier, and its card a stage instead.
    stated = folder.read_card(checkpoint, may_classify=bool(card.stages))
    if stated is not None and not stated.traits.is_stated:
        raise BenchError(f"--like {card.name} does not apply: {stated.warning}", "Leave it out.")
    if stated is not None and not stated.pretrained_only:
        _check_like(card, stated, folder)
    return make_card_like(
        card,
        name=path.name,
        title=f"{path.name}, like {card.title}",
        checkpoint=str(folder.root) if path.is_dir() else checkpoint,
        trained_on=stated.trained_on if stated else (),
        dimensions=stated.dimensions if stated else None,
    )


def _check_like(card: Card, stated: Card, folder: ModelFolder) -> None:
    """Raise if a card contradicts the folder that is used like it.

    Lengths only cause a warning, since users choose them. So does normalisation without a module
    for it: sentence-transformers writes cosine even if nobody chose it.
    """
    used, open_to_choice = _list_settings(card), {"max_query_tokens", "max_document_tokens"}
    if folder.lacks_normalize:
        open_to_choice.add("normalize")
    for name, value in _list_settings(stated).items():
        chosen = used.get(name, "none")
        if value == chosen:
            continue
        if name not in open_to_choice:
            wrong = f"its {name} is {value}, not {chosen}"
            problem = f"--like {card.name} contradicts {folder.root}: {wrong}"
            raise BenchError(problem, "Leave --like out, or correct the folder's settings.")
        logger.warning("%s states %s %s, but %s is used", folder.root, name, value, chosen)


def _list_settings(card: Card) -> dict[str, Any]:
    """Return the settings of a card that change vectors, without empty prompts."""
    names = ("truncation_side", "lower_case", "max_query_tokens", "max_document_tokens")
    prompts = {"query prompt": card.prompts.query, "document prompt": card.prompts.document}
    return {
        "pooling": card.pooling,
        "normalize": card.normalize,
        "stages": [stage.folder or stage.key for stage in card.stages],
        **{name: getattr(card, name) for name in names},
        **{name: repr(text) for name, text in prompts.items() if text},
    }


def _explain_missing_settings(folder: Path, typed: str) -> BenchError:
    """Return the error for a folder that does not state how vectors are made."""
    if (folder / ADAPTER_CONFIG).is_file():
        stated = read_object(folder / ADAPTER_CONFIG)
        base = next((stated[name] for name in BASE_NAMES if stated.get(name)), "BASE")
        return BenchError(
            f"{typed} is an adapter without its base model",
            f"Give its base as the model, and the folder as --adapter: {base} --adapter {typed}",
        )
    if (folder / TRAINING_FILE).is_file():
        models = Path(typed).glob(f"checkpoints/checkpoint-*/model/{CARD_FILE}")
        latest = max(models, key=lambda path: path.stat().st_mtime, default=None)
        evaluate = f"; or evaluate its last checkpoint: --model {latest.parent}" if latest else ""
        problem = f"{typed} is an interrupted training"
        return BenchError(problem, f"Run the same command again to continue it{evaluate}")
    if not (folder / "config.json").exists():
        files = (path for name in ("config.json", CARD_FILE) for path in folder.glob(f"*/{name}"))
        names = [str(Path(typed) / name) for name in sorted({path.parent.name for path in files})]
        problem = f"{typed} is not the folder of a model: it has no config.json"
        inside = f"Give a model in it: {format_names(names)}" if names else ""
        return BenchError(problem, inside or "Give the folder of a model.")
    return BenchError(
        f"{typed} is a plain checkpoint: it does not state how vectors are made (pooling, "
        "normalisation, prompts, lengths), and a guess gives wrong scores",
        "Look up how it was trained, then add --like CARD with a card that is used in the same "
        "way (`python -m bench list models`), or write card.toml into its folder.",
    )

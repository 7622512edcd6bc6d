"""Python code of the user: classes loaded from files, and hashes of sources with their imports."""

import ast
import hashlib
import logging
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from foundation.errors import BenchError, did_you_mean, first_line, format_names

SUFFIX = ".py"
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("foundation", "datasets_cfg", "retrievers", "bench", "reports")  # of this program
_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = [Path(sysconfig.get_paths()[name]) for name in _FOLDERS]
_INSTALLED += [ROOT / name for name in PACKAGES]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_sources: dict[str, tuple[object, bytes]] = {}  # by module, with what a reload replaces
_loaded: dict[str, ModuleType] = {}  # modules of files that the user named


def loaded_files() -> tuple[str, ...]:
    """Return the paths of the files that `run_file` has run in this process."""
    return tuple(_loaded)


def load_class(path: str, base: type[T]) -> type[T]:
    """Return the subclass of ``base`` that a Python file of the user defines, and log that it is
    run.

    The class's ``__module__`` is ``path``. The file can import modules of its folder.
    """
    values = [value for value in vars(run_file(path)).values() if isinstance(value, type)]
    own = [each for each in values if each.__module__ == path and each.__name__[0] != "_"]
    classes = [each for each in own if issubclass(each, base)]
    if len(classes) != 1:
        found = ", ".join(each.__name__ for each in classes) or "none"
        problem = f"{path} must define one subclass of {base.__name__}; found: {found}"
        hint = f"Define one, from {base.__module__} import {base.__name__}."
        raise BenchError(problem, hint)
    return classes[0]


def load_name(path: str, name: str) -> Any:
    """Return the object ``name`` of a Python file of the user, which is run."""
    values = vars(run_file(path))
    if name not in values:
        own = [n for n, v in values.items() if getattr(v, "__module__", None) == path]
        defined = f"It defines {format_names(own)}."
        raise BenchError(f"{path} does not define {name}", did_you_mean(name, own, defined))
    return values[name]


def run_file(path: str) -> ModuleType:
    """Run a file as a module, unless this content has been run already."""
    file = Path(path).resolve()
    try:
        source = file.read_bytes()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}", "Check the path.") from error
    known = _loaded.get(path)
    if known and known.__file__ == str(file) and _sources[path][1] == source:
        return known
    logger.warning("running the code of %s", file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = ModuleType(path)
    module.__file__ = str(file)
    sys.modules[path] = module  # where annotations are looked up
    try:
        exec(compile(source, str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[path]
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise BenchError(f"{path} cannot be run: {problem}", "Fix the file.") from error
    _loaded[path], _sources[path] = module, (module, source)
    for name in hash_sources(path).keys() - {file.name}:
        sibling, imported = file.parent.joinpath(*name.split(".")), _find_file(name)
        for expected in _files_of(sibling):
            if imported and expected.is_file() and not expected.samefile(imported):
                problem = f"{path} imports {name}, which is {imported} in this process"
                hint = "Rename one of the two files, or type one command for each model."
                raise BenchError(f"{problem}, not {expected}", hint)
    return module


def hash_sources(module: str, follow: Callable[[str], bool] = lambda name: False) -> dict[str, str]:
    """Return the SHA-256 of a module's file and of the user's modules that it imports.

    Modules of this program, of the standard library and below ``site-packages`` do not count. Only
    ``import`` statements are followed.

    Args:
        module: name of the module, or path of a file that `run_file` has run.
        follow: whether a module of this program counts if it is imported.

    Returns:
        Hexadecimal hashes by file name for the module, and by module name for its imports.
    """
    hashes: dict[str, str] = {}
    waiting, seen = [module], {module}
    while waiting:
        name = waiting.pop(0)
        path = _find_file(name)
        if path is None or not path.is_file():
            continue
        source = _read_source(name, path)
        hashes[path.name if name == module else name] = hashlib.sha256(source).hexdigest()
        if path.suffix != SUFFIX:
            continue
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        for imported in _imported_modules(source, package):
            if imported not in seen and (follow(imported) or _is_of_user(imported)):
                waiting.append(imported)
            seen.add(imported)
    return hashes


def find_own_files(path: Path, folder: Path | None = None) -> tuple[list[Path], dict[str, Path]]:
    """Return a file of code with those of ``folder`` that it imports, and modules elsewhere.

    Nothing is run. ``folder`` is where imports are looked for, by default the folder of the file.
    The modules elsewhere are of the user, too, by name.
    """
    folder = path.parent if folder is None else folder
    found, elsewhere = [path], dict[str, Path]()
    for file in found:  # which grows
        package = ".".join(file.relative_to(folder).parts[:-1])
        for name in _imported_modules(file.read_bytes(), package):
            module = folder.joinpath(*name.split("."))
            files = [each for each in _files_of(module) if each.is_file()]
            found += [each for each in files if each not in found]
            top = name.partition(".")[0]
            is_here = folder.joinpath(top).is_dir() or folder.joinpath(top + SUFFIX).is_file()
            if not is_here and _is_of_user(top) and (other := _find_file(top)):
                elsewhere[top] = other
    return found, elsewhere


def find_module(name: str, folder: Path) -> Path | None:
    """Return the file below ``folder`` that ``python -m`` runs for the module ``name``, or None."""
    module = folder.joinpath(*name.split("."))
    files = (module.with_suffix(SUFFIX), module / "__main__.py")
    return next((file for file in files if file.is_file()), None)


def _files_of(module: Path) -> tuple[Path, Path]:
    """Return the files that may define a module whose path has no suffix."""
    return module.with_suffix(SUFFIX), module / "__init__.py"


def _find_file(name: str) -> Path | None:
    """Return the file of a module, or the folder of a namespace package. None if unknown."""
    if file := getattr(sys.modules.get(name), "__file__", None):
        return Path(file)
    try:
        spec = find_spec(name)
    except (Exception, SystemExit):  # the package around it is absent, or cannot be imported
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    found = spec.origin if spec.has_location else next(iter(folders), None)
    return Path(found) if found else None


def _read_source(name: str, path: Path) -> bytes:
    """Return the source of a module, which for an imported one is not read again until a reload."""
    module = sys.modules.get(name)
    owner = getattr(module, "__spec__", None) or module
    if owner is None:
        return path.read_bytes()
    if name not in _sources or _sources[name][0] is not owner:
        _sources[name] = owner, path.read_bytes()
    return _sources[name][1]


def _is_of_user(name: str) -> bool:
    """Return True if a module belongs neither to this program nor to an installed distribution."""
    path = _find_file(name.partition(".")[0])  # finding a submodule would import its package
    return path is not None and not (
        {"site-packages", "dist-packages"} & {*path.parts}
        or any(path.resolve().is_relative_to(folder) for folder in _INSTALLED)
    )


@cache
def _imported_modules(source: bytes, package: str) -> tuple[str, ...]:
    """Return the names that a source file of ``package`` imports, and the packages around them."""
    names: list[str] = []
    with suppress(SyntaxError, ValueError, ImportError):  # it cannot be imported either
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                names += [f"{base}.{alias.name}" for alias in node.names]  # modules or members
    parts = [name.split(".") for name in names]
    return tuple(".".join(each[:end]) for each in parts for end in range(1, len(each) + 1))

"""Import directions between packages, the content of the wheel, and declared dependencies."""

import ast
import dataclasses
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.requests.outcomes import ExitCode
from tests.support.collections import COMMAND_LINE, modules_after

ROOT = Path(__file__).parents[1]
PACKAGES = ("bench", "datasets_cfg", "foundation", "reports", "retrievers")
COMMANDS = (ROOT / "bench" / "cli" / "commands").glob("*.py")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAY_IMPORT_REPORTS = {
    "bench/api.py",
    "bench/cli/main.py",
    *(f"bench/cli/commands/{n.name}" for n in COMMANDS),
}
# Each of these takes longer to import than `list` may take in all.
SLOW = {
    "adapters",
    "faiss",
    "matplotlib",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
}
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "Stemmer": {"pystemmer"},
    "faiss": {"faiss-cpu", "faiss-gpu"},
    "yaml": {"pyyaml"},
}


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Absolute module and name of every import anywhere in a file; "" for a whole module."""
    package, found = path.relative_to(ROOT).parent.parts, []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [(module, alias.name) for alias in node.names]
    return tuple(found)


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in SOURCES
    if path.name != "__init__.py"
}


def modules_used(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere in it, packages left out."""
    names = {name for module, part in imports(path) for name in (module, f"{module}.{part}")}
    return names & set(MODULES)


def circles(used: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules each of which leads back to itself by way of the others."""
    reached = {module: set(names) for module, names in used.items()}
    for middle in reached:
        for module in reached:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    together = (
        frozenset(other for other in reached[module] if module in reached[other])
        for module in reached
        if module in reached[module]
    )
    return [set(circle) for circle in dict.fromkeys(together)]


def test_import_cycles_are_found():
    used = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e2"}, "e2": set()}
    assert circles(used) == [{"a", "b", "c"}]


def test_no_module_imports_itself_by_way_of_others():
    # A package hands out what its modules hold, so what `__init__` imports is not counted.
    used = {name: modules_used(path) for name, path in MODULES.items()}
    assert circles(used) == []


def package_of(module: str) -> str:
    """The folder of a module; a module right in a package stands for itself."""
    parts = module.split(".")
    return module if len(parts) <= 2 else ".".join(parts[:-1])


def folders_used(path: Path) -> set[str]:
    folders = {".".join(path.relative_to(ROOT).parent.parts) for path in SOURCES}
    named = {name for module, part in imports(path) for name in (module, f"{module}.{part}")}
    return {package_of(name) for name in named & set(MODULES)} | (named & folders - set(PACKAGES))


def test_no_package_imports_itself_by_way_of_others():
    used: dict[str, set[str]] = {}
    for path in SOURCES:
        names = path.relative_to(ROOT).with_suffix("").parts
        if names[1:] != ("__init__",):  # the front of a package, which nothing in it imports
            package = package_of(".".join(names))
            used.setdefault(package, set()).update(folders_used(path) - {package})
    for name in [name for names in used.values() for name in names]:
        used.setdefault(name, set())
    assert circles(used) == []


def packages_used(path: Path) -> set[str]:
    return {module.partition(".")[0] for module, _ in imports(path)} & set(PACKAGES)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_follow_the_direction_of_the_data():
    allowed = {
        "foundation": {"foundation"},
        "datasets_cfg": {"foundation", "datasets_cfg"},
        "retrievers": {"foundation", "retrievers"},
        "bench": set(PACKAGES) - {"reports"},
        "reports": set(PACKAGES),  # records only: see the next test
    }
    wrong = {}
    for path in SOURCES:
        name = name_of(path)
        others = packages_used(path) - allowed[name.partition("/")[0]]
        if name in MAY_IMPORT_REPORTS:
            others -= {"reports"}
        if others:
            wrong[name] = others
    assert wrong == {}


def test_reports_import_only_frozen_records():
    imported = {
        (module, name)
        for path in (ROOT / "reports").rglob("*.py")
        for module, name in imports(path)
        if module.partition(".")[0] in set(PACKAGES) - {"foundation", "reports"}
    }
    assert {f"{module}.{name}" for module, name in imported if not is_frozen(module, name)} == set()


def is_frozen(module: str, name: str) -> bool:
    found = getattr(importlib.import_module(module), name, None)
    kinds = get_args(found) or (found,)  # a union of records is one, too
    return all(isinstance(kind, type) and is_frozen_type(kind) for kind in kinds)


def is_frozen_type(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen


@pytest.mark.parametrize(
    "arguments",
    [
        *("--help", "list models"),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in ("run --help", "list datasets", "list suites", "list indexes")
        ),
        *(pytest.param(words, marks=pytest.mark.slow) for words in ("list presets", "list grids")),
    ],
)
def test_help_and_lists_load_no_slow_library(arguments):
    assert SLOW & modules_after(COMMAND_LINE, *arguments.split()) == set()


def project() -> dict:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def requirements() -> list[Requirement]:
    """Of the core and of all extras, without the project's own name."""
    declared = project()
    extras = [text for texts in declared["optional-dependencies"].values() for text in texts]
    found = [Requirement(text) for text in [*declared["dependencies"], *extras]]
    return [one for one in found if one.name != declared["name"]]


def third_party(path: Path) -> set[str]:
    own = {*PACKAGES, *sys.stdlib_module_names}
    return {module.partition(".")[0] for module, _ in imports(path)} - own


def distributions(module: str) -> set[str]:
    return DISTRIBUTIONS.get(module, {canonicalize_name(module)})


def test_every_library_that_is_imported_is_declared():
    declared = {canonicalize_name(one.name) for one in requirements()}
    missing = {
        module
        for path in SOURCES
        for module in third_party(path)
        if not distributions(module) & declared
    }
    assert missing == set()


def test_every_library_of_the_core_is_imported():
    modules = {module for path in SOURCES for module in third_party(path)}
    used = {name for module in modules for name in distributions(module)}
    core = {canonicalize_name(Requirement(text).name) for text in project()["dependencies"]}
    assert core - used == set()


@pytest.mark.parametrize("version", [4, 5])
def test_constraints_pin_what_is_declared_inside_its_range(version):
    lines = (ROOT / f"constraints/transformers-{version}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    core = [Requirement(text) for text in project()["dependencies"]]
    assert [str(one) for one in core if not one.specifier.contains(pins.get(one.name, "0"))] == []
    assert pins["transformers"].startswith(f"{version}.")
    others = [one for one in requirements() if one.name in pins and one.name != "transformers"]
    assert [str(one) for one in others if not one.specifier.contains(pins[one.name])] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from a copy of the sources and installed into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(target)], cwd=source, capture_output=True, check=True
    )
    (wheel,) = target.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run(
        [*pip, "--target", str(target / "site"), str(wheel)], capture_output=True, check=True
    )
    return target / "site"


@pytest.mark.slow
def test_the_wheel_holds_every_module_collection_card_and_page_and_nothing_else(installed):
    expected = {
        name_of(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".toml", ".txt", ".html", ".css", ".js", ".gz", ".md")
    } | {f"{package}/py.typed" for package in PACKAGES}
    packaged = {
        path.relative_to(installed).as_posix()
        for path in installed.rglob("*")
        if path.is_file()
        and ".dist-info" not in path.parts[-2] + path.parts[-3]
        and path.parent.name != "bin"
    }
    assert packaged == expected


@pytest.mark.slow
def test_the_installed_package_knows_its_collections_and_cards_in_any_folder(installed, tmp_path):
    for what, example in (("models", "minilm"), ("datasets", "beir/cqadupstack/tex")):
        listed = run_installed(installed, tmp_path, [sys.executable, "-m", "bench", "list", what])
        assert example in listed.stdout.split()


@pytest.mark.slow
def test_the_first_command_of_the_readme_runs_from_the_wheel(installed, tmp_path):
    """On few queries, in another folder: a file that is not packaged is missed here."""
    (command,) = re.findall(r"&& (python -m bench run stdlib-code [^\n]*)$", readme(), re.MULTILINE)
    few = ["--limit", "3", "--cache-dir", "cache", "--results", "results"]
    done = run_installed(installed, tmp_path, [sys.executable, *command.split()[1:], *few])
    assert "stdlib-code" in done.stdout, done.stderr


def run_installed(installed: Path, folder: Path, command: list[str]) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("typed", [["bench"], [sys.executable, "-m", "bench"]], ids=len)
def test_help_examples_and_hints_name_the_program_as_it_was_called(installed, tmp_path, typed):
    name = "bench" if typed == ["bench"] else "python -m bench"
    command = [str(installed / "bin/bench")] if typed == ["bench"] else typed
    shown = run_installed(installed, tmp_path, [*command, "--help"])
    assert shown.returncode == ExitCode.OK
    assert shown.stdout.startswith(f"Usage: {name} COMMAND\n")
    assert f" {name} run stdlib-code --model minilm " in shown.stdout
    refused = run_installed(installed, tmp_path, [*command, "run", "--modle", "minilm"])
    assert refused.returncode == ExitCode.BAD_INPUT
    assert refused.stderr.splitlines()[-1] == f"  Run `{name} run --help`."


def readme() -> str:
    return (ROOT / "README.md").read_text()


def commands() -> list[str]:
    return re.findall(r"^```sh\n(.*?)\n```$", readme(), re.MULTILINE | re.DOTALL)


def test_continuous_integration_types_the_test_command_of_the_readme():
    assert commands()[1] in (ROOT / ".ci/run").read_text()


def test_a_page_states_every_exit_code():
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE))
    assert set(map(int, table)) == set(map(int, ExitCode))

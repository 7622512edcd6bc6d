"""The documentation: commands can be typed, links lead somewhere, the workflow works."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import bench
from bench.cli.main import parse_command
from bench.experiments.report_record import Report
from foundation.records import read_json

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from generate import GENERATED

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.relative_to(ROOT / "docs").parts[0] != "experiments"
    and page.relative_to(ROOT).as_posix() not in {f"docs/reference/{name}.md" for name in GENERATED}
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def blocks(language: str) -> list[tuple[str, str]]:
    """Code blocks of a language, with the page that they are on."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        (page.relative_to(ROOT).as_posix(), text)
        for page in PAGES
        for text in fence.findall(page.read_text(encoding="utf-8"))
    ]


def commands() -> list[tuple[str, str]]:
    """Every line ``python -m bench ...`` of the documentation."""
    found = []
    for page, text in [*blocks("bash"), *blocks("sh")]:
        for line in text.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                if part.strip().startswith("python -m bench "):
                    found.append((page, part.strip()))
    return found


def id_of(case: tuple[str, str]) -> str:
    return f"{case[0]}: {case[1].partition(chr(10))[0]}"[:90]


@pytest.mark.parametrize("case", commands(), ids=id_of)
def test_every_command_of_the_documentation_can_be_typed(case):
    words = shlex.split(case[1].partition(" > ")[0], comments=True)[3:]
    parse_command(words)


def described_types() -> list[tuple[str, str]]:
    """Package and name of each type on the page about the data model."""
    model = (ROOT / "docs/explanation/data-model.md").read_text(encoding="utf-8")
    package, found = "", []
    for cells in (line.split("|") for line in model.splitlines() if line.startswith("| ")):
        package = cells[1].strip(" `") or package
        found += [(package, name) for name in re.findall(r"`(\w+)`", cells[2])]
    return found


@pytest.mark.parametrize(("package", "name"), described_types())
def test_the_types_of_the_data_model_exist(package, name):
    path = ROOT / package
    sources = [path] if path.is_file() else path.rglob("*.py")
    assert any(re.search(rf"^class {name}\b", file.read_text(), re.MULTILINE) for file in sources)


@pytest.mark.parametrize("case", blocks("python"), ids=id_of)
def test_python_of_the_documentation_names_what_there_is(case):
    for node in ast.walk(ast.parse(case[1])):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "bench":
            assert hasattr(bench, node.attr)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_inside_the_repository_lead_somewhere(page):
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    generated = {ROOT / f"docs/reference/{name}.md" for name in GENERATED}
    paths = [(page.parent / target).resolve() for target in targets]
    assert [path for path in paths if not path.exists() or path in generated] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_headings_lead_to_one(page):
    for target, anchor in re.findall(r"\]\(([^)#\s:]*\.md)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.MULTILINE)
        assert anchor in [
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_are_plain_markdown_which_a_code_host_shows(page):
    """No directives, roles or targets of the site: a code host shows them as they are typed."""
    text = re.sub(r"`[^`\n]+`", "", page.read_text())
    assert re.findall(r"^(?:`{3,}\{.*|:{3,}.*|\(\w+\)=)$|\{\w+\}`", text, re.MULTILINE) == []


def test_the_reference_has_a_section_for_each_generated_page():
    index = (ROOT / "docs/reference/index.md").read_text()
    for make in GENERATED.values():
        assert f"\n#{make().partition(chr(10))[0]}\n" in index


def test_measurements_are_tables_of_short_cells():
    page = (ROOT / "docs/measurements.md").read_text(encoding="utf-8")
    assert max(map(len, re.findall(r"(?<=\| )[^|\n]*(?= \|)", page))) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_short(page):
    """At most 800 words, without tables and code."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 800


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs/pictures").iterdir()), ids=lambda p: p.name
)
def test_a_picture_is_small_and_on_a_page(picture):
    assert picture.stat().st_size <= 150_000
    assert any(f"pictures/{picture.name})" in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_readme_fits_eight_kilobytes():
    assert (ROOT / "README.md").stat().st_size <= 8 * 1024


def workflow() -> dict:
    (text,) = (text for page, text in blocks("yaml") if page == "docs/tutorials/gate-in-ci.md")
    return yaml.safe_load(text)["jobs"]["check"]


def test_the_workflow_of_the_tutorial_decides_as_it_says(tmp_path):
    """Its step is run as it is written, on a small collection in place of the published ones."""
    from tests.support.collections import write_collection

    collection = write_collection(tmp_path / "tiny")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "BENCH_CACHE": str(tmp_path / "cache"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "CANDIDATE": "hashing",
        "BASELINE": "hashing",
        "COLLECTIONS": str(collection),
    }
    assert (
        environment.keys() >= {"CANDIDATE", "BASELINE", "COLLECTIONS"} <= workflow()["env"].keys()
    )

    def bash(script: str) -> int:
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False
        )
        return done.returncode

    (step,) = (step for step in workflow()["steps"] if step.get("name") == "Check")
    assert bash(step["run"]) == 2  # no result of the baseline is committed
    made = "python -m bench run $COLLECTIONS --model $BASELINE --results baseline-results"
    assert bash(made) == 0
    assert bash(step["run"]) == 3  # too few queries
    assert "queries are needed" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "check.xml").is_file()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("report.json")), ids=lambda path: path.parent.name
)
def test_the_report_of_every_experiment_can_be_read(path):
    assert read_json(path, Report).name == path.parent.name

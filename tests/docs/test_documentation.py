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


def test_every_command_of_the_documentation_can_be_typed():
    for page, command in commands():
        words = shlex.split(command.partition(" > ")[0], comments=True)[3:]
        try:
            parse_command(words)
        except Exception as error:
            pytest.fail(f"{page}: {command}: {error}")


def described_types() -> list[tuple[str, str]]:
    """Package and name of each type on the page about the data model."""
    model = (ROOT / "docs/explanation/data-model.md").read_text(encoding="utf-8")
    package, found = "", []
    for cells in (line.split("|") for line in model.splitlines() if line.startswith("| ")):
        package = cells[1].strip(" `") or package
        found += [(package, name) for name in re.findall(r"`(\w+)`", cells[2])]
    return found


def test_the_types_of_the_data_model_exist():
    for package, name in described_types():
        path = ROOT / package
        sources = [path] if path.is_file() else path.rglob("*.py")
        pattern = re.compile(rf"^class {name}\b", re.MULTILINE)
        assert any(pattern.search(file.read_text()) for file in sources), (package, name)


def test_python_code_of_the_documentation_uses_existing_attributes():
    for page, text in blocks("python"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "bench":
                assert hasattr(bench, node.attr), (page, node.attr)


def test_links_inside_the_repository_lead_to_existing_files():
    generated = {ROOT / f"docs/reference/{name}.md" for name in GENERATED}
    for page in PAGES:
        targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
        paths = [(page.parent / target).resolve() for target in targets]
        assert [path for path in paths if not path.exists() or path in generated] == [], page


def test_links_to_headings_lead_to_existing_headings():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s:]*\.md)#([^)]+)\)", page.read_text()):
            headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
            ], page


def test_the_reference_has_a_section_for_each_generated_page():
    index = (ROOT / "docs/reference/index.md").read_text()
    for make in GENERATED.values():
        assert f"\n#{make().partition(chr(10))[0]}\n" in index


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs"]
    subprocess.run([*command, tmp_path], cwd=ROOT, check=True)


def workflow() -> dict:
    (text,) = (text for page, text in blocks("yaml") if page == "docs/tutorials/gate-in-ci.md")
    return yaml.safe_load(text)["jobs"]["check"]


@pytest.mark.slow
def test_the_workflow_of_the_tutorial_has_the_exit_codes_of_the_page(tmp_path):
    """Its steps are run as they are written, on a small collection in place of the published ones.

    ``gh`` is a script that keeps its arguments.
    """
    from tests.support.collections import write_collection

    collection = write_collection(tmp_path / "tiny")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join(
            [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "BENCH_CACHE": str(tmp_path / "cache"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "CANDIDATE": "hashing",
        "BASELINE": "hashing",
        "COLLECTIONS": str(collection),
        "PULL_REQUEST": "7",
    }
    (tmp_path / "bin").mkdir()
    gh = tmp_path / "bin" / "gh"
    gh.write_text('#!/bin/sh\necho "$@" >> posted.txt\n', encoding="utf-8")
    gh.chmod(0o755)
    assert (
        environment.keys() >= {"CANDIDATE", "BASELINE", "COLLECTIONS"} <= workflow()["env"].keys()
    )

    def bash(script: str) -> int:
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False
        )
        return done.returncode

    steps = {step["name"]: step for step in workflow()["steps"] if "name" in step}
    step, comment = steps["Check"], steps["Comment"]
    assert comment["if"] == "always()"
    assert comment["env"].keys() == {"GH_TOKEN", "PULL_REQUEST"}
    assert bash(step["run"]) == 2  # no result of the baseline is committed
    assert bash(comment["run"]) == 0
    assert not (tmp_path / "posted.txt").exists()  # there is no report
    made = "python -m bench run $COLLECTIONS --model $BASELINE --results baseline-results"
    assert bash(made) == 0
    assert bash(step["run"]) == 3  # too few queries
    assert bash(comment["run"]) == 0
    summary = (tmp_path / "summary.md").read_text()
    assert "queries are needed" in summary
    assert summary.startswith("## INCONCLUSIVE: hashing\n")
    assert (tmp_path / "posted.txt").read_text().split()[:3] == ["pr", "comment", "7"]
    assert (tmp_path / "check.md").read_text() == summary
    assert 'failures="1"' in (tmp_path / "check.xml").read_text()


def test_the_report_of_every_experiment_can_be_read():
    for path in (ROOT / "docs").rglob("report.json"):
        assert read_json(path, Report).name == path.parent.name

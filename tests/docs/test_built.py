"""The documentation's site and the README's first command, as a user has them. Slow."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs"]
    subprocess.run([*command, tmp_path], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_first_command_of_the_readme_runs_from_the_built_package(tmp_path):
    """On few queries, in another folder: a file that is not packaged is missed here."""
    try:
        distribution("retrieval-bench")
    except PackageNotFoundError:
        pytest.skip("the package is not installed")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"&& (python -m bench run stdlib-code [^\n]*)$", readme, re.MULTILINE)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    few = ["--limit", "20", "--cache-dir", "cache", "--results", "results"]
    done = subprocess.run(
        [sys.executable, *command.split()[1:], *few],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "stdlib-code" in done.stdout

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
@pytest.mark.parametrize("builder", ["html", "linkcheck"])
def test_the_site_is_built_without_a_warning(tmp_path, builder):
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", builder, "docs"]
    subprocess.run([*command, tmp_path], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_first_command_of_the_readme_prints_what_the_readme_shows(tmp_path):
    """From the built package, in another folder: a file that is not packaged is missed here."""
    try:
        distribution("retrieval-bench")
    except PackageNotFoundError:
        pytest.skip("the package is not installed")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(stdlib-code: .*?)^```", readme, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"&& (python -m bench run stdlib-code [^\n]*)$", readme, re.MULTILINE)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command.split()[1:], "--cache-dir", "cache", "--results", "results"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    if f"py{'.'.join(map(str, sys.version_info[:3]))}-" not in shown:
        pytest.skip("the README's scores are of another version of the standard library")
    assert done.stdout.strip().splitlines()[: len(shown.strip().splitlines())] == (
        shown.strip().splitlines()
    )

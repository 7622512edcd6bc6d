"""Commands whose results lie in a bucket of a real S3 server, as with a local folder."""

import json

import pytest

from bench.requests.outcomes import ExitCode
from tests.support import s3
from tests.support.collections import write_collection

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3")
    (folder / "bucket").mkdir()
    with s3.served(folder) as address:
        yield address


@pytest.fixture
def url(server, monkeypatch, tmp_path):
    s3.allow(monkeypatch, server)
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def evaluated(bench, url, tmp_path):
    """A collection with two results in the bucket."""
    folder = write_collection(tmp_path / "tiny")
    done = bench("run", folder, "--model", "hashing", "bm25", "--results", url)
    assert done.code == 0, done.stderr
    assert f"saved to {url}/tiny/hashing/" in done.stderr
    return folder


def test_results_of_a_bucket_are_compared_as_those_of_a_folder(bench, url, evaluated, tmp_path):
    assert bench("run", evaluated, "--model", "hashing", "bm25").code == 0
    options = ("--resamples", 199, "--json")
    remote = bench("compare", "hashing", "bm25", "--results", url, *options)
    local = bench("compare", "hashing", "bm25", "--results", bench.out, *options)
    assert remote.code == local.code == 0, remote.stderr
    assert json.loads(remote.stdout) == json.loads(local.stdout)


def test_a_leaderboard_is_made_from_a_bucket(bench, url, evaluated):
    options = ("--results", url, "--resamples", 199)
    page = bench("leaderboard", *options, "--format", "html")
    assert page.code == 0, page.stderr
    assert "</html>" in page.stdout
    table = bench("leaderboard", *options)
    assert "| hashing" in table.stdout
    assert "| bm25" in table.stdout


def test_the_gate_finds_its_baseline_in_a_bucket_and_keeps_the_candidate_there(
    bench, url, evaluated
):
    done = bench(
        "check",
        "hashing",
        *("--baseline", "hashing", "--on", evaluated, "--results", url, "--expect-same"),
        *("--cache-dir", bench.cache, "--resamples", 199),
    )
    assert done.code == ExitCode.OK, done.stderr
    assert f"using the result in {url}/" in done.stderr


def test_an_evaluation_that_is_repeated_is_kept_beside_the_first(bench, url, evaluated):
    shallow = ("--depth", 30, "--measure", "nDCG@10")
    again = bench("run", evaluated, "--model", "hashing", "--results", url, *shallow)
    assert again.code == 0, again.stderr
    shown = bench("compare", "hashing@depth=30", "hashing@depth=1000", "--results", url, "--force")
    assert shown.code == 0, shown.stderr


def test_a_stored_result_in_a_bucket_is_reused(bench, url, evaluated):
    again = bench("run", evaluated, "--model", "hashing", "--results", url)
    assert again.code == 0, again.stderr
    assert f"stored in {url}/tiny/hashing/" in again.stderr


def test_rankings_are_exported_into_a_bucket(bench, url, evaluated):
    runs = bench("export", "trec", "bm25", "--results", url, "--out", f"{url}-runs")
    assert runs.stdout.strip() == f"{url}-runs/bm25/tiny.trec.gz"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s3://missing/results", "there is no bucket missing"),
        ("s3:/bucket/results", "one slash too few"),
        ("nosuchstore://bucket/results", "unknown kind of store"),
    ],
)
def test_an_unwritable_path_is_refused_before_anything_is_encoded(
    out, message, bench, url, tmp_path
):
    folder = write_collection(tmp_path / "tiny")
    done = bench("run", folder, "--model", "hashing", "--results", out)
    assert done.code == ExitCode.BAD_INPUT
    assert message in done.stderr
    assert not bench.cache.exists()


def test_wrong_credentials_are_refused_before_anything_is_encoded(
    bench, server, monkeypatch, tmp_path
):
    s3.allow(monkeypatch, server, secret="wrong")
    folder = write_collection(tmp_path / "tiny")
    done = bench("run", folder, "--model", "hashing", "--results", "s3://bucket/x")
    assert done.code == ExitCode.BAD_INPUT
    assert "AWS_SECRET_ACCESS_KEY" in done.stderr
    assert not bench.cache.exists()

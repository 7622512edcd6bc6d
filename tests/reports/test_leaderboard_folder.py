"""The folder of a site: what a leaderboard wrote is replaced, files of others stay."""

from pathlib import Path

import pytest

from bench.boards.assembly import Choice, assemble
from bench.boards.records import Board
from bench.boards.rows import results_in
from bench.comparing.statistics import Resampling
from foundation.errors import BenchError
from reports.pages import HEADING, LIST, check_free, write_site
from tests.support.leaderboards import store


class Killed(BaseException):
    """Stands for the end of the process."""


def board(place: Path, *models: str) -> Board:
    for number, name in enumerate(models):
        store(place, name, "beir/scifact", [0.5, number / 10])
    choice = Choice(every_measure=True, neighbours=True)
    return assemble(results_in(place), {}, choice, Resampling(resamples=99))


def contents(site: Path) -> dict[str, bytes]:
    return {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in site.rglob("*")
        if path.is_file()
    }


PICTURE = ("heatmap", "Scores", lambda: {".svg": b"<svg/>", ".png": b"png"})


@pytest.fixture
def site(tmp_path) -> Path:
    return write_site(board(tmp_path / "first", "a", "b"), tmp_path / "site").parent


def test_a_folder_that_happens_to_hold_a_data_js_is_refused_and_stays_as_it_is(tmp_path):
    mine = tmp_path / "mine"
    for name in ("data.js", "models/notes.html", "pairs/plot.js"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("mine")
    before = contents(mine)
    with pytest.raises(BenchError, match="no leaderboard wrote") as error:
        write_site(board(tmp_path / "results", "a"), mine)
    assert "--out" in error.value.hint
    assert contents(mine) == before


def test_a_new_an_empty_and_an_earlier_folder_are_free(tmp_path, site):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty", site):
        check_free(folder)


def test_the_list_names_every_file_of_the_site_and_no_other(site):
    listed = (site / LIST).read_text().splitlines()
    assert listed[0] == HEADING
    assert {*listed[1:], LIST} == contents(site).keys()


def test_pages_that_are_no_longer_of_the_leaderboard_go_and_files_of_others_stay(tmp_path, site):
    (site / "CNAME").write_text("mine")
    (site / "models" / "notes.html").write_text("mine")
    assert (site / "models" / "b.html").exists()
    write_site(board(tmp_path / "second", "a"), site)
    assert {path.name for path in (site / "models").iterdir()} == {"a.html", "a.js", "notes.html"}
    assert (site / "CNAME").read_text() == "mine"


def test_wherever_a_process_was_killed_the_next_site_is_whole(tmp_path, monkeypatch):
    old, new = board(tmp_path / "old", "a", "b", "c"), board(tmp_path / "new", "b", "c", "d")
    write_site(new, tmp_path / "expected", pictures=[PICTURE])
    expected = contents(tmp_path / "expected")
    real = Path.write_bytes
    for survived in range(len(expected)):
        site = write_site(old, tmp_path / f"site-{survived}").parent
        left = iter(range(survived))

        def dies(path: Path, content: bytes, left=left) -> int:
            if next(left, None) is None:
                real(path, content[: len(content) // 2])
                raise Killed
            return real(path, content)

        monkeypatch.setattr(Path, "write_bytes", dies)
        with pytest.raises(Killed):
            write_site(new, site, pictures=[PICTURE])
        monkeypatch.setattr(Path, "write_bytes", real)
        write_site(new, site, pictures=[PICTURE])
        assert contents(site) == expected


def test_a_file_of_somebody_else_is_never_replaced_by_a_page(tmp_path, site):
    (site / "models" / "c.html").write_text("mine")
    with pytest.raises(BenchError, match=r"c\.html is in the way"):
        write_site(board(tmp_path / "second", "c"), site)
    assert (site / "models" / "c.html").read_text() == "mine"


@pytest.mark.parametrize("name", ["../mine.html", "/mine.html", "models/../../mine.html", ""])
def test_a_list_that_leads_out_of_the_folder_is_not_obeyed(tmp_path, site, name):
    (tmp_path / "mine.html").write_text("mine")
    with (site / LIST).open("a") as file:
        file.write(f"{name}\n")
    write_site(board(tmp_path / "second", "a"), site)
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_what_a_link_leads_to_is_neither_removed_nor_replaced(tmp_path, site):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.html").write_text("mine")
    for path in (site / "models").iterdir():
        path.unlink()
    (site / "models").rmdir()
    (site / "models").symlink_to(outside)
    second = board(tmp_path / "second", "a")
    with pytest.raises(BenchError, match="leads out of"):
        write_site(second, site)
    (site / "models").unlink()
    (site / "style.css").unlink()
    (site / "style.css").symlink_to(outside / "b.html")
    write_site(second, site)
    assert (outside / "b.html").read_text() == "mine"

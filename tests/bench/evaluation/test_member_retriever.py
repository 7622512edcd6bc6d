"""Rankings of members, which pipelines share, with a real search system that counts its calls."""

import shutil
from pathlib import Path

import pytest

from bench.evaluation.judging import apply_protocol
from bench.evaluation.member_retriever import RANKINGS, search_member
from bench.evaluation.runs import Run
from bench.evaluation.system_retriever import PROBED
from bench.runner.workspace import Workspace
from foundation.errors import DriftError
from retrievers.encoders.transformer import open_encoder
from retrievers.models.resolve import resolve_model
from tests.support.collections import SIXTY, write_collection
from tests.support.embedding_server import serve_model, serving
from tests.support.pipelines import run_of, write_fusion, write_rerank, write_reranker

ASKED = "asked.txt"
SYSTEM = """
class Letters:
    version = "1"

    def search(self, queries, k):
        with open({asked!r}, "a") as file:
            file.writelines(query + chr(10) for query in queries)
        return [self.rank(set(query))[:k] for query in queries]

    def rank(self, letters):
        scores = {{name: len(letters & set(text)) for name, text in {documents!r}.items()}}
        return sorted(scores.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)

prod = Letters()
"""


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> Path:
    write_collection(tmp_path / "mine", *SIXTY)
    documents = {name: " ".join(document) for name, document in SIXTY[0].items()}
    code = SYSTEM.format(asked=str(tmp_path / ASKED), documents=documents)
    (tmp_path / "search.py").write_text(code, encoding="utf-8")
    write_reranker(tmp_path, "return [len(text) for text in texts]")
    return tmp_path


def search(folder: Path, card: str, depth: int = 20) -> tuple[Run, int]:
    """Return the ranking of a card, and how many queries the system was asked for it."""
    workspace = Workspace(folder / "cache", device="cpu")
    asked = folder / ASKED
    before = len(asked.read_text("utf-8").splitlines()) if asked.exists() else 0
    run = run_of(workspace, card, folder / "mine", depth)
    after = len(asked.read_text("utf-8").splitlines()) if asked.exists() else 0
    return run, after - before


def test_members_are_searched_once_for_fusions_and_rerankings(folder):
    members = 'models = ["search.py:prod", "bm25", "hashing"]\n'
    first = write_fusion(folder / "first.toml", members)
    other = write_fusion(folder / "other.toml", f'{members}method = "weighted"\n')
    reranked = write_rerank(folder, "own.py:score", model="first.toml", depth=3)
    found, asked = search(folder, first)
    files = {path: path.read_bytes() for path in (folder / "cache" / RANKINGS).glob("*.arrow")}
    assert len(files) == 3
    assert asked == 60 + PROBED
    for card in (other, reranked, first):
        again, now = search(folder, card)
        assert now == PROBED  # which tell whether the system changed
    assert again.doc_ids.to_pylist() == found.doc_ids.to_pylist()
    assert again.scores.tolist() == found.scores.tolist()
    assert {path: path.read_bytes() for path in (folder / "cache" / RANKINGS).glob("*.arrow")} == (
        files
    )


@pytest.mark.parametrize("model", ["bm25", "hashing"])
def test_a_ranking_that_is_cut_is_that_of_a_search_for_fewer_documents(folder, model):
    workspace = Workspace(folder / "cache", device="cpu")
    dataset = workspace.open(str(folder / "mine")).dataset
    member = workspace.load(model).for_dataset(dataset.name)
    depths = (3, 20, 1001)
    cut = [search_member(member, dataset, depth)[0] for depth in depths]
    files = list((folder / "cache" / RANKINGS).glob("*.arrow"))
    assert len(files) == 2  # of 1,000 documents, and of 1,001
    for depth, run in zip(depths, cut, strict=True):
        alone = apply_protocol(member.search(dataset, depth)[0], dataset, depth)
        assert run.doc_ids.to_pylist() == alone.doc_ids.to_pylist()
        assert run.scores.tolist() == alone.scores.tolist()


def test_a_search_system_is_asked_again_for_fewer_documents(folder):
    models = 'models = ["search.py:prod", "bm25"]\n'
    for depth in (5, 4):
        card = write_fusion(folder / f"f{depth}.toml", f"{models}depth = {depth}\n")
        _, asked = search(folder, card)
        assert asked == 60 + PROBED


@pytest.mark.parametrize("change", ["depth", "member", "document"])
def test_what_changes_a_ranking_is_searched_again(folder, change):
    models = 'models = ["hashing", "bm25"]\n'
    search(folder, write_fusion(folder / "first.toml", f"{models}depth = 4\n"))
    before = len(list((folder / "cache" / RANKINGS).glob("*.arrow")))
    more = 2
    if change == "depth":
        card = write_fusion(folder / "deeper.toml", f"{models}depth = 1001\n")
    elif change == "member":
        (folder / "other.toml").write_text(
            'name = "other"\ntitle = "t"\nkind = "bm25"\n[options]\nk1 = 1.5\n', encoding="utf-8"
        )
        changed = models.replace("bm25", "other.toml")
        card, more = write_fusion(folder / "changed.toml", f"{changed}depth = 4\n"), 1
    else:
        documents = {**SIXTY[0], "new": ("", "a new document")}
        shutil.rmtree(folder / "mine")
        write_collection(folder / "mine", documents, *SIXTY[1:])
        card = str(folder / "first.toml")
    search(folder, card)
    assert len(list((folder / "cache" / RANKINGS).glob("*.arrow"))) == before + more


def test_a_server_that_changed_is_found_however_deep_it_is_in_a_pipeline(folder):
    pytest.importorskip("openai", reason="needs openai: pip install openai")
    encode = serve_model(open_encoder(resolve_model("hashing")))
    with serving(encode) as (url, app):
        card = f'name = "served"\ntitle = "t"\nkind = "endpoint"\nurl = "{url}"\n'
        (folder / "served.toml").write_text(f'{card}endpoint_model = "m"\n', encoding="utf-8")
        write_fusion(folder / "fused.toml", 'models = ["served.toml", "bm25"]\n')
        reranked = write_rerank(folder, "own.py:score", model="fused.toml", depth=3)
        search(folder, reranked)
        app.encode = lambda texts: encode(texts)[:, ::-1].copy()
        with pytest.raises(DriftError, match="the server of served changed"):
            search(folder, reranked)

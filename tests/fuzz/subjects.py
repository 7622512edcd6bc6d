"""What is attacked: each subject makes sound input, runs a command over it, and judges what is
accepted after a mutation.
"""

import json
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np

from tests.fuzz import oracle
from tests.fuzz.mutations import mutate_tree

CLOSE = 1e-9
VECTORS_CLOSE = 2e-4  # scores of a network by another program, in float32


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    def document(self) -> Any:
        """The JSON on stdout."""
        return json.loads(self.stdout)


class Subject(ABC):
    """One kind of input. Its folder has all it needs, and is copied for each mutation."""

    name: ClassVar[str]
    codes: ClassVar[tuple[int, ...]] = (0, 2)

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Write sound input."""

    def mutate(self, rng: Random, folder: Path) -> str:
        """Change it; says what was done."""
        return mutate_tree(rng, folder / "input")

    @abstractmethod
    def command(self, rng: Random, folder: Path) -> Sequence[str] | Callable[[], Any]:
        """What is run on it: words of the command line, or a function of the program."""

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        """What is wrong about accepted input; "" where nothing is.

        Args:
            before: the sound input, after its own run.
        """
        return ""


def differing(stated: dict[str, float], ranking: oracle.Ranking, grades: oracle.Grades) -> str:
    """Measures that are not the means of a ranking."""
    for measure, value in stated.items():
        expected = oracle.mean(measure, ranking, grades)
        if expected is not None and not abs(value - expected) < CLOSE:
            return f"{measure} is {value}, and should be {expected}"
    return ""


def only_run(out: Path) -> Path:
    """The one run file below a folder."""
    (path,) = out.rglob("run.trec.gz")
    return path


def same_scores(stated: oracle.Scored, expected: oracle.Scored, within: float) -> str:
    """The first of the scored pairs that differs."""
    if stated.keys() != expected.keys():
        others = sorted(stated.keys() ^ expected.keys())
        return f"{len(others)} pairs are scored by one of the two only, such as {others[0]!r}"
    for pair, score in stated.items():
        if not abs(score - expected[pair]) <= within:
            return f"{pair!r} has {score}, and should have {expected[pair]}"
    return ""


class _CollectionSubject(Subject):
    """A folder of a user's own, in one of the layouts, evaluated with the hashing encoder."""

    read: ClassVar[Callable[[Path], oracle.Collection]]

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        return ["run", str(folder / "input"), "--model", "hashing", "--json", "--quiet", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        found = type(self).read(folder / "input")
        if result["documents"] != len(found.documents) or result["queries"] != len(found.asked):
            return f"{result['documents']} documents, {result['queries']} queries"
        depth = found.facts.get("depth", 1000)
        exclude_self = found.facts.get("exclude_self", False)
        expected = oracle.ranked(hashed(found), depth, exclude_self)
        stated, _ = oracle.read_run(only_run(folder / "out"))
        if oracle.ranked(stated, depth, False) != expected:
            return "the ranking is another one"
        return differing(result["measures"], expected, found.grades) if found.grades else ""


def hashed(found: oracle.Collection) -> oracle.Scored:
    """Scores of the hashing encoder over the texts as they were read here."""
    from retrievers.models.model import open_encoder, resolve_model

    encoder = open_encoder(resolve_model("hashing"), "cpu")
    titles, texts = zip(*found.documents.values(), strict=True)
    queries = encoder.encode_queries([found.queries[query] for query in found.asked])
    return oracle.all_scores(found, queries, encoder.encode_documents(titles, texts))


DOCUMENTS = {
    "d1": ("Wings", "the lift of a wing grows with the angle of attack"),
    "d2": ("", "transition in the boundary layer of a swept wing"),
    "d10": ("Heat", "slabs that conduct heat"),
    "d9": ("Heat", "slabs that conduct heat"),
    "q3": ("", "heat conduction in a slab of metal"),
    "é": ("Flügel", "Auftrieb eines Flügels"),
}
QUERIES = {
    "q1": "lift of a wing",
    "q2": "slabs that conduct heat",
    "q3": "heat conduction",
    "q4": "never judged",
}
QRELS = {
    ("q1", "d1"): 2,
    ("q1", "d2"): 1,
    ("q1", "not-here"): 1,
    ("q2", "d9"): 1,
    ("q2", "d1"): -1,
    ("q3", "d10"): 1,
    ("q3", "q3"): 1,
}
FACTS = """\
name = "own"
title = "Wings"
version = "1"
split = "test"
main_measure = "nDCG@10"
measures = ["R@100", "RR@10", "AP"]
depth = 1000
exclude_self = true
"""


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """A text file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_beir(folder: Path, facts: str = FACTS) -> None:
    """The collection above in BEIR's layout."""
    rows = [{"_id": name, "title": t, "text": text} for name, (t, text) in DOCUMENTS.items()]
    questions = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    write_lines(folder / "corpus.jsonl", [json.dumps(row, ensure_ascii=False) for row in rows])
    write_lines(folder / "queries.jsonl", [json.dumps(row) for row in questions])
    judged = [f"{query}\t{document}\t{grade}" for (query, document), grade in QRELS.items()]
    write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])
    (folder / "dataset.toml").write_text(facts, encoding="utf-8")


class Beir(_CollectionSubject):
    """BEIR's layout."""

    name = "beir"
    read = oracle.read_beir

    def make(self, folder: Path) -> None:
        write_beir(folder / "input")


class Msmarco(_CollectionSubject):
    """MS MARCO's layout."""

    name = "msmarco"
    read = oracle.read_msmarco

    def make(self, folder: Path) -> None:
        place = folder / "input"
        write_lines(place / "collection.tsv", [f"{n}\t{text}" for n, (_, text) in DOCUMENTS.items()])
        write_lines(place / "queries.test.tsv", [f"{n}\t{text}" for n, text in QUERIES.items()])
        judged = [f"{query} 0 {document} {grade}" for (query, document), grade in QRELS.items()]
        write_lines(place / "qrels.test.tsv", judged)
        (place / "dataset.toml").write_text(FACTS, encoding="utf-8")


class Dpr(_CollectionSubject):
    """DPR's layout, where answers decide."""

    name = "dpr"
    read = oracle.read_dpr

    def make(self, folder: Path) -> None:
        place = folder / "input"
        rows = [f'{n}\t"{text}"\t{title}' for n, (title, text) in DOCUMENTS.items()]
        write_lines(place / "psgs_w100.tsv", ["id\ttext\ttitle", *rows])
        answers = ["['wing']", '["slabs", "heat"]', "['metal']"]
        asked = [f"{text}\t{answer}" for text, answer in zip(QUERIES.values(), answers)]  # noqa: B905
        write_lines(place / "nq-test.qa.csv", asked)
        facts = FACTS.replace("nDCG@10", "Success@5").replace('"R@100", "RR@10", "AP"', '"RR@10"')
        (place / "dataset.toml").write_text(facts, encoding="utf-8")


class RunFile(Subject):
    """Somebody's run, scored."""

    name = "run file"

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        rng = np.random.default_rng(0)
        rows = [
            f"{query} Q0 {document} {rank} {score:.4f} tag"
            for query in QUERIES
            for rank, (document, score) in enumerate(
                zip(DOCUMENTS, rng.normal(0, 3, len(DOCUMENTS)).round(1), strict=True), start=1
            )
        ]
        write_lines(folder / "input" / "some.trec", rows)

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["score", str(folder / "input" / "some.trec"), "--json", "--quiet"]
        return [*words, "--dataset", str(folder / "collection"), *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        scores, _ = oracle.read_run(folder / "input" / "some.trec")
        collection = oracle.read_beir(folder / "collection")
        ranking = oracle.ranked(scores, 1000, exclude_self=True)
        return differing(result["measures"], ranking, collection.grades)


class Card(_CollectionSubject):
    """A card of the hashing encoder."""

    name = "card"
    read = oracle.read_beir

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        (folder / "input").mkdir()
        (folder / "input" / "own.toml").write_text(
            'name = "own"\ntitle = "Own"\nkind = "hashing"\nnormalize = true\n'
            'similarity = "dot"\nmax_query_tokens = 512\nmax_document_tokens = 512\n'
            'title_join = "space"\ndtype = "float32"\ntrained_on = ["beir/scifact"]\n'
            'licence = "none"\nwarning = "a test"\n'
            "[options]\ndim = 64\n[prompts]\nquery = \"lift \"\n"
            '[[expected]]\ndataset = "beir/scifact"\nmeasure = "nDCG@10"\nvalue = 0.5\n'
            'source = "nobody"\ntolerance = 0.001\n',
            encoding="utf-8",
        )

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        model = str(folder / "input" / "own.toml")
        words = ["run", str(folder / "collection"), "--model", model, "--json", "--quiet"]
        return [*words, *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        import tomllib

        (result,) = finished.document()["results"]
        card = tomllib.loads((folder / "input" / "own.toml").read_text(encoding="utf-8"))
        if card.get("kind") != "hashing":
            return ""
        found = oracle.read_beir(folder / "collection")
        expected = oracle.ranked(self._scores(card, found), 1000, exclude_self=True)
        return differing(result["measures"], expected, found.grades)

    def _scores(self, card: dict[str, Any], found: oracle.Collection) -> oracle.Scored:
        from retrievers.encoders.hashing import HashingEncoder
        from retrievers.models.recipe import Recipe

        dim = card.get("options", {}).get("dim", 256)
        encoder = HashingEncoder(
            Recipe(model="x", kind="hashing", dim=dim, normalize=True, options={"dim": dim})
        )
        prompts = card.get("prompts", {})
        longest = [card.get(f"max_{side}_tokens", 512) for side in ("query", "document")]
        join = {"space": " ", "none": None}.get(card.get("title_join", "space"), " ")
        texts = [
            f"{title}{join}{text}" if title and join is not None else text
            for title, text in found.documents.values()
        ]
        queries = [prompts.get("query", "") + found.queries[query] for query in found.asked]
        documents = [prompts.get("document", "") + text for text in texts]
        cut = [
            [" ".join(words(text)[:most]) for text in some]
            for some, most in ((queries, longest[0]), (documents, longest[1]))
        ]
        blank = [""] * len(documents)
        return oracle.all_scores(
            found, encoder.encode_queries(cut[0]), encoder.encode_documents(blank, cut[1])
        )


def words(text: str) -> list[str]:
    """As the hashing encoder counts them."""
    import re

    return re.findall(r"\w+", text.lower())


class Checkpoint(Subject):
    """A sentence-transformers folder; what that library says of it is the truth."""

    name = "checkpoint"

    def make(self, folder: Path) -> None:
        write_beir(folder / "collection")
        write_sentence_transformer(folder / "input")

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", str(folder / "input")]
        return [*words, "--device", "cpu", "--json", "--quiet", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        found = oracle.read_beir(folder / "collection")
        stated, _ = oracle.read_run(only_run(folder / "out"))
        try:
            expected = scores_of_sentence_transformers(folder / "input", found)
        except Exception as error:  # it refuses more than is refused here
            return self._without_the_library(stated, before, error)
        expected = {pair: score for pair, score in expected.items() if pair[0] != pair[1]}
        return same_scores(stated, expected, VECTORS_CLOSE)

    def _without_the_library(self, stated: oracle.Scored, before: Path, error: Exception) -> str:
        sound, _ = oracle.read_run(only_run(before / "out"))
        different = same_scores(stated, sound, VECTORS_CLOSE)
        return different and f"{different}; sentence-transformers: {str(error)[:200]}"


def write_sentence_transformer(folder: Path) -> None:
    """A BERT of two thin layers with mean pooling, unit length and prompts."""
    import torch
    import transformers
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    vocabulary += [f"##{letter}" for letter in letters]
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    config.save_pretrained(str(folder))
    save_file(model.state_dict(), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(str(folder))
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": 16,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 48, "do_lower_case": False},
        "config_sentence_transformers.json": {
            "prompts": {"query": "q ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1))


def scores_of_sentence_transformers(folder: Path, found: oracle.Collection) -> oracle.Scored:
    """What the library's own ``encode_query`` and ``encode_document`` give."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    texts = [f"{title} {text}" if title else text for title, text in found.documents.values()]
    asked = [found.queries[query] for query in found.asked]
    options = {"convert_to_numpy": True, "show_progress_bar": False}
    queries = model.encode_query(asked, **options)
    documents = model.encode_document(texts, **options)
    if model.similarity_fn_name == "cosine":
        queries, documents = (one / np.linalg.norm(one, axis=1)[:, None] for one in (queries, documents))
    return oracle.all_scores(found, queries, documents)


class Adapter(Checkpoint):
    """A PEFT adapter on the checkpoint above; what PEFT says of it is the truth."""

    name = "adapter"

    def make(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        write_beir(folder / "collection")
        write_sentence_transformer(folder / "base")
        network = AutoModel.from_pretrained(str(folder / "base"))
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"])
        adapted = get_peft_model(network, config)
        torch.manual_seed(1)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter.data, std=0.3)
        adapted.save_pretrained(str(folder / "input"))

    def command(self, rng: Random, folder: Path) -> list[str]:
        places = ("--out", str(folder / "out"), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", str(folder / "base")]
        adapter = ("--adapter", str(folder / "input"))
        return [*words, *adapter, "--device", "cpu", "--json", "--quiet", *places]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        from peft import PeftModel
        from sentence_transformers import SentenceTransformer

        found = oracle.read_beir(folder / "collection")
        stated, _ = oracle.read_run(only_run(folder / "out"))
        model = SentenceTransformer(str(folder / "base"), device="cpu", local_files_only=True)
        try:
            adapted = PeftModel.from_pretrained(model[0].auto_model, str(folder / "input"))
            model[0].auto_model = adapted.merge_and_unload()
        except Exception as error:
            return self._without_the_library(stated, before, error)
        texts = [f"{title} {text}" if title else text for title, text in found.documents.values()]
        asked = [found.queries[query] for query in found.asked]
        options = {"convert_to_numpy": True, "show_progress_bar": False}
        expected = oracle.all_scores(
            found, model.encode_query(asked, **options), model.encode_document(texts, **options)
        )
        expected = {pair: score for pair, score in expected.items() if pair[0] != pair[1]}
        return same_scores(stated, expected, VECTORS_CLOSE)


class Results(Subject):
    """Stored results of two models, compared, ranked, checked, merged and exported."""

    name = "results"
    codes = (0, 1, 2, 3, 4, 5)

    def make(self, folder: Path) -> None:
        from bench.__main__ import main

        write_beir(folder / "collection", FACTS.replace("true", "false"))
        words = ["run", str(folder / "collection"), "--model", "hashing", "bm25", "--quiet"]
        main([*words, "--out", str(folder / "input"), "--cache-dir", str(folder / "cache")])

    def command(self, rng: Random, folder: Path) -> list[str]:
        place, common = str(folder / "input"), ["--json", "--quiet"]
        drawn = ["--resamples", "199"]
        commands = (
            ["compare", "hashing", "bm25", "--results", place, *drawn],
            ["compare", "hashing", "bm25", "--results", place, "--changed", "2", *drawn],
            ["leaderboard", "--results", place, *drawn],
            ["leaderboard", "--results", place, "--pair", "hashing", "bm25", *drawn],
            ["merge", place, "--out", str(folder / "merged")],
            ["export", "trec", "hashing", "--results", place, "--out", str(folder / "exported")],
            ["export", "model-index", "bm25", "--results", place, "--out", str(folder / "card")],
            [
                *("check", "hashing", "--baseline", "bm25", "--results", place, *drawn),
                *("--on", str(folder / "collection"), "--cache-dir", str(folder / "cache")),
            ],
        )
        return [*rng.choice(commands), *common]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        known = list(consistent_means(folder / "input"))
        for measure, value in stated_means(finished.document()):
            if not any(name == measure and abs(mean - value) < CLOSE for name, mean in known):
                return f"{measure} of {value}, and consistent results have {known}"
        return ""


def consistent_means(folder: Path) -> Iterator[tuple[str, float]]:
    """Measures and means that a record states and its values of queries have."""
    import pyarrow.parquet as pq

    for path in folder.rglob("per_query.parquet"):
        try:
            record = json.loads(path.with_name("result.json").read_bytes())
            table = pq.read_table(path)
            for name, column in zip(table.column_names, table.columns, strict=True):
                mean = float(np.mean(column.to_pylist())) if name in record["measures"] else None
                if mean is not None and abs(record["measures"][name] - mean) < CLOSE:
                    yield name, mean
        except (OSError, ValueError, TypeError, KeyError):
            continue  # nothing of a damaged result may be shown


def stated_means(document: Any) -> Iterator[tuple[str, float]]:
    """Measures and means in the JSON of ``compare``, ``leaderboard`` and ``check``."""
    if not isinstance(document, dict):
        return
    for row in (row for one in document.get("comparisons", ()) for row in one["collections"]):
        if not row["left_out"]:
            yield from ((row["measure"], row[key]) for key in ("mean_a", "mean_b") if row[key])
    for row in (row for one in document.get("against", ()) for row in one["rows"]):
        yield from ((row["measure"], row[key]) for key in ("candidate", "baseline") if row[key])
    for cell in (cell for row in document.get("rows", ()) for cell in row["cells"].values()):
        yield from ((name, score["value"]) for name, score in cell["scores"].items())


class Claims(Subject):
    """Files of mteb and model cards, imported as claims."""

    name = "claims"

    def make(self, folder: Path) -> None:
        task = {
            "task_name": "SciFact",
            "mteb_version": "2.1.0",
            "dataset_revision": "x",
            "scores": {"test": [{"ndcg_at_10": 0.6451, "mrr_at_10": 0.61, "hf_subset": "default"}]},
        }
        place = folder / "input" / "someone__words" / "abc"
        write_lines(place / "SciFact.json", [json.dumps(task, indent=1)])
        meta = {"name": "someone/words", "revision": "abc"}
        write_lines(place / "model_meta.json", [json.dumps(meta)])
        write_lines(
            folder / "input" / "README.md",
            [
                *("---", "model-index:", "- name: words", "  results:", "  - task:"),
                *("      type: Retrieval", "    dataset:", "      type: mteb/scifact"),
                *("      name: MTEB SciFact", "      config: default", "      split: test"),
                *("    metrics:", "    - type: ndcg_at_10", "      value: 64.51", "---", "# Words"),
            ],
        )

    def command(self, rng: Random, folder: Path) -> list[str]:
        files = (folder / "input" / "README.md", folder / "input" / "someone__words")
        words = ["import", str(rng.choice(files)), "--out", str(folder / "out"), "--json"]
        return [*words, "--quiet"]

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        stated = [
            value for claim in finished.document()["claims"] for value in claim["measures"].values()
        ]
        text = "".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in (folder / "input").rglob("*")
            if path.is_file()
        )
        for value in stated:
            if not 0 <= value <= 1 or not any(near(number, value) for number in numbers_in(text)):
                return f"a claim of {value}, which no file states"
        return ""


def numbers_in(text: str) -> list[float]:
    """Everything in a text that reads as a number."""
    import re

    found = re.findall(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text)
    return [float(one.replace("_", "")) for one in found if len(one) < 300]


def near(number: float, value: float) -> bool:
    """Equal as a share or as percent."""
    return abs(number - value) < CLOSE or abs(number / 100 - value) < CLOSE


class TomlFile(Subject):
    """Presets, grids, sequences and published scores: read, and not less than what they say."""

    name = "toml"

    def make(self, folder: Path) -> None:
        root = Path(__file__).resolve().parents[2]
        for kind, source in {
            "pretrain": "retrievers/training/presets/pretrain",
            "finetune": "retrievers/training/presets/finetune",
            "ablate": "bench/experiments/plans",
            "continual": "bench/experiments/sequence_plans",
            "published": "bench/leaderboard/published",
        }.items():
            files = sorted((root / source).glob("*.toml"), key=lambda path: path.stat().st_size)
            for path in files[:6]:
                (folder / "input" / kind).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / "input" / kind)

    def mutate(self, rng: Random, folder: Path) -> str:
        kind = rng.choice(sorted(path.name for path in (folder / "input").iterdir()))
        name = rng.choice(sorted(path.name for path in (folder / "input" / kind).iterdir()))
        chosen = folder / "chosen" / kind
        chosen.mkdir(parents=True)
        shutil.copy(folder / "input" / kind / name, chosen)
        return f"{kind}/{mutate_tree(rng, chosen)}"

    def command(self, rng: Random, folder: Path) -> Callable[[], Any]:
        (kind,) = ((folder / "chosen").iterdir()) if (folder / "chosen").exists() else [None]
        if kind is None:
            return lambda: 0
        return lambda: self._read(kind)

    def _read(self, kind: Path) -> int:
        from bench.experiments.grid import load_ablation
        from bench.experiments.sequence.settings import load_comparison
        from bench.leaderboard.published_scores import publications
        from retrievers.training.finetune import finetune_preset
        from retrievers.training.pretrain import preset

        readers: dict[str, Callable[[str], Any]] = {
            "pretrain": preset.FILES.load,
            "finetune": finetune_preset.FILES.load,
            "ablate": load_ablation,
            "continual": load_comparison,
        }
        if kind.name == "published":
            publications(kind)
        else:
            for path in kind.glob("*.toml"):
                readers[kind.name](str(path))
        return 0


class Ledgers(Subject):
    """What ``watch``, ``check --quick`` and ``speed`` wrote down earlier."""

    name = "ledgers"

    def make(self, folder: Path) -> None:
        import msgspec

        sys.path.append(str(Path(__file__).parents[1] / "bench"))
        from tests.bench.test_quick import LOOK
        from tests.bench.test_watch_ledger import broken, line
        from tests.reports.speed_report_for_tests import REPORT

        place = folder / "input"
        (place / "first-looks" / "x").mkdir(parents=True)
        lines = msgspec.json.Encoder().encode_lines([line(), broken("checkpoint-6")])
        (place / "ledger.jsonl").write_bytes(lines)
        (place / "first-looks" / "x" / "look.json").write_bytes(msgspec.json.encode(LOOK))
        (place / "speed.json").write_bytes(msgspec.json.encode(REPORT))

    def command(self, rng: Random, folder: Path) -> Callable[[], Any]:
        def read() -> int:
            from bench.cli.commands.speed import read_report
            from bench.gate.quick import complete, relation
            from bench.monitor.ledger import read_ledger
            from reports.speed_tables import speed_tables

            read_ledger(folder / "input" / "ledger.jsonl")
            relation(complete(folder / "input", list))
            speed_tables(read_report(folder / "input" / "speed.json"))
            return 0

        return read


class _CacheSubject(Subject):
    """What lies in the cache: whatever happens to it, the scores are those of the sound one."""

    part: ClassVar[str]

    def make(self, folder: Path) -> None:
        from bench.__main__ import main

        write_beir(folder / "collection")
        main(self._words(folder, "first"))

    def _words(self, folder: Path, out: str) -> list[str]:
        places = ("--out", str(folder / out), "--cache-dir", str(folder / "cache"))
        words = ["run", str(folder / "collection"), "--model", "hashing", "--json", "--quiet"]
        return [*words, *places]

    def mutate(self, rng: Random, folder: Path) -> str:
        return mutate_tree(rng, folder / "cache" / self.part)

    def command(self, rng: Random, folder: Path) -> list[str]:
        return self._words(folder, "out")

    def judge(self, folder: Path, before: Path, finished: Finished) -> str:
        (result,) = finished.document()["results"]
        stated, _ = oracle.read_run(only_run(folder / "out"))
        expected, _ = oracle.read_run(only_run(folder / "first"))
        different = same_scores(stated, expected, 0.0)
        collection = oracle.read_beir(folder / "collection")
        ranking = oracle.ranked(expected, 1000, exclude_self=True)
        return different or differing(result["measures"], ranking, collection.grades)


class Vectors(_CacheSubject):
    """Shards, their manifests and keys, and facts about an encoder."""

    name = "vectors"
    part = "vectors"


class Corpora(_CacheSubject):
    """Built corpora."""

    name = "corpora"
    part = "corpora"


class CommandLine(Subject):
    """Words of the command line."""

    name = "words"
    codes = (0, 1, 2, 3, 4, 5)
    commands: ClassVar[tuple[str, ...]] = (
        "run {c} --model hashing --depth 10 --measure R@5 --index flat --max-memory 2GB",
        "run {c} --model hashing bm25 --split test --index IVF2,Flat?nprobe=2&seed=1",
        "run {c} --model hashing --dtype float32 --store-dtype float16 --max-query-tokens 8",
        "score {r} --dataset {c} --depth 10 --name mine --measure AP(rel=2)",
        "estimate {c} --model hashing --probe-seconds 1 --max-memory 2GB",
        "compare hashing bm25 --results {o} --resamples 199 --seed 1 --on own --measure nDCG@10",
        "check hashing --baseline bm25 --results {o} --on {c} --margin 0.01 --floor 0.1",
        "check hashing --baseline bm25 --results {o} --on {c} --quick --budget 5m --slower 1.1",
        "leaderboard --results {o} --suite beir --measure nDCG@10 --resamples 199 --format csv",
        "forgetting hashing --on {c} --results {o} --also {c} --resamples 199",
        "export trec hashing --results {o} --as mine --on own",
        "merge {o} --json",
        "show own",
        "list models --json",
        "verify {c}",
        "cache --verify --older-than 3 --prune hashing --dry-run",
        "show hashing@depth=10",
        "import {r} --model x --source y",
        "ablate inference --variant small --dry-run --seeds 1 2",
        "watch {o} --on {c} --once --every 1 --until 3 --stop-after 1",
    )

    def make(self, folder: Path) -> None:
        RunFile().make(folder)
        write_beir(folder / "own", FACTS)
        from bench.__main__ import main

        words = ["run", str(folder / "own"), "--model", "hashing", "bm25", "--quiet"]
        main([*words, "--out", str(folder / "stored"), "--cache-dir", str(folder / "cache")])

    def mutate(self, rng: Random, folder: Path) -> str:
        typed = self.typed(rng.choice(self.commands), folder)
        done = [self._change(rng, typed) for _ in range(rng.choice((1, 1, 2)))]
        (folder / "typed.json").write_text(json.dumps(typed))
        return f"{'; '.join(done)}: {' '.join(typed)[:300]!r}"

    def typed(self, template: str, folder: Path) -> list[str]:
        """The words of a command over what lies in the folder."""
        places = {"c": "own", "r": "input/some.trec", "o": "stored"}
        filled = {name: str(folder / path) for name, path in places.items()}
        return [word.format(**filled) for word in template.split()]

    def _change(self, rng: Random, typed: list[str]) -> str:
        at = rng.randrange(1, len(typed)) if len(typed) > 1 else 0
        word = rng.choice(
            ("", " ", "-", "--", "nan", "inf", "-1", "0", "1.5", "1e400", "9" * 5_000, "x" * 300)
            + ("x" * 5_000, "é", "\x1b[31m", "..", "/dev/null", "/proc", "a/b", "@", "own@")
            + ("own@depth=x", "own@=", "?nprobe=", "IVF0,Flat", "IDMap,Flat", "PQ3", "HNSW-1")
            + ("nDCG@", "@10", "AP(rel=)", "AP(rel=99999999999)", "R@99999999999999", "s3://", "a,b")
            + ("memory://x", "ftp://x/y", "http://[", "file://", "0s", "\udcff", "{}", "%s", "$x")
        )
        what = rng.choice(("other", "other", "other", "gone", "twice", "more", "cut"))
        if what == "other":
            typed[at] = word
        elif what == "gone" and at:
            del typed[at]
        elif what == "twice":
            typed.insert(at, typed[at])
        elif what == "more":
            typed.insert(at, word)
        else:
            typed[at] = typed[at][: rng.randrange(len(typed[at]) + 1)]
        return f"{what} {word[:20]!r} at {at}"

    def command(self, rng: Random, folder: Path) -> list[str]:
        path = folder / "typed.json"
        typed: list[str] = json.loads(path.read_text()) if path.exists() else ["list", "models"]
        name = typed[0]
        if name in ("run", "score", "export", "merge", "import"):
            typed += ["--out", str(folder / "out")]
        if name in ("run", "score", "check", "estimate", "verify", "cache", "forgetting", "watch"):
            typed += ["--cache-dir", str(folder / "cache")]
        return typed


SUBJECTS: dict[str, Subject] = {
    one.name: one
    for one in (
        *(Beir(), Msmarco(), Dpr(), RunFile(), Card(), Checkpoint(), Adapter(), Results()),
        *(Claims(), TomlFile(), Ledgers(), Vectors(), Corpora(), CommandLine()),
    )
}

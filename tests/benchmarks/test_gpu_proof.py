"""The proof on a GPU: its dry run, and that each of its checks can fail."""

import configparser
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.index.faiss_index import Hits
from tests.benchmarks.gpu_proof import (
    __main__,
    agreement,
    correctness,
    encoding,
    machine,
    padded,
    report,
    search,
    training,
)
from tests.benchmarks.gpu_proof.report import Check, NotHereError, Outcome, Part, Proof
from tests.benchmarks.gpu_proof.setup import DRY, FULL, Setup, marco_lengths, random_network
from tests.benchmarks.gpu_proof.texts import (
    byte_level_tokenizer,
    wordpiece_tokenizer,
    words_of,
)
from tests.support import tiny_checkpoints as tiny
from tests.support import variable_length_on_cpu

ROOT = Path(__file__).parents[2]
NOT_FOR_IT = ("faiss", "adapters", "peft", "mteb", "beir", "datasets", "statsmodels")
GPU_TESTS = (
    "test_the_cuda_kernel_agrees_with_attention_text_by_text",
    "test_cuda_vectors_without_padding_are_those_of_hugging_face_with_padding",
    "test_the_gpu_gives_the_vectors_of_the_cpu",
    "test_every_objective_trains_in_bfloat16_on_a_gpu_where_there_is_one",
    "test_bfloat16_trains_on_a_gpu_where_there_is_one",
)


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


# The dry run


@pytest.mark.slow
def test_the_dry_run_passes_on_the_cpu_and_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path), "--dry-run", "--budget-s", "600"]
    code = __main__.main(arguments)
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / report.PROOF_FILE).read_bytes())
    states = {f"{part['section']}: {part['name']}": part["state"] for part in written["parts"]}
    assert code == 0, printed
    assert set(states.values()) <= {"passed", "not here"}
    assert {name for name, state in states.items() if state == "not here"} <= {
        "memory: search with too little",
        "memory: encoding with too little",
        "search: FAISS",
        "training: DPR, bfloat16",
    }
    last = json.loads(printed.splitlines()[-1])
    assert last["parts"] == written["parts"]
    assert {part["section"] for part in last["parts"]} == set(__main__.SECTIONS)
    assert [path.name for path in tmp_path.iterdir()] == [report.PROOF_FILE]  # nothing is left


def test_sections_can_be_chosen_and_pass_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["--out", str(tmp_path), "--dry-run", "--only", "machine", "search"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {part["section"] for part in last["parts"]} == {"machine", "search"}
    assert sum(part["state"] == "passed" for part in last["parts"]) >= 9


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_in_one_line_what_it_would_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{__main__.NO_GPU}\n"
    assert not (tmp_path / "out").exists()


def run_without_optional_packages(program: str) -> str:
    """What a program prints in a process in which what a bare machine lacks cannot be imported."""
    without = f"""
import sys
from importlib.machinery import PathFinder
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        lacks = name.partition(".")[0] in {NOT_FOR_IT!r}
        return None if lacks else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""
    done = subprocess.run(
        [sys.executable, "-c", without + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_and_the_tests_for_a_gpu_import_nothing_that_a_bare_machine_lacks() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    paths = tox["testenv:gpu"]["paths"].replace("\\", " ").split()
    assert all((ROOT / path).exists() for path in paths)
    arguments = ["--collect-only", "-q", "-k", "gpu or cuda", *paths]
    program = f"""
from pathlib import Path
from tests.benchmarks.gpu_proof.__main__ import parts_of
from tests.benchmarks.gpu_proof.setup import FULL, Setup
print(len(list(parts_of(Setup(FULL, "cuda", Path("unused"))))))
import pytest
sys.exit(pytest.main({arguments}))
"""
    parts, collected = run_without_optional_packages(program).split("\n", 1)
    assert int(parts) > 20
    for name in GPU_TESTS:
        assert name in collected


def test_a_folder_of_weights_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--out", str(tmp_path), "--weights", str(tmp_path / "none")])
    assert caught.value.code == 2
    assert "no such folder" in capsys.readouterr().err


# How parts are run


def proof(folder: Path, budget_s: float = 60.0) -> Proof:
    return Proof(folder, budget_s, {"gpu": "none"}, {"dry_run": True})


def part(name: str, run: Any, needs_s: float = 0.0) -> Part:
    return Part("section", name, needs_s, run)


PASSES = Check("holds", True, 1, "1")
FAILS = Check("does not hold", False, np.float32(2), "1")


def test_a_failed_check_and_an_exception_are_reported_and_the_other_parts_run(
    tmp_path: Path,
) -> None:
    def breaks() -> Outcome:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def not_here() -> Outcome:
        raise NotHereError("not installed: faiss")

    made = proof(tmp_path).run(
        [
            part("fails", lambda: Outcome("", {"rate": np.float64(3)}, [PASSES, FAILS])),
            part("breaks", breaks),
            part("is not here", not_here),
            part("passes", lambda: Outcome("", {}, [PASSES])),
        ]
    )
    assert [done.state for done in made.parts] == ["failed", "broke", "not here", "passed"]
    assert not made.passed
    assert "illegal memory access" in made.parts[1].error
    assert "FAILED section: fails: does not hold: found 2.0, wanted 1" in report.table_of(made)
    written = json.loads((tmp_path / report.PROOF_FILE).read_bytes())
    assert written["parts"][0]["outcome"]["figures"] == {"rate": 3.0}


def test_every_part_is_on_disk_before_the_next_begins(tmp_path: Path) -> None:
    seen: list[int] = []

    def look() -> Outcome:
        path = tmp_path / report.PROOF_FILE
        seen.append(len(json.loads(path.read_bytes())["parts"]) if path.exists() else 0)
        return Outcome("", {}, [PASSES])

    assert proof(tmp_path).run([part("one", look), part("two", look), part("three", look)]).passed
    assert seen == [0, 1, 2]


def test_a_part_that_needs_more_time_than_is_left_is_not_begun(tmp_path: Path) -> None:
    made = proof(tmp_path, budget_s=5).run(
        [
            part("short", lambda: Outcome("", {}, [PASSES]), needs_s=1),
            part("long", lambda: pytest.fail("was begun"), needs_s=50),
        ]
    )
    assert [done.state for done in made.parts] == ["passed", "out of time"]
    assert made.passed
    assert not made.complete


def test_a_part_that_runs_past_the_budget_is_stopped_and_the_alarm_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "GRACE_S", 0.0)
    before = signal.getsignal(signal.SIGALRM)

    def endless() -> Outcome:
        while True:
            try:
                time.sleep(0.01)
            except Exception as error:  # no such handler on the way may keep it
                raise AssertionError from error

    made = proof(tmp_path, budget_s=0.2).run([part("endless", endless)])
    assert [done.state for done in made.parts] == ["out of time"]
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_no_checks_at_all_are_no_pass(tmp_path: Path) -> None:
    assert not proof(tmp_path).run([part("measures only", lambda: Outcome("fast"))]).passed
    assert not proof(tmp_path).run([]).passed


@pytest.mark.parametrize(
    ("checks", "needs_s", "code"), [([PASSES], 0, 0), ([FAILS], 0, 1), ([PASSES], 1e6, 4)]
)
def test_exit_codes(
    checks: list[Check],
    needs_s: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prove(options: Any, device: str) -> report.Report:
        assert device == "cuda"
        run = lambda: Outcome("", {}, checks)  # noqa: E731
        return proof(options.out).run([part("always", run), part("perhaps", run, needs_s)])

    monkeypatch.setattr(__main__, "prove", prove)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert __main__.main(["--out", str(tmp_path)]) == code


# Agreement of vectors


@pytest.fixture(scope="module")
def encoded() -> dict[str, Any]:
    """Passages of 50 tokens by a network of MiniLM's size: reference, peer, and as packed."""
    network = random_network("minilm", FULL, vocab_size=2_000)
    ids = np.random.default_rng(0).integers(5, 2_000, (16, 50)).tolist()
    reference = padded.vectors(network, ids)
    return {
        "reference": reference,
        "peer": padded.vectors(network.bfloat16(), ids),
    }


def test_vectors_of_other_passages_fail_although_no_number_differs_by_much(
    encoded: dict[str, Any],
) -> None:
    reference, peer = encoded["reference"], encoded["peer"]
    others = np.roll(peer, 1, axis=0)
    assert np.abs(others - reference).max() < 5e-2
    assert agreement.nearest_is_itself(others, reference) == 0
    assert failed(agreement.checks(others, reference, "bfloat16")) == {
        "nearest row is its own",
        "least cosine with float32, centred",
    }
    assert not failed(agreement.checks(peer, reference, "bfloat16"))


def test_two_exchanged_vectors_fail(encoded: dict[str, Any]) -> None:
    wrong = encoded["peer"].copy()
    wrong[[3, 7]] = wrong[[7, 3]]
    assert len(failed(agreement.checks(wrong, encoded["reference"], "bfloat16"))) == 2
    assert len(failed(agreement.excess_checks(wrong, encoded["peer"], encoded["reference"]))) == 2


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0])
def test_vectors_that_are_no_numbers_or_all_the_same_fail(
    broken: float, encoded: dict[str, Any]
) -> None:
    wrong = np.full_like(encoded["peer"], broken)
    with np.errstate(invalid="ignore"):
        assert "nearest row is its own" in failed(
            agreement.checks(wrong, encoded["reference"], "bfloat16")
        )
        assert failed(agreement.excess_checks(wrong, encoded["peer"], encoded["reference"]))


def test_one_vector_of_nan_fails(encoded: dict[str, Any]) -> None:
    wrong = encoded["peer"].copy()
    wrong[5] = np.nan
    assert len(failed(agreement.checks(wrong, encoded["reference"], "bfloat16"))) == 2


def with_noise(vectors: Any, share: float, seed: int) -> Any:
    """Each row with noise of a share of its centred length."""
    rows = agreement.centred(vectors, vectors)
    noise = np.random.default_rng(seed).standard_normal(vectors.shape)
    noise *= share * np.linalg.norm(rows, axis=1, keepdims=True)
    return (vectors + noise / np.sqrt(vectors.shape[1])).astype(np.float32)


@pytest.mark.parametrize(("rounding", "extra"), [(0.021, 0.01), (0.016, 0.01), (0.0019, 0.001)])
@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_noise_beyond_the_round_off_of_the_dtype_fails_and_round_off_does_not(
    rounding: float, extra: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((512, 384)).astype(np.float32)
    peer, ours = (with_noise(reference, rounding, seed + n) for n in (1, 2))
    assert not failed(agreement.excess_checks(ours, peer, reference))
    wrong = with_noise(ours, extra, seed + 3)
    assert "error over that with padding" in failed(agreement.excess_checks(wrong, peer, reference))


def test_one_percent_of_noise_in_the_vectors_of_a_network_fails(encoded: dict[str, Any]) -> None:
    wrong = with_noise(encoded["peer"], 0.01, 0)
    assert failed(agreement.excess_checks(wrong, encoded["peer"], encoded["reference"]))


# Attention


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the kernel."""

    def replace(attention: Any) -> float:
        monkeypatch.setattr(correctness, "variable_length_kernel", lambda: attention)
        return correctness.attention_error("cpu", "bfloat16", np.array([1, 5, 30, 9]), 2, 16)

    return replace


def test_attention_text_by_text_is_right(kernel: Any) -> None:
    error = kernel(variable_length_on_cpu.one_by_one)
    assert 0 < error < correctness.MOST_ERROR["bfloat16"]


def test_attention_to_other_texts_fails(kernel: Any) -> None:
    def across(q: Any, k: Any, v: Any, ends: Any, longest: int) -> Any:
        whole = torch.tensor([0, len(q)])
        return variable_length_on_cpu.one_by_one(q, k, v, whole, longest)

    assert kernel(across) > correctness.MOST_ERROR["bfloat16"]


def test_attention_that_is_no_number_or_is_off_by_two_percent_fails(kernel: Any) -> None:
    right = variable_length_on_cpu.one_by_one
    assert kernel(lambda *inputs: right(*inputs) * float("nan")) == float("inf")
    assert kernel(lambda *inputs: right(*inputs) * 1.02) > correctness.MOST_ERROR["bfloat16"]


# Search


@pytest.fixture(scope="module")
def corpus() -> search.Planted:
    return search.planted(500, 7, 16, "cpu")


def hits_of(corpus: search.Planted, k: int = 20) -> Hits:
    found = [
        search.brute_force(corpus.documents, query, corpus.tie_rank, k) for query in corpus.queries
    ]
    return Hits(
        np.concatenate([hits.scores for hits in found]), np.concatenate([h.rows for h in found])
    )


def test_planted_rows_are_the_first_of_a_search_by_brute_force(corpus: search.Planted) -> None:
    hits = hits_of(corpus)
    assert search.found_first(hits, corpus.first).passed
    assert search.share_found(hits.rows, corpus.first) == 1.0
    assert (hits.scores[:, 1] == hits.scores[:, 3]).all()
    assert (hits.scores[:, 3] > hits.scores[:, 4]).all()


def test_a_last_bit_a_row_or_the_order_of_ties_that_differs_fails(corpus: search.Planted) -> None:
    hits = hits_of(corpus)
    assert search.same(hits, hits, "").passed
    scores = hits.scores.copy()
    scores[2, 5] = np.nextafter(scores[2, 5], np.float32(2))
    assert not search.same(Hits(scores, hits.rows), hits, "").passed
    rows = hits.rows.copy()
    rows[:, [1, 2]] = rows[:, [2, 1]]
    assert not search.same(Hits(hits.scores, rows), hits, "").passed
    assert not search.found_first(Hits(hits.scores, rows), corpus.first).passed


def test_a_search_that_differs_from_the_cpu_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = search.exact_search

    def wrong(*arguments: Any, **others: Any) -> Hits:
        hits = exact(*arguments, **others)
        if "engine" not in others:  # the search that it is compared with
            return hits
        return Hits(np.nextafter(hits.scores, np.float32(0)), hits.rows)

    setup = Setup(DRY, "cpu", tmp_path)
    assert not failed(search.equal(setup, 10).checks)
    monkeypatch.setattr(search, "exact_search", wrong)
    assert {"unit vectors: equal to the CPU", "whole numbers: equal to the CPU"} <= failed(
        search.equal(setup, 10).checks
    )


# Training, products


@pytest.mark.parametrize(
    ("losses", "name"),
    [
        ([10.0] * 20, "loss falls"),
        ([*np.linspace(10, 9, 19), float("nan")], "losses are numbers"),
        (np.linspace(12, 9, 20).tolist(), "first loss beside float32"),
    ],
)
def test_losses_that_stay_or_are_no_numbers_or_begin_elsewhere_fail(
    losses: list[float], name: str
) -> None:
    assert not failed(training.loss_checks(np.linspace(10, 9, 20).tolist(), 10.05))
    assert name in failed(training.loss_checks(losses, 10.05))


def test_a_product_with_too_few_bits_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(DRY, "cpu", tmp_path)
    assert not failed(machine.product(setup, "float32").checks)
    monkeypatch.setitem(machine.MOST_ERROR, "bfloat16", machine.MOST_ERROR["float32"])
    assert failed(machine.product(setup, "bfloat16").checks) == {"relative error"}


# Texts


@given(st.lists(st.integers(0, 60), max_size=20), st.integers(0, 5))
def test_texts_have_the_lengths_that_were_asked_for(
    language: Setup, lengths: list[int], seed: int
) -> None:
    texts = language.language.texts(np.array(lengths, dtype=np.int64), seed)
    ids = padded.token_ids(language.checkpoint("minilm"), [*texts, ""], 512)
    assert [len(row) - 2 for row in ids] == [*lengths, 0]


def test_texts_of_pieces_have_the_lengths_that_were_asked_for_and_differ(language: Setup) -> None:
    lengths = np.arange(150)
    texts = language.language.many(lengths)
    ids = padded.token_ids(language.checkpoint("minilm"), texts, 512)
    assert [len(row) - 2 for row in ids] == lengths.tolist()
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("make", [wordpiece_tokenizer, byte_level_tokenizer])
def test_frequent_words_are_one_token_and_all_texts_can_be_read_back(make: Any) -> None:
    tokenizer, words = make(600, 500), words_of(600)
    ids = tokenizer(f"ba {words[0]} {words[120]} {words[-1]}", add_special_tokens=False)
    pieces = tokenizer.convert_ids_to_tokens(ids["input_ids"])
    assert [piece.strip("Ġ") for piece in pieces[-4:-2]] == [words[0], words[120]]
    assert "".join(piece.strip("Ġ#") for piece in pieces[-2:]) == words[-1]
    assert tokenizer.unk_token not in pieces


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(DRY, "cpu", tmp_path_factory.mktemp("language"))


def test_words_are_distinct_and_frequent_ones_are_short() -> None:
    words = words_of(20_000)
    assert len(set(words)) == len(words)
    assert [len(word) for word in words] == sorted(len(word) for word in words)


def test_lengths_are_those_of_ms_marco() -> None:
    lengths = marco_lengths(20_000, 512)
    assert abs(np.median(lengths) - 75) < 2
    assert abs(lengths.mean() - encoding.MEAN_LENGTH) < 2
    assert lengths.min() >= 10
    assert lengths.max() <= 250


def test_the_products_of_the_dense_layers_hold_all_their_weights() -> None:
    network = tiny.seeded(lambda: tiny.transformers.BertModel(tiny.bert_config()))
    gemms = encoding.gemms_of(network.config.to_dict(), tokens=7)
    linear = [one for one in network.encoder.modules() if isinstance(one, torch.nn.Linear)]
    flops = sum(gemm.flops * gemm.times for gemm in gemms)
    assert flops == 2 * 7 * sum(one.weight.numel() for one in linear)

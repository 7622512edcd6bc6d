"""One record holds what a user may change of a model, whoever asks."""

import attrs
import pytest

from bench.experiments.evaluate_stage import EvaluateSettings
from bench.requests.evaluating import RunRequest, WorkRequest
from foundation.errors import BenchError
from retrievers.models.card import Compression
from retrievers.models.resolve import resolve_model
from retrievers.models.settings import ModelSettings


def test_each_setting_of_a_request_reaches_the_record() -> None:
    given = {
        **{"like": "minilm", "endpoint_model": "m", "adapter": "lora", "dtype": "bfloat16"},
        **{"max_query_tokens": 8, "max_document_tokens": 9, "query_prompt": "find: "},
        **{"store_dtype": "float16", "allow_unknown_tokens": True, "trust_code": True},
        **{"dimensions": 64, "precision": "int8", "rescore": "200:int8"},
    }
    request = RunRequest(names="cranfield", model="minilm", **given)
    assert ModelSettings.of(request).changed == given
    assert given.keys() == attrs.fields_dict(ModelSettings).keys()


def test_a_request_without_compression_searches_whole_vectors() -> None:
    settings = ModelSettings.of(WorkRequest(names="cranfield", model="minilm", dtype="int8"))
    assert settings == ModelSettings(dtype="int8")
    assert settings.compression() == Compression()


def test_an_experiment_uses_the_settings_of_its_table() -> None:
    table = EvaluateSettings(on=("x",), index="HNSW32", dtype="bfloat16", query_prompt="")
    assert ModelSettings.of(table) == ModelSettings(dtype="bfloat16", query_prompt="")


@pytest.mark.parametrize(
    ("rescore", "expected"),
    [(None, (None, "stored")), ("40", (40, "stored")), ("40:int8", (40, "int8"))],
)
def test_rescore_is_a_number_of_candidates_and_what_scores_them(
    rescore: str | None, expected: tuple[int | None, str]
) -> None:
    found = ModelSettings(rescore=rescore).compression(96)
    assert (found.rescore, found.rescore_by, found.dimensions) == (*expected, 96)


@pytest.mark.parametrize("rescore", ["0", "many", "40:float32", ""])
def test_another_rescore_is_refused(rescore: str) -> None:
    with pytest.raises(BenchError, match="compression of documents"):
        ModelSettings(rescore=rescore).compression()


@pytest.mark.parametrize("name", sorted(attrs.fields_dict(ModelSettings)))
def test_bm25_refuses_each_setting_that_would_change_nothing(name: str) -> None:
    changes_nothing = {"dtype": "bfloat16", "adapter": "lora", "query_prompt": "find: "}
    changes_nothing |= {"max_query_tokens": 8, "max_document_tokens": 8, "rescore": "40"}
    changes_nothing |= {"store_dtype": "float16", "dimensions": 8, "precision": "int8"}
    if name in changes_nothing:
        settings = ModelSettings(**{name: changes_nothing[name]})
        with pytest.raises(BenchError, match=f"{name} cannot be set for bm25"):
            resolve_model("bm25", settings)
    else:
        assert name in ("like", "endpoint_model", "trust_code", "allow_unknown_tokens")

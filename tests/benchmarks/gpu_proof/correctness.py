"""Is what the GPU computes right? Attention, encoders, the same bytes, many networks."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievers.encoders.packed import variable_length_kernel
from retrievers.encoders.transformer import TransformerEncoder
from retrievers.models.model import resolve_model
from retrievers.models.recipe import Dtype
from tests.benchmarks.gpu_proof import agreement, padded
from tests.benchmarks.gpu_proof.report import Check, Outcome, Part
from tests.benchmarks.gpu_proof.same_bytes import digest
from tests.benchmarks.gpu_proof.setup import TITLES, Setup, open_transformer, write_random

SECTION = "correctness"
ROOT = Path(__file__).resolve().parents[3]
# Relative error of the attention to one text. The weights and what comes out are rounded to the
# dtype: 2^-9 and 2^-12 each.
MOST_ERROR = {"bfloat16": 1e-2, "float16": 1.5e-3}
HEADS = {"bert": (12, 64), "minilm": (12, 32)}
MOST_NETWORK_ERROR = 0.1  # of bfloat16 in a small random network, on average over its texts


def first_parts(setup: Setup) -> Iterator[Part]:
    """Attention, every network in bfloat16, and the same bytes twice."""
    for dtype in setup.dtypes:
        yield Part(SECTION, f"attention, {dtype}", 10, partial(attention, setup, dtype))
    for kind in TITLES:
        yield _agreement_part(setup, kind, "bfloat16")
    yield Part(SECTION, "the same bytes twice", 60, partial(same_bytes_twice, setup))


def later_parts(setup: Setup) -> Iterator[Part]:
    """The networks in float16, and more networks than one process used to hold."""
    if "float16" in setup.dtypes:
        for kind in TITLES:
            yield _agreement_part(setup, kind, "float16")
    name = f"{setup.sizes.networks} networks in one process"
    yield Part(SECTION, name, 60, partial(many_networks, setup))


def _agreement_part(setup: Setup, kind: str, dtype: Dtype) -> Part:
    return Part(SECTION, f"{TITLES[kind]}, {dtype}", 45, partial(agree, setup, kind, dtype))


def attention(setup: Setup, dtype: Dtype) -> Outcome:
    """Variable-length attention within each text, against float64."""
    longest = setup.sizes.positions
    lengths = np.random.default_rng(0).integers(1, longest + 1, 40)
    lengths[:4] = 1, 2, longest - 1, longest
    worst = {
        kind: attention_error(setup.device, dtype, lengths, *shape) for kind, shape in HEADS.items()
    }
    wanted = MOST_ERROR[dtype]
    checks = [
        Check(f"worst text, heads of {kind}", error <= wanted, error, f"<= {wanted}")
        for kind, error in worst.items()
    ]
    return Outcome(f"worst relative error {max(worst.values()):.1e}", dict(worst), checks)


@torch.inference_mode()
def attention_error(device: str, dtype: str, lengths: Any, heads: int, width: int) -> float:
    """Largest relative error of a text, against softmax(q kᵀ / √d) v in float64."""
    made = torch.Generator().manual_seed(0)
    shape = 3, int(lengths.sum()), heads, width
    q, k, v = torch.randn(shape, generator=made).to(device, getattr(torch, dtype))
    ends = np.concatenate([[0], lengths.cumsum()])
    cumulated = torch.from_numpy(ends.astype(np.int32)).to(device)
    bound = 1 << int(lengths.max() - 1).bit_length()
    found = variable_length_kernel()(q, k, v, cumulated, bound).double()
    worst = 0.0
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        q64, k64, v64 = (x[start:end].double().transpose(0, 1) for x in (q, k, v))
        exact = torch.softmax(q64 @ k64.mT / width**0.5, dim=-1) @ v64
        difference = found[start:end].transpose(0, 1) - exact
        error = float(difference.norm() / exact.norm())
        worst = max(worst, error if error == error else float("inf"))  # NaN is not larger
    return worst


def passages_of_all_lengths(setup: Setup) -> list[str]:
    """One passage of each length: empty, one token, two, ...; the last ones are cut."""
    return setup.language.texts(np.arange(setup.sizes.texts), seed=2)


def agree(setup: Setup, kind: str, dtype: Dtype) -> Outcome:
    """Vectors of the product's encoder beside those of Hugging Face's network, with padding."""
    texts = passages_of_all_lengths(setup)
    encoder = setup.encoder(kind, dtype)
    found = encoder.encode_documents([""] * len(texts), texts)
    folder = setup.checkpoint(kind)
    ids = padded.token_ids(folder, texts, setup.sizes.positions)
    reference = padded.vectors(padded.network_of(folder, "float32", setup.device), ids)
    peer = padded.vectors(padded.network_of(folder, dtype, setup.device), ids)
    errors, theirs = (agreement.relative_errors(v, reference) for v in (found, peer))
    packs = _packs(encoder)
    checks = [
        Check("encoded without padding", packs, packs, "True"),
        *agreement.checks(found, reference, dtype),
        *agreement.excess_checks(found, peer, reference),
    ]
    figures = {
        "texts": len(texts),
        "tokens": sum(map(len, ids)),
        "load_and_compile_s": encoder.clock.seconds.get("load"),
        "relative_error": float(np.sqrt((errors**2).mean())),
        "worst_relative_error": float(errors.max()),
        "relative_error_with_padding": float(np.sqrt((theirs**2).mean())),
        "least_cosine": float(agreement.cosines(found, reference).min()),
        "nearest_is_itself": agreement.nearest_is_itself(found, reference),
    }
    headline = (
        f"error {figures['relative_error']:.2%} ({figures['relative_error_with_padding']:.2%} "
        f"with padding), nearest is itself {figures['nearest_is_itself']:.1%}"
    )
    return Outcome(headline, figures, checks)


def _packs(encoder: TransformerEncoder) -> bool:
    return encoder._towers.document.packs


def same_bytes_twice(setup: Setup) -> Outcome:
    """The same texts again: with the same encoder, with a new one, and in another process."""
    texts = passages_of_all_lengths(setup)
    first = digest(setup.encoder("minilm", "bfloat16"), texts)
    again = digest(setup.encoder("minilm", "bfloat16"), texts)
    job = setup.folder / "same_bytes.json"
    told = [str(setup.card("minilm")), "bfloat16", setup.device, texts]
    job.write_text(json.dumps(told), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.gpu_proof.same_bytes", str(job)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    other = done.stdout.split()[-1]
    checks = [
        Check("again", again == first, again, first),
        Check("in another process", other == first, other, first),
    ]
    return Outcome(f"sha256 {first[:12]}", {"sha256": first, "texts": len(texts)}, checks)


def many_networks(setup: Setup) -> Outcome:
    """Networks of different widths, each compiled; all are used again once the last is there."""
    texts = setup.language.texts(np.array([0, 1, 5, 30, setup.sizes.positions]), seed=7)
    opened, references = [], []
    for number in range(setup.sizes.networks):
        folder = setup.folder / f"network-{number}"
        shape = {"num_hidden_layers": 1 + number % 2, "intermediate_size": 64 * (number + 1)}
        write_random(folder, "minilm", setup.sizes, **shape)
        ids = padded.token_ids(folder, texts, setup.sizes.positions)
        references.append(padded.vectors(padded.network_of(folder, "float32", setup.device), ids))
        model = resolve_model(str(setup.write_card(folder.name, folder)), dtype="bfloat16")
        opened.append(open_transformer(model, setup.device))
        opened[-1].encode_documents(["", ""], texts[:2])
    errors = [
        float(
            agreement.relative_errors(
                encoder.encode_documents([""] * len(texts), texts), reference
            ).mean()
        )
        for encoder, reference in zip(opened, references, strict=True)
    ]
    worst = max(errors) if np.isfinite(errors).all() else float("inf")
    wanted = MOST_NETWORK_ERROR
    checks = [Check("worst relative error", worst <= wanted, worst, f"<= {wanted}")]
    return Outcome(f"{len(opened)} compiled, error {worst:.2%}", {"errors": errors}, checks)

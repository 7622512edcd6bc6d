"""How often the ledger names the faults of a search system, on real text.

Faults are planted in PostgreSQL with pgvector, or in Chroma, which really run. A fault is named if
the row with the largest term is its row, two faults if the two largest are theirs. The checkpoint
gets a query prompt, so that one can be left out. Its network without the last layer makes the
vectors of a stale model.

    python -m tests.benchmarks.ledger_faults classic/cranfield
    python -m tests.benchmarks.ledger_faults classic/cranfield --pairs 20
    python -m tests.benchmarks.ledger_faults classic/cranfield --samples 100
    python -m tests.benchmarks.ledger_faults classic/cranfield --chroma

It needs the packages of the tests: pip install -e '.[test]'
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from bench.runner.workspace import Workspace
from foundation.files import cache_folder
from retrievers.models.settings import ModelSettings
from tests.support.search_faults import (
    ABSENT_IN_CHROMA,
    FAULTS,
    PAIRS,
    Finding,
    World,
    find_faults,
    resampled_exit_codes,
)
from tests.support.search_systems import chroma, postgres

PROMPT = "Represent this sentence for searching relevant passages: "
MEASURES = ("nDCG@10", "R@100")
TEXT_CUT, QUERY_CUT = 200, 40  # characters
EF_SEARCH = 200


def write_shallow(source: Path, folder: Path) -> Path:
    """Write a checkpoint of BERT without its last layer."""
    folder.mkdir()
    for path in source.glob("*token*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": last}))
    weights = load_file(source / "model.safetensors")
    kept = {name: each for name, each in weights.items() if f"encoder.layer.{last}." not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def real_world(collection: str, name: str, workspace: Workspace, folder: Path) -> World:
    """A collection with a model, the model without its prompt, and without its last layer."""
    model = workspace.load(name, ModelSettings(query_prompt=PROMPT))
    plain = workspace.load(name, ModelSettings(query_prompt=""))
    shallow = write_shallow(model.model.checkpoint.folder, folder / "shallow")
    other = workspace.load(str(shallow), ModelSettings(like=name))
    dataset = workspace.dataset(collection)
    return World(workspace, dataset, model, plain, other, MEASURES, TEXT_CUT, QUERY_CUT)


def describe(finding: Finding) -> str:
    """The faults, whether they are named, and the largest terms of the ledger."""
    ledger = finding.ledger
    lines = [f"{' + '.join(finding.faults) or 'none'}: {finding.named} named"]
    for name in finding.largest[:3]:
        row = next(row for row in ledger.rows if row.name == name)
        terms = " ".join(f"{term.difference:+.4f}" for term in row.terms)
        lines += [f"    {terms} {name}"] * any(term.difference for term in row.terms)
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("on", help="collection")
    parser.add_argument("--model", default="minilm", help="a BERT")
    parser.add_argument("--faults", nargs="+", help="some of the faults", choices=FAULTS)
    parser.add_argument("--pairs", type=int, default=0, help="plant so many random pairs instead")
    parser.add_argument("--skip", type=int, default=0, help="pairs that were tried already")
    parser.add_argument("--samples", type=int, default=0, help="of queries of a healthy system")
    parser.add_argument("--chroma", action="store_true", help="instead of PostgreSQL")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cache-dir", type=Path)
    typed = parser.parse_args(words)
    workspace = Workspace(cache_folder(typed.cache_dir), typed.data_dir)
    single = list(typed.faults or FAULTS)
    if typed.chroma:
        single = [name for name in single if name not in ABSENT_IN_CHROMA]
    plans: list[Sequence[str]] = [[name] for name in single]
    if typed.pairs:
        plans = list(random.Random(5).sample(PAIRS, typed.pairs))[typed.skip :]
    server = chroma() if typed.chroma else postgres()
    with tempfile.TemporaryDirectory() as folder, server as where:
        world = real_world(typed.on, typed.model, workspace, Path(folder))
        if typed.samples:
            codes = resampled_exit_codes(world, str(where), typed.samples, EF_SEARCH)
            print(f"healthy: exit code 0 in {codes.count(0)} of {len(codes)} samples")
            return
        findings = []
        for plan in plans:
            findings.append(find_faults(world, where, plan))
            print(describe(findings[-1]), flush=True)
    named = sum(each.named > 0 for each in findings)
    print(f"the largest term is a planted one in {named} of {len(findings)}")


if __name__ == "__main__":
    main()

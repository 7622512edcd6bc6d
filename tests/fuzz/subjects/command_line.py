"""Words of the command line."""

import json
from pathlib import Path
from random import Random
from typing import ClassVar

from tests.fuzz.subjects.base import Subject
from tests.fuzz.subjects.layouts import RunFile
from tests.fuzz.subjects.sample import FACTS, write_beir

WORDS = (
    *("", " ", "-", "--", "nan", "inf", "-1", "0", "1.5", "1e400", "9" * 5_000, "x" * 300),
    *("x" * 5_000, "é", "\x1b[31m", "..", "/dev/null", "/proc", "a/b", "@", "own@", "\udcff"),
    *("own@depth=x", "own@=", "?nprobe=", "IVF0,Flat", "IDMap,Flat", "PQ3", "HNSW-1", "flat?a"),
    *("nDCG@", "@10", "AP(rel=)", "AP(rel=99999999999)", "R@99999999999999", "s3://", "a,b"),
    *("memory://x", "ftp://x/y", "http://[", "file://", "0s", "{}", "%s", "$x", "a=b", "@file"),
)


class CommandLine(Subject):
    """Words of the command line."""

    name = "words"
    codes = (0, 1, 2, 3, 4, 5)
    commands: ClassVar[tuple[str, ...]] = (
        "run {c} --model hashing --depth 10 --measure R@5 --index flat --max-memory 2GB",
        "run {c} --model hashing bm25 --split test --index IVF2,Flat?nprobe=2&seed=1",
        "run {c} --model hashing --set store_dtype=float16 --set max_query_tokens=8",
        "score {r} --dataset {c} --depth 10 --name mine --measure AP(rel=2)",
        "run {c} --model hashing --dry-run --max-memory 2GB",
        "compare hashing bm25 --results {o} --resamples 199 --on own --measure nDCG@10",
        "check hashing --baseline bm25 --results {o} --on {c} --margin 0.01 --floor 0.1",
        "check bm25 --baseline hashing --results {o} --on {c} --rule margin --anchor bm25",
        "leaderboard --results {o} --measure nDCG@10 --resamples 199 --format csv",
        "leaderboard --results {o} --pair hashing bm25 --published cards --json",
        "forgetting hashing --stored --on own --results {o} --base bm25 --resamples 199",
        "export trec hashing --results {o} --as mine --on own",
        "list models --json",
        "verify {c}",
        "cache --verify --older-than 3 --prune hashing --dry-run",
        "show minilm",
        "show beir/scifact --json",
    )

    def make(self, folder: Path) -> None:
        RunFile().make(folder)
        write_beir(folder / "own", FACTS)
        from bench.__main__ import main

        words = ["run", str(folder / "own"), "--model", "hashing", "bm25"]
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
        word = rng.choice(WORDS)
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
        if name in ("run", "score", "export"):
            typed += ["--out", str(folder / "out")]
        if name in ("run", "score", "check", "verify", "cache", "watch"):
            typed += ["--cache-dir", str(folder / "cache")]
        return typed

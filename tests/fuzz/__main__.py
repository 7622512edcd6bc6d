"""Mutates every kind of file that the program reads, and every word of its command line.

What is refused must be refused in words (exit 2); what is accepted must give the scores that an
independent reading gives. Anything else is printed, and makes the exit code 1. A finding is made
again by its seed, subject and number:

    python -m tests.fuzz --mutations 10000 --seed 1
    python -m tests.fuzz --seed 1 --only results --number 17
"""

import argparse
import sys
from collections import Counter

from tests.fuzz.campaign import GOOD, Worker, campaign
from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.worker import Outcome, Trial


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign, or make one mutation again."""
    options = _parser().parse_args(arguments)
    subjects = options.only or list(SUBJECTS)
    if options.number is not None:
        worker = Worker()
        outcomes = [worker.attempt(Trial(options.seed, name, options.number)) for name in subjects]
        worker.stop()
    else:
        outcomes = []
        limits = (options.workers, options.seconds)
        for outcome in campaign(options.seed, options.mutations, subjects, *limits):
            outcomes.append(outcome)
            if outcome.verdict not in GOOD:
                print(_told(outcome), flush=True)
    if options.number is not None:
        print("\n".join(_told(outcome) for outcome in outcomes))
    counts = Counter((outcome.trial.subject, outcome.verdict) for outcome in outcomes)
    for (subject, verdict), count in sorted(counts.items()):
        print(f"{subject:12} {verdict:24} {count:6,}")
    bad = sum(outcome.verdict not in GOOD for outcome in outcomes)
    print(f"{len(outcomes):,} mutations, seed {options.seed}: {bad:,} findings")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutations", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(SUBJECTS), metavar="SUBJECT")
    parser.add_argument("--number", type=int, help="one mutation of each subject, made again")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    return parser


def _told(outcome: Outcome) -> str:
    trial = outcome.trial
    again = f"--seed {trial.seed} --only {trial.subject!r} --number {trial.number}"
    lines = [line for line in outcome.detail.strip().splitlines() if line.strip(" ^~")]
    detail = "\n    ".join(line[:300] for line in lines[-5:])
    return f"{outcome.verdict}: {outcome.mutation} ({outcome.seconds:.1f} s; {again})\n    {detail}"


if __name__ == "__main__":
    sys.exit(main())

"""Speed of the engine against the usual autograd loop: `leakscope bench` on a machine with torch and numpy alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from leakscope.core.errors import InputError
from leakscope.studies.bench import PAIRS, as_json, as_text, optimiser_share, run
from leakscope.studies.bench_cases import CASES, MAIN
from leakscope.studies.bench_large import LARGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line without further dependencies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(MAIN), help=f"any of {', '.join([*CASES, *LARGE])}")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--form", default=None)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--iterations", type=int, default=None)
    parser.add_argument(
        "--share-trials", type=int, default=64, help="trials of the run that shows the optimiser's share; 0: skip it"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    try:
        timings = run(
            asked.cases,
            asked.device,
            pairs=asked.pairs,
            tf32=asked.tf32,
            form=asked.form,
            iterations=asked.iterations,
            say=say,
        )
        shares = optimiser_share(asked.device, asked.share_trials) if asked.share_trials else None
    except InputError as error:
        say(f"leakscope: {error}")
        return 2
    sys.stdout.write((as_json if asked.json else as_text)(timings, shares) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

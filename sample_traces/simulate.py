"""Writes traces of simulated training jobs, each set with its exact truth beside it; the same bytes every time.

python sample_traces/simulate.py [--out DIR] [SET ...]
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _sim import sets  # noqa: E402  (found beside this script)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write traces of simulated training jobs, with their truth.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder that gets a folder for each set (default: here)")
    parser.add_argument("only", nargs="*", metavar="SET", help=f"of {', '.join(sets.SETS)} (default: all)")
    args = parser.parse_args()
    unknown = set(args.only) - set(sets.SETS)
    if unknown:
        parser.error(f"no such set: {', '.join(sorted(unknown))}")
    for name in args.only or sets.SETS:
        into = sets.write(name, args.out)
        size = sum(f.stat().st_size for f in into.iterdir())
        print(f"{into}: {size:,} bytes")


if __name__ == "__main__":
    main()

"""`python -m tracegap` is the `tracegap` command."""

from tracegap.flows.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""The commands of the shell, thin over plain functions. Heavy imports are inside them, so that `--help` is quick."""

"""The commands of a benchmark: run a plan, watch it, report it."""

"""The page of a benchmark run, one file per part of it."""

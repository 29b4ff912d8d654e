"""The table of a benchmark: rows and columns made from stored scores, and the formats it is written in."""

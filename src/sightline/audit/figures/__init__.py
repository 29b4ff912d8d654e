"""The figures of papers computed, each for `sightline.report.figures` to draw."""

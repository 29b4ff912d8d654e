"""Statistics over images: resampling, tests, ties, agreement between metrics."""

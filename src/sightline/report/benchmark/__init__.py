"""The report of a benchmark run: from its store to an HTML page and tables."""

from __future__ import annotations

from sightline.report.benchmark.assemble import BenchmarkReport, benchmark_report, write_report

__all__ = ["BenchmarkReport", "benchmark_report", "write_report"]

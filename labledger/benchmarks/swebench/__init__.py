"""Rows of SWE-bench data sets, as the `swebench` package publishes and grades them.

In: a JSONL or Parquet file, and files of predictions. Out: a `Benchmark` of ordinary tasks whose
graders run in containers of their own. The scripts beside these modules run in containers.
"""

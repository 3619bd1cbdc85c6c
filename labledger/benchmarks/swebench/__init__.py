"""Rows of SWE-bench data sets, as the `swebench` package publishes and grades them.

In: a JSONL or Parquet file, and files of predictions. Out: a `Benchmark` whose graders run in
separate containers, and the verdicts of `judge` on their logs. The package runs in separate
processes, and the scripts run in containers. Read `swebench_format`, `dataset_rows` and `judge`
first.

Read first: `swebench_format`, `dataset_rows`, `judge`.
"""

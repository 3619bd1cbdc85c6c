"""Rows of SWE-bench data sets, as the `swebench` package publishes and grades them.

In: a JSONL or Parquet file, and files of predictions. Out: a `Benchmark` of ordinary tasks whose
graders run in containers of their own, and the verdicts of `judge` on their logs. The `swebench`
package runs in processes of its own; the scripts beside these modules run in containers.
"""

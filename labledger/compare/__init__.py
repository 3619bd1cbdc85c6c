"""Compare variants and runs, and plan how large an experiment must be.

In: a ledger reader, and the arguments of `labledger compare` or `labledger plan`. Out: a
`Comparison` (document `comparison_v1`) or a `SizePlan`. May not import Docker or anything that runs
trials.

`statistics` computes with numbers alone.

Read first: `compare`, `comparison_document`, `decision`.
"""

"""The format `harbor`: task folders of Harbor, such as Terminal-Bench.

In: a task folder, a folder of them, a `registry.json` or a `dataset.toml`. Out: a `Benchmark`, and
each refused task with the reason. Every request of a task is translated or refused, never ignored.
`rewards` judges a grader's results. Runs no container.

Read first: `translation`, `task_toml`, `rewards`.
"""

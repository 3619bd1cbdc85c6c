"""The format `harbor`: task folders of Harbor, such as those of Terminal-Bench.

In: a task folder, a folder of them, a `registry.json` or a `dataset.toml`. Out: a `Benchmark` whose
tasks use ordinary features of experiments, and each task that cannot be run with the reason. What a
task asks for is translated or refused by name, and never ignored. `rewards` judges what a grader
left. Nothing here runs a container.
"""

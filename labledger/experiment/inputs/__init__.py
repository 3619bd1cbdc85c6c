"""What an experiment brings along: dataset rows, staged files, workspaces, clusters.

In: files beside experiment.yaml. Out: frozen rows and artifacts with digests, or problems by line.
Imported by `experiment` and whoever reads frozen rows.
"""

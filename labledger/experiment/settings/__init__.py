"""The settings of phases and trials: commands, grading, and what variants and tasks override.

In come authored sections and the typed plan of an experiment; out go the merged settings of each
trial. Nothing here reads files or knows Docker.
"""

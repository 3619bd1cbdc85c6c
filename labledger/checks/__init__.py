"""Checks before a run: experiment, machine, engine, images and hosts.

In: a resolved experiment, or a run to continue or regrade. Out: check results with hints, and ids
of images. Missing images are pulled or built here. A failed check is a result, not an exception.
May not import `runner`, `upkeep` or `api`.

Read first: `preflight`, `check_results`, `image_checks`.
"""

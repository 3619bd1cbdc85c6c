"""The checks before a run, and maintenance of a lab folder: doctor, clean, import, verify.

In: a lab folder or a resolved experiment. Out: check results with hints, findings, imported runs.
`image_checks` holds the checks of images. May not import the runner.
"""

"""What is done beside runs: preflight, doctor, clean, import, verify.

In: a lab folder or an experiment. Out: checks with hints, findings, imported runs.
May not import the runner.
"""

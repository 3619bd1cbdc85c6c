"""Everything that is printed: tables, progress, outcomes, details of a trial.

In: results and run events. Out: lines on stdout and stderr; all foreign text is escaped.
May not import `cli.commands` or `cli.options`.
"""

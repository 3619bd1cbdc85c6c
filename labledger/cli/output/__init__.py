"""Everything that is written to a terminal: tables, progress, details of a trial.

In: results and run events. Out: lines on stdout and stderr; all foreign text is escaped.
May not import `cli.commands` or `cli.options`.
"""

"""Options that several commands share: how they are declared, parsed and completed.

In: words of the command line. Out: typed options of the library.
May not import `cli.commands`.
"""

"""Planning: how large an experiment must be to show a difference, what it costs and takes.

In: a resolved experiment's size, and earlier runs of the ledger. Out: a `SizePlan`, and its words
in `plan_text`. Nothing is run or written; nothing here may import Docker or code that runs trials.
"""

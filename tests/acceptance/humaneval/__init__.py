"""HumanEval as an experiment: built, run, killed half-way, resumed and queried.

The acceptance test and `scripts/humaneval` share this.
"""

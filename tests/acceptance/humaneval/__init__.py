"""HumanEval as an experiment: built, run, killed half-way, resumed and asked.

The acceptance test and `scripts/humaneval` share this.
"""

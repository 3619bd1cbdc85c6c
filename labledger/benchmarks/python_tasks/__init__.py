"""HumanEval and MBPP: tasks whose answer is one Python program, graded by tests in Python.

In: JSONL files of the two formats. Out: a `Benchmark` whose agent and grader are `agent_program.py`
and `grader_program.py`. These two run in containers and import nothing of labledger.
"""

"""Trials whose grader runs after a part of its own: the ways from the agent's part to the grader's.

In: an attempt and its container, which waits or has stopped. Out: how both parts ended, as one
`ContainerExit`. The outcome of the agent's part is stored before a file of the grader can be read.
May not import `worker` or `adoption`, which decide when this is called.
"""

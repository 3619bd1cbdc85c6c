"""What a container mounts: the trial folder, the files of the task and those of a sealed grader.

In: an attempt's specification. Out: files on the host, and their mounts. May not import anything
of `life` that creates or starts containers.
"""

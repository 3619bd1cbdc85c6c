"""Workspaces: seed, listing, patch, tar files, and reading untrusted files.

In: folders that a container wrote, and frozen seeds. Out: lists, patches, archives.
Follows no link and opens nothing but regular files. Knows nothing of trials.
"""

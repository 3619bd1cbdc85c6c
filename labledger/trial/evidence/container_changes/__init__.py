"""What a trial changed in the file system of its container, where nothing is mounted over it.

In: a container that has stopped. Out: a list of changes, a patch of texts, and a snapshot from
which a regrading restores them. Follows no link, reads regular files only, and limits number and
size. Two readers give the same: `overlay` reads the engine's folders, `archives` asks the engine.
"""

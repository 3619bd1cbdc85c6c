"""Upkeep of a lab folder: verify, import, archive, back up, clean, delete runs, collect garbage.

In: a lab folder, and runs of its ledger. Out: findings, imported runs, archives, backups, restored
labs, and removals. Nothing is removed that a live coordinator may need. May not import `runner`,
`checks` or `api`.

Read first: `verify_lab`, `container_cleanup`, `lab_backup`.
"""

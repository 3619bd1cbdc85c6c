"""How fast labledger is, beside a plain way of doing the same: what `scripts/bench` runs."""

#!/bin/sh
# Exits with 0 when the candidate solves every task, 1 when it does not, and 3 when the machine failed.
cd "$(dirname "$0")" || exit 2
exec labledger run . --quiet --fail-under candidate=1.0 --max-error-rate 0.2 "$@"

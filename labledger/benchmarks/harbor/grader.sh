#!/bin/sh
# Runs the task's tests, /tests/test.sh, in the current directory. They leave the reward in
# /logs/verifier/reward.json or reward.txt, which labledger reads. Their exit status has no meaning.
set -u

# Runs a script as Harbor does: from bash, which runs one without a #! in its first line itself.
run_script() {
    chmod +x "$1" 2>/dev/null
    shell=sh
    ! command -v bash >/dev/null 2>&1 || shell=bash
    [ ! -x "$1" ] || { "$shell" -c '("$1")' "$shell" "$1"; return; }
    # Only root could make it executable.
    IFS= read -r first <"$1"
    case $first in
        '#!'*) ${first#??} "$1" ;;
        *) "$shell" "$1" ;;
    esac
}

tests=/tests/test.sh
rm -f /logs/verifier/reward.json /logs/verifier/reward.txt
if [ ! -f "$tests" ]; then
    echo "grader.sh: there is no $tests" >&2
    exit 1
fi
[ ! -f /harbor-collect/collect.sh ] || sh /harbor-collect/collect.sh >/dev/null 2>&1
run_script "$tests" >/logs/verifier/test-stdout.txt 2>&1
status=$?
# For a person who looks at the trial; the host reads the file.
cat /logs/verifier/test-stdout.txt
echo "test.sh ended with status $status"
exit 0

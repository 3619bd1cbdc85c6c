#!/bin/sh
# Runs the task's tests, /tests/test.sh, in the current directory. They leave the reward in
# /logs/verifier/reward.json or reward.txt, which labledger reads. Their exit status has no meaning.
set -u

# Runs a script, by its own first line if it is not executable.
run_script() {
    [ ! -x "$1" ] || { "$1"; return; }
    IFS= read -r first <"$1"
    case $first in
        '#!'*) ${first#??} "$1" ;;
        *) sh "$1" ;;
    esac
}

tests=/tests/test.sh
rm -f /logs/verifier/reward.json /logs/verifier/reward.txt
if [ ! -f "$tests" ]; then
    echo "grader.sh: there is no $tests" >&2
    exit 1
fi
chmod +x "$tests" 2>/dev/null
run_script "$tests" >/logs/verifier/test-stdout.txt 2>&1
status=$?
# For a person who looks at the trial; the host reads the file.
cat /logs/verifier/test-stdout.txt
echo "test.sh ended with status $status"
exit 0

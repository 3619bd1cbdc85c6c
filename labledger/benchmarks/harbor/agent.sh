#!/bin/sh
# agent.sh AGENT: the agents that come with Harbor tasks.
#
#   oracle   runs the task's solution, /solution/solve.sh, which no other variant has: must pass
#   nop      does nothing: must fail
#
# Replace this file, or runtime.agent.command, by your own agent. It finds its instruction in the JSON
# file $AGENTLAB_TASK_PATH, at task.instruction, works in the current directory, and may write what
# it wants to keep to /logs/agent and /logs/artifacts.
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

case ${1-} in
    oracle) ;;
    nop) exit 0 ;;
    *)
        echo "agent.sh: there is no agent '${1-}'; expected oracle or nop" >&2
        exit 2
        ;;
esac

solution=/solution/solve.sh
if [ ! -f "$solution" ]; then
    echo "agent.sh: this task has no solution/solve.sh" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
[ ! -f /oracle/env.sh ] || . /oracle/env.sh
run_script "$solution" >/logs/agent/oracle.txt 2>&1
status=$?
# As with Harbor, a solution that fails is judged by the tests and not by its exit status.
[ "$status" -eq 0 ] || echo "$status" >/logs/agent/exit-code.txt
exit 0

#!/bin/sh
# PID 1 of a trial container: setup, agent, grader, in this container and this workspace.
#
#   trial.sh SETUP_CS AGENT_CS GRADER_CS GRADE_FAILED LOG_BYTES SHARE
#
# Time limits are in hundredths of a second. GRADE_FAILED is 1 where failed agents are graded too.
# LOG_BYTES is what is kept of each output. SHARE is 1 where the host's user is not root and must
# be able to read and delete what this container wrote.
#
# Needs a POSIX shell and cat, chmod, head, mkfifo, rm, sleep. Runs nothing else of its own, needs
# no coordinator while it runs, and tells its outcome in its exit status:
#
#    0  agent succeeded, graded            30  agent failed, not graded by policy
#   10  agent failed, graded               31  agent timed out, not graded by policy
#   11  agent timed out, graded            40  grader failed
#   20  setup failed                       41  grader timed out
#   21  setup timed out                    70  this script could not do its part
set -u

IN=/agentlab/in
STATE=/agentlab/state
PIPES=/dev/shm/agentlab.pipes
SETUP_CS=$1 AGENT_CS=$2 GRADER_CS=$3 GRADE_FAILED=$4 LOG_BYTES=$5 SHARE=$6
PHASES=''

# How long a stopped phase may take to end by itself, and its left-over output to be read.
TERM_GRACE=2
DRAIN_GRACE=1

exec </dev/null

# Sets $now: hundredths of a second since boot.
read_clock() {
    read -r now _ </proc/uptime
    now=${now%.*}${now#*.}
}

# Keeps the first LOG_BYTES of pipe $1 in file $2 and reads on, so that the writer never blocks.
keep() {
    { head -c "$LOG_BYTES" >"$2"; cat >/dev/null; } <"$1"
}

# Ends process $2 when $1 hundredths of a second have passed.
watch() {
    sleep "$(($1 / 100)).$(($1 / 10 % 10))$(($1 % 10))"
    kill -TERM "$2" && sleep "$TERM_GRACE" && kill -KILL "$2"
}

# True when a process other than this one is alive. Reads /proc with built-ins alone.
others_alive() {
    for entry in /proc/[0-9]*; do
        [ "$entry" = /proc/1 ] && continue
        { read -r line <"$entry/stat"; } 2>/dev/null || continue
        line=${line##*) }
        case $line in Z* | X*) ;; *) return 0 ;; esac
    done
    return 1
}

# Kills every other process and returns when they are dead; gives up after about 20 s.
kill_all() {
    tries=0
    kill -KILL -1 2>/dev/null
    while others_alive; do
        tries=$((tries + 1))
        [ "$tries" -gt 400 ] && finish 70
        sleep 0.05
        kill -KILL -1 2>/dev/null
    done
}

# Removes the paths given, whatever they have become.
remove() {
    rm -rf -- "$@" 2>/dev/null
    for path in "$@"; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        chmod -R u+rwx -- "$path" 2>/dev/null
        rm -rf -- "$path" || finish 70
    done
}

# Runs phase $1 within $2 hundredths of a second. Sets $status, 124 after a time-out. When this
# returns, no process but this one is left.
run_phase() {
    remove "$PIPES.out" "$PIPES.err" "$STATE/$1.stdout" "$STATE/$1.stderr"
    mkfifo "$PIPES.out" "$PIPES.err" || finish 70
    read_clock
    started=$now
    keep "$PIPES.out" "$STATE/$1.stdout" & keep_out=$!
    keep "$PIPES.err" "$STATE/$1.stderr" & keep_err=$!
    sh "$IN/$1.sh" >"$PIPES.out" 2>"$PIPES.err" & command=$!
    watch "$2" "$command" 2>/dev/null &
    wait "$command"
    status=$?
    read_clock
    timed_out=0
    [ $((now - started)) -ge "$2" ] && status=124 timed_out=1
    PHASES="$PHASES$1 $status $started $now $timed_out
"
    # What a process left behind still holds the pipes: it gets a moment, and is then killed.
    { sleep "$DRAIN_GRACE"; kill -KILL -1; } 2>/dev/null &
    wait "$keep_out" "$keep_err"
    kill_all
}

# Writes what happened, opens the files to the host's user, and ends the trial with status $1.
finish() {
    rm -rf -- "$STATE/phases" 2>/dev/null
    printf '%s' "$PHASES" >"$STATE/phases"
    [ "$SHARE" = 1 ] && chmod -R a+rwX /agentlab/out "$STATE" /agentlab/workspace 2>/dev/null
    exit "$1"
}

if [ -e "$IN/setup.sh" ]; then
    run_phase setup "$SETUP_CS"
    [ "$timed_out" = 1 ] && finish 21
    [ "$status" = 0 ] || finish 20
fi

run_phase agent "$AGENT_CS"
AGENTLAB_AGENT_EXIT_STATUS=$status
export AGENTLAB_AGENT_EXIT_STATUS
agent_failed=0
[ "$status" = 0 ] || agent_failed=1$timed_out

# Nothing the agent wrote where the grader's rows belong survives.
remove "$AGENTLAB_BENCHMARK_PREDICTION_PATH" "$AGENTLAB_BENCHMARK_SCORE_PATH"
[ "$agent_failed" = 0 ] || [ "$GRADE_FAILED" = 1 ] || finish "3${agent_failed#1}"

run_phase grader "$GRADER_CS"
[ "$timed_out" = 1 ] && finish 41
[ "$status" = 0 ] || finish 40
finish "$agent_failed"

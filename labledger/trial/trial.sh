#!/bin/sh
# PID 1 of a trial container: setup, agent, grader, in this container and this workspace.
#
#   trial.sh SETUP_CS AGENT_CS GRADER_CS GRADE_FAILED LOG_BYTES SHARE SEALED AGENT_USER YIELDS
#   trial.sh become AGENT_USER
#
# Time limits are in hundredths of a second. GRADE_FAILED is 1 where failed agents are graded too.
# LOG_BYTES is what is kept of each output, and 8 KiB more for the host to look at. SHARE is 1 where
# the host's user is not root and must be able to read and delete what is left here. SEALED is `none`,
# `unreadable` or `after_agent`; with the last, this ends when the agent has, and is started again
# with the grader's files in place and a note, in/phases, of what came before. AGENT_USER is whom the
# agent runs as, empty where that is whom this runs as. YIELDS, in thousandths of the memory limit, is
# how much larger a phase's processes look to a kernel that ends some for want of memory, so that it
# ends them and not this. `become` only says whether something can run as AGENT_USER.
#
# Needs a POSIX shell and cat, chmod, mkfifo, rm and a sleep that knows fractions of a second, and
# for an AGENT_USER the setpriv of util-linux or the su of busybox. Runs nothing else of its own,
# needs no coordinator while it runs, and tells its outcome in its exit status:
#
#    0  agent succeeded, graded            30  agent failed, not graded by policy
#   10  agent failed, graded               31  agent timed out, not graded by policy
#   11  agent timed out, graded            40  grader failed
#   20  setup failed                       41  grader timed out
#   21  setup timed out                    50  agent ended, its grading is outstanding
#                                          70  this script could not do its part
#                                          71  a phase failed, and the disk was full
#                                          72  the agent changed the limits of this script
set -u

IN=/agentlab/in
OUT=/agentlab/out
STATE=/agentlab/state
WORKSPACE=/agentlab/workspace
SEALED_IN=/agentlab/sealed/in
PIPES=/dev/shm/agentlab
PHASES=''

# How long a stopped phase may take to end by itself, in hundredths of a second.
TERM_GRACE=200

# What `wait` says when the end of a process interrupted it: 128 + CHLD.
WOKEN=145

# Sets $uid, $gid, $name and $home of user $1: a name or a number, and perhaps a group after a colon.
# False where the image does not say who that is, or where it is root.
look_up_user() {
    wanted=${1%%:*} uid='' gid='' name='' home=''
    case $wanted in *[!0-9]*) ;; *) uid=$wanted gid=$wanted ;; esac
    [ -r /etc/passwd ] && while IFS=: read -r at_name _ at_uid at_gid _ at_home _; do
        case $wanted in "$at_name" | "$at_uid") ;; *) continue ;; esac
        uid=$at_uid gid=$at_gid name=$at_name home=$at_home
        break
    done </etc/passwd
    case $1 in *:*) look_up_group "${1#*:}" ;; esac
    [ -d "$home" ] || home=$WORKSPACE
    [ "${uid:-0}" -gt 0 ] && [ -n "$gid" ]
}

# Sets $gid of group $1, to nothing where the image does not have it, and clears the name of a user
# whose group is another: `su` would not know that.
look_up_group() {
    group=''
    case $1 in *[!0-9]*) ;; *) group=$1 ;; esac
    [ -n "$group" ] || [ ! -r /etc/group ] || while IFS=: read -r at_name _ at_gid _; do
        [ "$at_name" = "$1" ] && group=$at_gid && break
    done </etc/group
    [ "$group" = "$gid" ] || name=''
    gid=$group
}

# Sets $become to what can make a process user $1's; false, with $why, where nothing can.
find_become() {
    why="this image does not say who user $1 is, or it is root"
    look_up_user "$1" || return 1
    become=setpriv
    as_agent true 2>/dev/null && return 0
    become=su
    [ -n "$name" ] && as_agent -c : 2>/dev/null && return 0
    why="this image cannot make a process user $1's; it needs the setpriv of util-linux, or a su and the user in its /etc/passwd, and the container's user must be root"
    return 1
}

# Runs words with the rights of the agent's user: a command, or with su what its shell is given.
as_agent() {
    case $become in
        setpriv) setpriv --reuid="$uid" --regid="$gid" --clear-groups "$@" ;;
        su) su -p -s /bin/sh "$name" "$@" ;;
    esac
}

if [ "$1" = become ]; then
    find_become "$2" || echo "$why"
    exit
fi
SETUP_CS=$1 AGENT_CS=$2 GRADER_CS=$3 GRADE_FAILED=$4 LOG_BYTES=$5 SHARE=$6 SEALED=$7 AGENT_USER=$8 YIELDS=$9

exec </dev/null

# The one signal that a shell as PID 1 would otherwise die of.
trap : INT

# Sets $now: hundredths of a second since boot.
read_clock() {
    read -r uptime _ </proc/uptime
    now=${uptime%.*}${uptime#*.}
}

# Keeps the beginning of pipe $1 in file $2 and reads on, so that the writer never blocks. `cat`
# holds nothing back, so that nothing is lost when it is killed; the file's limit ends it.
keep() {
    ulimit -f "$((LOG_BYTES / 512 + 17))"
    { cat >"$2" || cat >/dev/null; } <"$1"
}

# Sets $limits to the kernel's limits of this process, to nothing where too few files may be open.
read_limits() {
    limits=''
    {
        while read -r line; do
            limits="$limits$line;"
        done </proc/1/limits
    } 2>/dev/null
}

# Ends the trial at once where phase $1 has changed the limits of this process, as a root agent can
# by `prlimit --pid 1`: nothing that this script does, or finds to fail, can be relied on then.
check_limits() {
    read_limits
    [ "$limits" = "$first_limits" ] && return
    case $1 in
        setup) finish 20 ;;
        agent) finish 72 ;;
        grader) finish 40 ;;
    esac
}

# Sets $state and $parent of process $1 with built-ins alone; $state is `gone` when it is.
look_at() {
    stat=''
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null
    case ${#stat} in
        0) stat=') gone 0 ' ;;
        # A name with a line break in it cuts the line short: such a process is nobody's child.
        ? | [1-5]?) stat=') ? 0 ' ;;
    esac
    from_state=${stat##*) }
    state=${from_state%% *}
    from_parent=${from_state#* }
    parent=${from_parent%% *}
}

# Starts a process, $alarm, that ends when the clock says $1.
set_alarm() {
    left=$(($1 - now))
    sleep "$((left / 100)).$((left / 10 % 10))$((left % 10))" &
    alarm=$!
}

# Ends $command at $deadline, by TERM and after a grace by KILL; renews an alarm that somebody killed
# or stopped. A trap in a trap confuses dash about exit statuses, so nothing here depends on one.
look_at_clock() {
    read_clock
    rings=$deadline
    case $((now < deadline))$warned in
        00)
            warned=1 alarm=$last_alarm rings=$last_deadline
            kill -TERM "$command"
            ;;
        01) rings=$last_deadline ;;
    esac
    case $((now < rings)) in
        0) kill -KILL "$command"; return ;;
    esac
    look_at "$alarm"
    case $state in
        R | S | D) return ;;
        gone) ;;
        *) kill -KILL "$alarm" ;;
    esac
    set_alarm "$rings"
}

# Runs whenever a child has changed: the alarm has rung, or something has happened to it. A change
# while this looks makes it look again, so that none is lost. The `for` stands for `while`, which
# depends on an exit status, and saves depth: a storm of changes is not to exhaust the stack.
keep_time() {
    changed=1
    case $looking in 1) return ;; esac
    looking=1
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        changed=0
        look_at_clock
        case $changed in 0) break ;; esac
    done
    looking=0
    case $changed in 1) keep_time ;; esac
} 2>/dev/null

# Gives the next command $1 hundredths of a second. Its alarms are there before it, so that it
# cannot keep them away by using up all the processes that the container may have.
start_clock() {
    read_clock
    started=$now deadline=$((now + $1)) last_deadline=$((now + $1 + TERM_GRACE)) warned=0
    set_alarm "$last_deadline"
    last_alarm=$alarm
    set_alarm "$deadline"
}

# Waits for $command, ends it when its time is up, and sets $status.
await_command() {
    looking=0
    trap keep_time CHLD
    keep_time
    wait "$command"
    status=$?
    # Above 128 it may be a signal that only interrupted the waiting.
    while [ "$status" -gt 128 ] && kill -0 "$command" 2>/dev/null; do
        wait "$command"
        status=$?
    done
    trap - CHLD
    # The end of $command itself may have interrupted it: its status is still to be had then.
    [ "$status" = "$WOKEN" ] || return 0
    wait "$command"
    status=$?
}

# True when process $1, which look_at has just read, keeps output: it is one of $keepers or its `cat`.
keeps_output() {
    case " $keepers " in *" $1 "* | *" $parent "*) return 0 ;; esac
    return 1
}

# True when another process, which keeps no output, is in a state that is none of $1.
others_are_not() {
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        [ "$pid" = 1 ] && continue
        look_at "$pid"
        case $1 in *"$state"*) continue ;; esac
        keeps_output "$pid" || return 0
    done
    return 1
}

# Kills every process but this one and those that keep the output: they meet its end then. All are
# stopped first, so that none can fork away: what has stopped or died is forking nothing, and what it
# has forked can be seen, to be killed or continued. One that waits in the kernel, as at a vfork, may
# never stop; it is waited for at most a second. Those that keep the output are not waited for: they
# fork nothing that must die, and one whose `cat` was stopped before its exec cannot stop itself.
kill_all_but_keepers() {
    read_clock
    gives_up=$((now + 100))
    kill -STOP -1
    while [ "$now" -lt "$gives_up" ] && others_are_not 'T t Z X gone'; do
        read_clock
    done
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        [ "$pid" = 1 ] && continue
        look_at "$pid"
        keeps_output "$pid" || kill -KILL "$pid"
    done
    kill -CONT -1
}

# Kills every other process and returns when they are dead; gives up after 20 s. Starts none: there
# may be no room for one. `jobs` reaps the dead, of whom the container may only have so many.
kill_all() {
    read_clock
    gives_up=$((now + 2000))
    while kill -KILL -1; jobs >/dev/null; others_are_not 'Z X gone'; do
        read_clock
        [ "$now" -lt "$gives_up" ] || finish 70
    done
    jobs >/dev/null
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

# Removes the paths given, whatever they have become.
remove() {
    for path in "$@"; do
        exists "$path" || continue
        rm -rf -- "$path"
        exists "$path" || continue
        chmod -R u+rwx -- "$path"
        rm -rf -- "$path"
        ! exists "$path" || finish 70
    done
}

# Makes sure that this script can see and change what lies in the folders given.
reopen() {
    for path in "$@"; do
        [ -r "$path" ] && [ -w "$path" ] && [ -x "$path" ] && continue
        chmod u+rwx "$path" || finish 70
    done
}

# Becomes the command of phase $1.
launch() {
    { echo "$YIELDS" >/proc/self/oom_score_adj; } 2>/dev/null
    case $1:$SEALED:$AGENT_USER in
        agent:*:?*)
            export HOME="$home"
            case $become in
                setpriv) exec setpriv --reuid="$uid" --regid="$gid" --clear-groups sh "$IN/agent.sh" ;;
                su) exec su -p -s /bin/sh "$name" "$IN/agent.sh" ;;
            esac
            ;;
        grader:none:*) exec sh "$IN/grader.sh" ;;
        grader:*) exec sh "$SEALED_IN/grader.sh" ;;
        *) exec sh "$IN/$1.sh" ;;
    esac
}

# Runs phase $1 within $2 hundredths of a second. Sets $status, 124 after a time-out. When this
# returns, no process but this one is left.
run_phase() {
    remove "$PIPES.$1.out" "$PIPES.$1.err" "$STATE/$1.stdout" "$STATE/$1.stderr" 2>/dev/null
    # An agent that is another user may open its own output anew, as /dev/stderr.
    mkfifo -m 622 "$PIPES.$1.out" "$PIPES.$1.err" || finish 70
    keep "$PIPES.$1.out" "$STATE/$1.stdout" & keepers=$!
    keep "$PIPES.$1.err" "$STATE/$1.stderr" & keepers="$keepers $!"
    start_clock "$2"
    launch "$1" >"$PIPES.$1.out" 2>"$PIPES.$1.err" & command=$!
    await_command
    read_clock
    timed_out=0
    [ "$now" -ge "$deadline" ] && status=124 timed_out=1
    PHASES="$PHASES$1 $status $started $now $timed_out
"
    check_limits "$1"
    kill_all_but_keepers 2>/dev/null
    wait
    keepers=none
    kill_all 2>/dev/null
    reopen "$OUT" "$STATE" "$WORKSPACE"
    # At once: when the trial ends, there may be room again.
    [ "$status" = 0 ] || has_room || finish 71
}

# True where a megabyte more can be written: what failed for want of room is nobody's fault in here.
# A program that writes 128 KiB at once, such as GNU `cat`, fails while 100 KiB are free.
has_room() {
    filling=0123456789abcdef written=0
    for _ in 1 2 3 4 5 6; do
        filling=$filling$filling$filling$filling
    done
    remove "$STATE/filling"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        printf '%s' "$filling" >>"$STATE/filling" || written=1
    done
    rm -f -- "$STATE/filling"
    return "$written"
} 2>/dev/null

# Writes what happened, opens the files to the host's user, and ends the trial with status $1.
finish() {
    rm -rf -- "$STATE/phases" 2>/dev/null
    # Where there is to be a second start, it needs this note.
    printf '%s' "$PHASES" >"$STATE/phases" || [ "$1" != 50 ] || finish 71
    case $SHARE:$1 in
        # The grader is to find the files' rights as the agent left them.
        1:50) chmod a+rwX,-t "$STATE" "$STATE/phases" ;;
        1:*) chmod -R a+rwX,-t "$OUT" "$STATE" "$WORKSPACE" ;;
    esac 2>/dev/null
    exit "$1"
}

# Runs what comes before the grader. Ends the trial where there is no grading, or none yet.
setup_and_agent() {
    if [ -e "$IN/setup.sh" ]; then
        run_phase setup "$SETUP_CS"
        [ "$timed_out" = 1 ] && finish 21
        [ "$status" = 0 ] || finish 20
    fi
    [ -z "$AGENT_USER" ] || find_become "$AGENT_USER" || refuse_agent
    run_phase agent "$AGENT_CS"
    AGENTLAB_AGENT_EXIT_STATUS=$status agent_failed=0
    [ "$status" = 0 ] || agent_failed=1$timed_out

    # Nothing the agent wrote where the grader's rows belong survives.
    remove "$AGENTLAB_BENCHMARK_PREDICTION_PATH" "$AGENTLAB_BENCHMARK_SCORE_PATH"
    [ "$agent_failed" = 0 ] || [ "$GRADE_FAILED" = 1 ] || finish "3${agent_failed#1}"
    [ "$SEALED" = after_agent ] && finish 50
}

# Ends a trial whose agent cannot run as its user, and says why where its errors are looked for.
refuse_agent() {
    remove "$STATE/agent.stderr"
    echo "$why" >"$STATE/agent.stderr"
    read_clock
    PHASES="${PHASES}agent 126 $now $now 0
"
    finish 70
}

# Takes up what an earlier start of this container came to; the agent's line is the last.
recall_agent() {
    while read -r phase status started now timed_out; do
        PHASES="$PHASES$phase $status $started $now $timed_out
"
        AGENTLAB_AGENT_EXIT_STATUS=$status agent_failed=0
        [ "$status" = 0 ] || agent_failed=1$timed_out
    done <"$IN/phases"
}

read_limits
first_limits=$limits
if [ -e "$IN/phases" ]; then
    recall_agent
else
    # Somebody started the ended container once more: its agent is not to run twice.
    ! exists "$STATE/begun" || finish 70
    echo >"$STATE/begun"
    setup_and_agent
fi
export AGENTLAB_AGENT_EXIT_STATUS

run_phase grader "$GRADER_CS"
[ "$timed_out" = 1 ] && finish 41
[ "$status" = 0 ] || finish 40
finish "$agent_failed"

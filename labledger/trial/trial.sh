#!/bin/sh
# The first process (PID 1) of a trial's container: runs setup, agent and grader one after the other.
#
#   trial.sh SETUP_CS AGENT_CS GRADER_CS GRADE_FAILED LOG_BYTES SHARE SEALED AGENT_USER YIELDS [KEY=VALUE…]
#   trial.sh check-agent-user | check-grader-user USER
#
# Time limits are in hundredths of a second. GRADE_FAILED is 1 if failed agents are graded too.
# LOG_BYTES is how much of each output is kept; 8 KiB more are kept for the host, which redacts before
# it cuts. SHARE is 1 if the host's user is not root and must be able to read and delete all outputs.
# SEALED is `none`, `unreadable`, `after_agent`, `delivered` or `separate`. With `after_agent` this
# script ends when the agent has ended, and is started again with the grader's files in place and
# in/phases, the phases so far. With `delivered` it writes state/agent_ended then, and waits for in/go.
# With `separate` it ends after the collect commands, and the grader runs in another container, with
# in/phases. AGENT_USER is the user that the agent runs as, empty for the user of this script. YIELDS is
# by how much the oom_score_adj of phases is above that of this script, in thousandths of the memory
# limit, so that a kernel that is out of memory kills one of their processes and not this one. The check
# of a user runs nothing: it prints why no command can run as USER, if so.
#
# KEY=VALUE is WORKSPACE, the phases' folder; PROCESSES=keep, for what setup and agent leave running to
# go on until the grader or the last collect command ends; WAIT_CS, how long to wait for in/go; GRADER_USER, as AGENT_USER;
# FIRST_USER, the user of the image's entrypoint and of setup, as AGENT_USER. For each
# collect command COLLECT is its time limit, a colon and its user; its script is in/collect_N.sh.
#
# OUTPUT=PATH is a folder for outputs, and EMPTIED=PATH one that is emptied before the grader. With
# GRADER_STATUS=ignored the trial counts as graded whatever the grader's exit status is. AGENT_LOG_BYTES
# is LOG_BYTES for the agent's standard output, from which the host reads what the agent did.
#
# Needs a POSIX shell and cat, chmod, mkfifo, rm and a sleep that accepts fractions of a second, and for
# an AGENT_USER the setpriv of util-linux or the su of busybox. Runs no other programs of its own. Needs
# no coordinator while it runs. Its exit status says how the trial ended:
#
#    0  agent succeeded, graded            30  agent failed, not graded by policy
#   10  agent failed, graded               31  agent timed out, not graded by policy
#   11  agent timed out, graded            40  grader failed
#   20  setup failed                       41  grader timed out
#   21  setup timed out                    50  agent ended, grader not run yet
#                                          51  grader's files not delivered in time
#                                          70  this script failed
#                                          71  a phase failed, and the disk was full
#                                          72  the agent changed the limits of this script, moved
#                                              a folder that the host reads, kept this script from
#                                              emptying an output folder, replaced a device, or
#                                              changed what this script needs
#                                          73  the agent wrote state/agent_ended
set -u

IN=/agentlab/in
OUT=/agentlab/out
STATE=/agentlab/state
WORKSPACE=/agentlab/workspace
SHARED_WORKSPACE=$WORKSPACE
SEALED_IN=/agentlab/sealed/in
PIPES=/dev/shm/agentlab
PHASES=''

# How long a phase may take to end after TERM, in hundredths of a second.
TERM_GRACE=200

# How long the helper may take to close the way to the models, in hundredths of a second.
CLOSING=3000

# Receives messages and output that are not needed. Opened once: an agent that is root can replace
# /dev/null by a FIFO, and a program that opens a FIFO could wait for ever.
exec 9>/dev/null

# The status that ends a trial in which this script cannot go on. If a step worked before the agent began
# and fails afterwards, the agent is the cause.
failure=70

# The status of `wait` when a CHLD signal interrupted it: 128 + 17.
WOKEN=145

# Sets $uid, $gid, $name and $home of user $1: a name or a number, optionally with a group after a
# colon. Fails if the image does not define the user, or if it is root.
look_up_user() {
    wanted=${1%%:*} uid='' gid='' name='' home=''
    case $wanted in *[!0-9]*) ;; *) uid=$wanted gid=$wanted ;; esac
    [ -f /etc/passwd ] && [ -r /etc/passwd ] && while IFS=: read -r at_name _ at_uid at_gid _ at_home _; do
        case $wanted in "$at_name" | "$at_uid") ;; *) continue ;; esac
        uid=$at_uid gid=$at_gid name=$at_name home=$at_home
        break
    done </etc/passwd
    case $1 in *:*) look_up_group "${1#*:}" ;; esac
    [ -d "$home" ] || home=$WORKSPACE
    # As the engine does for a container's user; an authored group is the only one.
    groups=--clear-groups
    [ -z "$name" ] || groups=--init-groups
    [ "${uid:-0}" -gt 0 ] && [ -n "$gid" ]
}

# Sets $gid of group $1, to nothing if the image does not define it. Clears $name if the user's own
# group is another one, because `su` cannot set a group.
look_up_group() {
    group=''
    case $1 in *[!0-9]*) ;; *) group=$1 ;; esac
    [ -n "$group" ] || [ ! -f /etc/group ] || [ ! -r /etc/group ] || while IFS=: read -r at_name _ at_gid _; do
        [ "$at_name" = "$1" ] && group=$at_gid && break
    done </etc/group
    [ "$group" = "$gid" ] || name=''
    gid=$group
}

# Sets $user_switcher to the program that can run a command as user $1. Fails and sets $why if none can.
find_user_switcher() {
    why="this image does not say who user $1 is, or it is root"
    look_up_user "$1" || return 1
    user_switcher=setpriv
    as_user true 2>&9 && return 0
    user_switcher=su
    [ -n "$name" ] && as_user -c : 2>&9 && return 0
    why="this image cannot run a command as user $1; it needs the setpriv of util-linux, or a su and the user in its /etc/passwd, and the container's user must be root"
    return 1
}

# Sets $user_switcher to the program that can run the grader as user $1: none is needed if this script
# runs as that user, perhaps root. Fails and sets $why if none can.
find_grader_switcher() {
    find_user_switcher "$1" && return 0
    while read -r key own_uid _; do
        [ "$key" = Uid: ] && break
    done </proc/self/status
    [ "$uid" = "$own_uid" ] && user_switcher=''
}

# Runs a command as the user that was looked up. With su, the arguments are those of its shell.
as_user() {
    case $user_switcher in
        setpriv) setpriv --reuid="$uid" --regid="$gid" "$groups" "$@" ;;
        su) su -p -s /bin/sh "$name" "$@" ;;
    esac
}

case $1 in
    check-agent-user) find_user_switcher "$2" || echo "$why"; exit ;;
    check-grader-user) find_grader_switcher "$2" || echo "$why"; exit ;;
esac
SETUP_CS=$1 AGENT_CS=$2 GRADER_CS=$3 GRADE_FAILED=$4 LOG_BYTES=$5 SHARE=$6 SEALED=$7 AGENT_USER=$8 YIELDS=$9
AGENT_LOG_BYTES=$LOG_BYTES PROCESSES=kill WAIT_CS=0 GRADER_USER='' FIRST_USER=''
shift 9
outputs='' emptied='' grader_status='' newline='
'
for setting in "$@"; do
    case $setting in
        # A folder of the image is not shared with the host, and the trial may even delete it.
        WORKSPACE=*) WORKSPACE=${setting#*=} SHARED_WORKSPACE='' ;;
        OUTPUT=*) outputs="$outputs${setting#*=}$newline" ;;
        GRADER_STATUS=ignored) grader_status=ignored ;;
        AGENT_LOG_BYTES=*) AGENT_LOG_BYTES=${setting#*=} ;;
        EMPTIED=*) emptied="$emptied${setting#*=}$newline" ;;
        PROCESSES=*) PROCESSES=${setting#*=} ;;
        WAIT_CS=*) WAIT_CS=${setting#*=} ;;
        GRADER_USER=*) GRADER_USER=${setting#*=} ;;
        FIRST_USER=*) FIRST_USER=${setting#*=} ;;
    esac
done

exec </dev/null

# INT is the only signal that would otherwise end a shell that is PID 1.
trap : INT

# Sets $now: hundredths of a second since boot. Like check_clock, it depends on no exit
# status: it also runs in traps, where dash confuses them.
read_clock() {
    uptime=''
    read -r uptime _ </proc/uptime
    case $uptime in
        ?*.??) now=${uptime%.*}${uptime#*.} ;;
        *) check_why_no_clock ;;
    esac
}

# Ends the container at once if only the clock cannot be read. Its mode is the same in all containers,
# so that the change came from outside. An agent that has limited the files that this script may open
# keeps it from reading its limits as well: the clock stands still then, until check_limits ends the
# trial.
check_why_no_clock() {
    read_limits
    case $limits in "$first_limits") exit 70 ;; esac
}

# Sets $cgroup to the folder of this container's control group, with the counters of its processors, and
# $memory, $memory_hits and $processes to those of memory, of kills at its limit, and of processes. Sets
# $block_io to the file with its reads and writes of block devices, to nothing if the kernel has none.
# Before any command runs: under version 1, root can write beside the folders.
find_cgroup() {
    cgroup=/sys/fs/cgroup/cpu memory=/sys/fs/cgroup/memory processes=/sys/fs/cgroup/pids
    memory_hits=$memory/memory.oom_control
    block_io=/sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes_recursive
    [ ! -e /sys/fs/cgroup/cgroup.controllers ] || while IFS=: read -r number _ path; do
        [ "$number" = 0 ] || continue
        cgroup=/sys/fs/cgroup${path%/}
        memory=$cgroup memory_hits=$cgroup/memory.events processes=$cgroup block_io=$cgroup/io.stat
    done </proc/self/cgroup
    [ -r "$block_io" ] || block_io=''
}

# Adds the lines of file $2, if it is there, to $pressure, each after $1.
add_pressure() {
    [ -r "$2" ] && while read -r line; do
        pressure="$pressure$1 $line$newline"
    done <"$2"
} 2>&9

# Adds how often the limits of memory and of processes were hit until now, at the end of phase $1.
add_hits() {
    add_pressure "memory$1" "$memory_hits"
    add_pressure "processes$1" "$processes/pids.events"
}

# Adds what the agent has left in memory, in processes, in files and in the kernel for both, and how many
# processes. Version 1 counts the memory of the kernel in a file of its own.
add_held() {
    [ -r "$memory/memory.stat" ] && while read -r kind bytes; do
        case $kind in
            anon | rss | shmem) pressure="${pressure}held memory $bytes$newline" ;;
            slab_unreclaimable) pressure="${pressure}held memory $bytes$newline"; break ;;
            pgpgin) break ;;
        esac
    done <"$memory/memory.stat"
    add_pressure "held memory" "$memory/memory.kmem.usage_in_bytes"
    add_pressure "held pids" "$processes/pids.current"
} 2>&9

# Adds the clock, the times of all processors of the machine, and how long anything on it waited for
# one, as $1.
add_times() {
    read_clock
    { read -r times </proc/stat; } 2>&9 && pressure="$pressure$1 $now $times$newline"
    add_pressure "machine$1" /proc/pressure/cpu
}

# Adds where the counters of processors are at edge $1 of a phase, such as `beginagent`.
add_edge() {
    add_times "$1"
    add_pressure "cpu$1" "$cgroup/cpu.pressure"
    add_pressure "stat$1" "$cgroup/cpu.stat"
    add_pressure "used$1" /sys/fs/cgroup/cpuacct/cpuacct.usage
}

# Adds how long the threads of process $1 have run, and have waited for a processor, to $ran and
# $delayed, in microseconds. Depends on no exit status, as check_clock.
add_waits_of() {
    for file in "/proc/$1"/task/[0-9]*/schedstat; do
        run='' delay=''
        { read -r run delay _ <"$file"; } 2>&9
        case $run:$delay in :* | *: | *[!0-9:]*) continue ;; esac
        ran=$((ran + run / 1000)) delayed=$((delayed + delay / 1000))
    done
}

# Sets $waits to how long the processes of the phase have run and waited. Processes that have ended are
# not known; if all have, the times of this script since the phase began are used instead.
read_waits() {
    ran=0 delayed=0
    for process in /proc/[0-9]*; do
        process=${process#/proc/}
        case " 1 $alarm $last_alarm $keepers " in *" $process "*) continue ;; esac
        read_process "$process"
        case " $keepers " in *" $parent "*) continue ;; esac
        add_waits_of "$process"
    done
    case $ran in
        0)
            ran=$((0 - own_ran)) delayed=$((0 - own_delayed))
            add_waits_of 1
            ;;
    esac
    waits="$ran $delayed"
}

# Adds what this container has read from block devices and written to them, by device, after the name of
# the file: version 2 lists no device before its first use.
add_block_io() {
    [ -n "$block_io" ] || return 0
    pressure="${pressure}block ${block_io##*/}$newline"
    add_pressure block "$block_io"
}

# Writes what this container waited for and used since it began. It is no error if the kernel does not tell.
write_pressure() {
    add_times end
    for resource in cpu memory io; do
        add_pressure "$resource" "$cgroup/$resource.pressure"
    done
    add_pressure stat "$cgroup/cpu.stat"
    add_pressure used /sys/fs/cgroup/cpuacct/cpuacct.usage
    add_block_io
    ! exists "$STATE/$1" || rm -rf -- "$STATE/$1"
    printf '%s' "$pressure" >"$STATE/$1"
} 2>&9

# Stores the first $3 bytes of pipe $1 in file $2 and discards the rest, so that the writer never blocks.
# `cat` does not buffer, so that nothing is lost when it is killed; the file size limit ends it.
store_output() {
    ulimit -f "$(($3 / 512 + 17))"
    { cat >"$2" || cat >&9; } <"$1"
}

# Sets $limits to the resource limits of this process and to its priority, to nothing if too few files may
# be open.
read_limits() {
    limits='' stat=''
    {
        while read -r line; do
            limits="$limits$line;"
        done </proc/1/limits
        read -r stat </proc/1/stat
    } 2>&9
    # shellcheck disable=SC2086
    [ -z "$limits" ] || add_priority ${stat##*) }
}

# Adds nice value, real-time priority and scheduling policy of this process to $limits. The arguments are
# the words of its `stat` after its name. Later phases inherit them.
add_priority() {
    shift 16
    limits="$limits$1;"
    shift 21
    limits="$limits$1;$2"
}

# Gives this shell free memory of its own, of which it can go on if an agent takes the right to more.
reserve_memory() {
    reserve=$newline
    while [ "${#reserve}" -lt 32768 ]; do reserve=$reserve$reserve; done
    reserve=''
}

# Ends the trial at once if phase $1 has changed the resource limits of this process, as an agent that
# is root can with `prlimit --pid 1`: what this script does after that may fail because of it.
check_limits() {
    read_limits
    [ "$limits" = "$first_limits" ] && return
    # This needs memory, and a shell that gets none ends.
    pressure_file=''
    case $1 in
        setup) finish 20 ;;
        grader) finish 40 ;;
        *) finish 72 ;;
    esac
}

# Undoes what a phase may have done so that the kernel kills this process when memory runs out: the rest
# of the trial needs it.
restore_score() {
    { read -r score </proc/self/oom_score_adj; } 2>&9 || score=$own_score
    [ "$score" != "$own_score" ] || return 0
    { echo "$own_score" >/proc/self/oom_score_adj; } 2>&9
}

# Sets $mounts to all mount points, each on a line, as the kernel writes them.
read_mounts() {
    mounts=$newline
    {
        while read -r _ _ _ _ at _; do
            mounts=$mounts$at$newline
        done </proc/self/mountinfo
    } 2>&9
}

# Succeeds if path $1 is one of $mounts, in which blanks and backslashes are octal numbers.
is_mounted() {
    rest=$1 written=''
    while [ -n "$rest" ]; do
        after=${rest#?}
        character=${rest%"$after"}
        case $character in
            ' ') character='\040' ;;
            '	') character='\011' ;;
            \\) character='\134' ;;
        esac
        written=$written$character rest=$after
    done
    case $mounts in *"$newline$written$newline"*) return 0 ;; esac
    return 1
}

# Sets $shared to the folders shared with the host, on lines. One that the image has a link to is left
# out: its mount point has another path.
find_shared_folders() {
    shared=''
    read_mounts
    IFS=$newline
    set -f
    for folder in "$IN" "$OUT" "$STATE" $emptied; do
        ! is_mounted "$folder" || shared="$shared$folder$newline"
    done
    unset IFS
    set +f
}

# Ends the trial if the agent has moved one of the shared folders, which one that is root can, with the
# folder around it: the host would take what the agent left there for what the grader wrote.
check_shared_folders() {
    read_mounts
    IFS=$newline
    set -f
    # The words are split before the loop begins.
    for folder in $shared; do
        unset IFS
        set +f
        is_mounted "$folder" || finish 72
    done
    unset IFS
    set +f
}

# Sets $state and $parent of process $1, using built-ins only. $state is `gone` if it does not exist.
read_process() {
    stat=''
    { read -r stat <"/proc/$1/stat"; } 2>&9
    case ${#stat} in
        0) stat=') gone 0 ' ;;
        # A process name with a line break cuts the line short. Take such a process for nobody's child.
        ? | [1-5]?) stat=') ? 0 ' ;;
    esac
    from_state=${stat##*) }
    state=${from_state%% *}
    from_parent=${from_state#* }
    parent=${from_parent%% *}
}

# Starts a process, $alarm, that ends at the time $1 of the clock.
set_alarm() {
    left=$(($1 - now))
    sleep "$((left / 100)).$((left / 10 % 10))$((left % 10))" &
    alarm=$!
}

# Moves the deadlines by how long the gateway has held calls to models back because of the limits of
# their providers, in hundredths of a second, if the experiment does not count that. They move by the
# time limit itself at most, or ten minutes.
move_deadlines() {
    waited=''
    { read -r waited <"$waited_file"; } 2>&9
    case $waited in '' | 0?* | *[!0-9]* | ??????????*) waited=0 ;; esac
    case $((waited > most_waited)) in 1) waited=$most_waited ;; esac
    deadline=$((time_limit + waited)) last_deadline=$((time_limit + waited + TERM_GRACE))
}

# Ends $command at $deadline with TERM, and after TERM_GRACE with KILL. Replaces an alarm that a process
# of the phase killed or stopped. Depends on no exit status: dash confuses them in a trap in a trap.
check_clock() {
    read_clock
    case $((now < deadline))$warned in 00) move_deadlines ;; esac
    rings=$deadline
    case $((now < deadline))$warned in
        00)
            warned=1 alarm=$last_alarm rings=$last_deadline
            read_waits
            kill -TERM "$command"
            ;;
        01) rings=$last_deadline ;;
    esac
    case $((now < rings)) in
        0) kill -KILL "$command"; return ;;
    esac
    read_process "$alarm"
    case $state in
        R | S | D) return ;;
        gone) ;;
        *) kill -KILL "$alarm" ;;
    esac
    set_alarm "$rings"
}

# The trap of CHLD: a child has ended or was stopped, perhaps an alarm. A signal during a check causes
# another check, so that none is lost. `for` replaces `while`, which depends on an exit status, and
# limits the recursion: very many signals must not exhaust the stack.
on_child_change() {
    changed=1
    case $checking in 1) return ;; esac
    checking=1
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        changed=0
        check_clock
        case $changed in 0) break ;; esac
    done
    checking=0
    case $changed in 1) on_child_change ;; esac
} 2>&9

# Starts the clock of the next command, with a time limit of $1 hundredths of a second. Its alarms are
# started before it, so that it cannot prevent them by using up all processes of the container.
start_clock() {
    read_clock
    started=$now time_limit=$((now + $1)) most_waited=$1 warned=0 waits=''
    case $((most_waited < 60000)) in 1) most_waited=60000 ;; esac
    move_deadlines
    set_alarm "$last_deadline"
    last_alarm=$alarm
    set_alarm "$deadline"
}

# Waits for $command, ends it at its time limit, and sets $status.
await_command() {
    checking=0
    trap on_child_change CHLD
    on_child_change
    wait "$command"
    status=$?
    # A status above 128 may mean that a signal interrupted `wait`.
    while [ "$status" -gt 128 ] && kill -0 "$command" 2>&9; do
        wait "$command"
        status=$?
    done
    trap - CHLD
    # The end of $command itself may have interrupted `wait`: then its status can still be read.
    [ "$status" = "$WOKEN" ] || return 0
    wait "$command"
    status=$?
}

# Succeeds if process $1, which read_process has just read, stores output: it is one of $keepers, or the
# `cat` of one.
keeps_output() {
    case " $keepers " in *" $1 "* | *" $parent "*) return 0 ;; esac
    return 1
}

# Succeeds if another process that stores no output is in a state other than those in $1.
others_are_not() {
    for pid in /proc/[0-9]*; do
        pid=${pid#/proc/}
        [ "$pid" = 1 ] && continue
        read_process "$pid"
        case $1 in *"$state"*) continue ;; esac
        keeps_output "$pid" || return 0
    done
    return 1
}

# Kills every process except this one and those that store output, which then reach the end of their
# pipes. All are stopped first, so that none can fork and escape: a stopped or dead process forks
# nothing, and what it has forked before is visible. A process that waits in the kernel, as in vfork,
# may never stop; it is waited for at most one second. Processes that store output are not waited for:
# they fork nothing that must be killed, and one whose `cat` was stopped before its exec cannot stop.
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
        read_process "$pid"
        keeps_output "$pid" || kill -KILL "$pid"
    done
    kill -CONT -1
}

# Waits for the processes that store output, and continues them again until they have ended: a child
# that is forked while STOP and CONT are sent is stopped by the kernel, and misses the CONT. One whose
# phase was killed before it opened its pipes still waits for somebody to open them.
await_keepers() {
    for keeper in $keepers; do
        read_process "$keeper"
        while case $state in Z | X | gone) false ;; esac; do
            kill -CONT -1
            for pipe in $pipes; do
                # Reading and writing: to open a pipe for one of them may wait.
                [ ! -p "$pipe" ] || { :; } <>"$pipe"
            done
            read_process "$keeper"
        done
    done
    wait
}

# Kills every other process and returns when all are dead; gives up after 20 s. Starts no process: the
# container may have reached its limit of them. `jobs` reaps dead processes, which count as well.
kill_all() {
    read_clock
    gives_up=$((now + 2000))
    while kill -KILL -1; jobs >&9; others_are_not 'Z X gone'; do
        read_clock
        [ "$now" -lt "$gives_up" ] || finish 70
    done
    jobs >&9
}

exists() {
    [ -e "$1" ] || [ -L "$1" ]
}

# Removes the given paths, whatever kind of file they are now.
remove() {
    for path in "$@"; do
        exists "$path" || continue
        rm -rf -- "$path"
        exists "$path" || continue
        chmod -R u+rwx -- "$path"
        rm -rf -- "$path"
        ! exists "$path" || finish "$failure"
    done
}

# Empties the output folders of the grader. They are mount points, which cannot be removed themselves.
empty_outputs() {
    IFS=$newline
    set -f
    # The words are split before the loop begins.
    for folder in $emptied; do
        unset IFS
        set +f
        rm -rf -- "$folder"
        is_empty "$folder" && continue
        # Not the folder itself: busybox goes no further if it belongs to another user.
        chmod -R u+rwx -- "$folder"/* "$folder"/.[!.]* "$folder"/..?*
        rm -rf -- "$folder"
        is_empty "$folder" || finish 72
    done
    unset IFS
    set +f
} 2>&9

# Succeeds if folder $1 is empty. Any user may then write there.
is_empty() {
    chmod 777 -- "$1"
    for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        ! exists "$path" || return 1
    done
}

# Makes sure that this script can read and change the given folders.
reopen() {
    for path in "$@"; do
        [ -r "$path" ] && [ -w "$path" ] && [ -x "$path" ] && continue
        chmod u+rwx "$path" || finish "$failure"
    done
}

# Replaces this process, a child of the script, with the command of phase $1.
launch() {
    { echo "$phase_score" >/proc/self/oom_score_adj; } 2>&9
    exec 9>&-
    script=$IN/$1.sh
    if [ "$1" = grader ]; then
        case $SEALED in none) grader_in=$IN ;; *) grader_in=$SEALED_IN ;; esac
        # Copies the task's files for the grader to their paths.
        [ ! -e "$grader_in/files.sh" ] || sh "$grader_in/files.sh" || exit
        script=$grader_in/grader.sh
    fi
    [ -z "$user_switcher" ] || export HOME="$home"
    case $user_switcher in
        setpriv) exec setpriv --reuid="$uid" --regid="$gid" "$groups" sh "$script" ;;
        su) exec su -p -s /bin/sh "$name" "$script" ;;
        *) exec sh "$script" ;;
    esac
}

# Starts the processes that store the output of phase $1, or of the entrypoint.
store_outputs() {
    remove "$PIPES.$1.out" "$PIPES.$1.err" "$STATE/$1.stdout" "$STATE/$1.stderr" 2>&9
    # An agent that is another user may reopen its own output, as /dev/stderr.
    mkfifo -m 622 "$PIPES.$1.out" "$PIPES.$1.err" || no_pipes
    pipes="$pipes $PIPES.$1.out $PIPES.$1.err"
    case $1 in agent) log_bytes=$AGENT_LOG_BYTES ;; *) log_bytes=$LOG_BYTES ;; esac
    store_output "$PIPES.$1.out" "$STATE/$1.stdout" "$log_bytes" & keepers="$keepers $!"
    store_output "$PIPES.$1.err" "$STATE/$1.stderr" "$LOG_BYTES" & keepers="$keepers $!"
}

# Ends a trial whose pipes cannot be made. Only the agent can have prevented the grader's.
no_pipes() {
    case $PROCESSES:$AGENTLAB_AGENT_EXIT_STATUS in
        keep:?*) finish 72 ;;
        *) finish "$failure" ;;
    esac
}

# Starts the entrypoint of the image, if it is wanted. If it ends, that is no failure.
start_entrypoint() {
    [ -e "$IN/entrypoint.sh" ] || return 0
    store_outputs entrypoint
    launch entrypoint >"$PIPES.entrypoint.out" 2>"$PIPES.entrypoint.err" &
}

# Runs phase $1 with a time limit of $2 hundredths of a second. Sets $status, 124 after a time-out.
# When it returns, no other process is left, unless processes are kept and the grader, or another
# collect command, may still run.
run_phase() {
    case $1:$PROCESSES in grader:kill) mark_grading 2>&9 ;; esac
    store_outputs "$1"
    case $1 in agent) waited_file=$IN/waited ;; *) waited_file='' ;; esac
    add_edge "begin$1"
    ran=0 delayed=0
    add_waits_of 1
    own_ran=$ran own_delayed=$delayed
    start_clock "$2"
    launch "$1" >"$PIPES.$1.out" 2>"$PIPES.$1.err" & command=$!
    await_command
    read_clock
    timed_out=0
    case $((now < deadline))$warned in 00) move_deadlines ;; esac
    [ "$now" -ge "$deadline" ] && status=124 timed_out=1
    PHASES="$PHASES$1 $status $started $now $timed_out
"
    check_limits "$1"
    [ -n "$waits" ] || read_waits
    add_edge "end$1"
    pressure="${pressure}waits$1 $waits$newline"
    case $PROCESSES:$1 in
        keep:setup | keep:agent | keep:collect_*) kill -KILL "$alarm" "$last_alarm" 2>&9 ;;
        *) end_processes ;;
    esac
    restore_score
    add_hits "$1"
    [ "$1" != agent ] || add_held
    reopen "$OUT" "$STATE" ${SHARED_WORKSPACE:+"$WORKSPACE"}
    # Checked at once: when the trial ends, there may be free space again.
    [ "$status" = 0 ] || has_space || finish 71
}

# Makes a file once no process of the agent is left. Later changes are not the agent's, and no program can
# set the time of this file. So the host knows what the grader changed.
mark_grading() {
    rm -rf -- "$STATE/grading"
    echo >"$STATE/grading"
}

# Ends every other process. What they wrote is stored first.
end_processes() {
    PROCESSES=kill
    kill_all_but_keepers 2>&9
    await_keepers 2>&9
    keepers=none pipes=''
    kill_all 2>&9
}

# Succeeds if one more megabyte can be written. A phase that failed on a full disk is not at fault. A
# program that writes 128 KiB at once, such as GNU `cat`, fails while 100 KiB are free.
has_space() {
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
} 2>&9

# Writes the phases file, gives the host's user access to all files, and ends with status $1.
finish() {
    [ "$PROCESSES" = kill ] || end_processes
    rm -rf -- "$STATE/phases" 2>&9
    # The second start of a two-part trial needs this file.
    printf '%s' "$PHASES" >"$STATE/phases" || [ "$1" != 50 ] || finish 71
    [ -z "$pressure_file" ] || write_pressure "$pressure_file"
    case $SHARE:$1:$SEALED in
        # The grader must find the files' permissions as the agent left them.
        1:50:after_agent) chmod a+rwX,-t "$STATE" "$STATE/phases" "$STATE/$pressure_file" ;;
        1:*)
            IFS=$newline
            set -f
            # shellcheck disable=SC2086
            chmod -R a+rwX,-t "$OUT" "$STATE" ${SHARED_WORKSPACE:+"$WORKSPACE"} $outputs $emptied
            ;;
    esac 2>&9
    exit "$1"
}

# Runs the phases before the grader, with the settings as arguments. Ends the script if the grader does
# not run, or not yet.
setup_and_agent() {
    [ -z "$FIRST_USER" ] || find_user_switcher "$FIRST_USER" || refuse_user setup 70
    start_entrypoint
    if [ -e "$IN/setup.sh" ]; then
        run_phase setup "$SETUP_CS"
        [ "$timed_out" = 1 ] && finish 21
        [ "$status" = 0 ] || finish 20
        # The host tells what setup changed from what the agent changed by the time of the change.
        sleep 0.03
    fi
    # A user that is known now is known to the grader, unless the agent prevents it.
    [ -z "$GRADER_USER" ] || ! find_grader_switcher "$GRADER_USER" || refused=72
    user_switcher=''
    [ -z "$AGENT_USER" ] || find_user_switcher "$AGENT_USER" || refuse_user agent 70
    find_shared_folders
    find_devices
    # The host made this file. As long as it exists, the agent has not begun. No program can make it again
    # with its original time.
    remove "$STATE/agent_not_begun"
    failure=72
    run_phase agent "$AGENT_CS"
    check_devices
    check_shared_folders
    AGENTLAB_AGENT_EXIT_STATUS=$status agent_failed=0
    [ "$status" = 0 ] || agent_failed=1$timed_out

    # Nothing that the agent wrote in place of the grader's files remains.
    remove "$AGENTLAB_BENCHMARK_PREDICTION_PATH" "$AGENTLAB_BENCHMARK_SCORE_PATH"
    [ "$agent_failed" = 0 ] || [ "$GRADE_FAILED" = 1 ] || finish "3${agent_failed#1}"
    close_models
    case $SEALED in
        after_agent) finish 50 ;;
        delivered) await_delivery ;;
        separate) collect "$@"; finish 50 ;;
    esac
}

# Sets $devices to the devices that any program may use.
find_devices() {
    devices=''
    for device in null zero full random urandom; do
        [ ! -c "/dev/$device" ] || devices="$devices $device"
    done
}

# Ends the trial if the agent has replaced one of them by something else. A program that opens it, such as
# the grader, could wait for ever.
check_devices() {
    for device in $devices; do
        [ -c "/dev/$device" ] || finish 72
    done
}

# Says that the agent has ended, and waits until the helper has closed the way to the models: what the
# agent left reaches none while it is graded. An agent can only close it earlier.
close_models() {
    [ -e "$IN/agent_over" ] || return 0
    { :; } >"$IN/agent_over" || finish 70
    read_clock
    gives_up=$((now + CLOSING))
    until [ -s "$IN/models_closed" ]; do
        [ "$now" -lt "$gives_up" ] || finish 70
        sleep 0.02
        read_clock
    done
}

# Runs the collect commands among the settings. How they end changes nothing here: the host records it.
collect() {
    export AGENTLAB_AGENT_EXIT_STATUS
    number=0
    for setting in "$@"; do
        case $setting in COLLECT=*) ;; *) continue ;; esac
        number=$((number + 1)) limit=${setting#*=} user_switcher=''
        if [ -n "${limit#*:}" ] && ! find_user_switcher "${limit#*:}"; then
            refuse_phase "collect_$number"
            continue
        fi
        run_phase "collect_$number" "${limit%%:*}"
    done
}

# Records that phase $1 cannot run as its user. Its stderr says why.
refuse_phase() {
    remove "$STATE/$1.stderr"
    echo "$why" >"$STATE/$1.stderr"
    read_clock
    PHASES="$PHASES$1 126 $now $now 0
"
}

# Ends a trial with status $2 because phase $1 cannot run as its user.
refuse_user() {
    refuse_phase "$1"
    finish "$2"
}

# Reports that the agent has ended, and waits until the host has delivered the grader's files. Only the
# host can write in/agent_ended, which says that it believes a report, and in/go. If it believed one
# before, the agent wrote that.
await_delivery() {
    ! exists "$IN/agent_ended" || finish 73
    rm -rf -- "$STATE/agent_ended"
    printf '%sended\n' "$PHASES" >"$STATE/agent_ended" || { has_space && finish 73 || finish 71; }
    [ "$SHARE" = 0 ] || chmod a+rwX,-t "$STATE" "$STATE/agent_ended"
    read_clock
    gives_up=$((now + WAIT_CS)) pause=2
    until [ -e "$IN/go" ]; do
        [ "$now" -lt "$gives_up" ] || finish 51
        sleep "0.$((pause / 10))$((pause % 10))"
        # The host usually answers at once; after that, this costs next to nothing for a day.
        [ "$pause" -ge 50 ] || pause=$((pause + 1 + pause / 8))
        read_clock
    done
}

# Reads the phases of an earlier start of this container, or of the stored trial that is graded again.
# The agent's line is the last.
read_earlier_phases() {
    while read -r phase status started now timed_out; do
        PHASES="$PHASES$phase $status $started $now $timed_out
"
        AGENTLAB_AGENT_EXIT_STATUS=$status agent_failed=0
        [ "$status" = 0 ] || agent_failed=1$timed_out
    done <"$IN/phases"
}

refused=40
AGENTLAB_AGENT_EXIT_STATUS='' user_switcher='' keepers=none pipes='' shared=''
# Not by the engine: Podman raises other limits with any that it is given, which may be refused.
ulimit -c 0
read_limits
first_limits=$limits
# What systemd starts for a user has more than 0, and so have the containers of a rootless engine.
read -r own_score </proc/self/oom_score_adj || own_score=0
phase_score=$((own_score + YIELDS))
[ "$phase_score" -le 1000 ] || phase_score=1000
pressure='' pressure_file=pressure
find_cgroup
add_times begin
reserve_memory
if [ -e "$IN/phases" ]; then
    pressure_file=grader_pressure
    [ ! -e "$IN/agent_ran" ] || failure=72
    read_earlier_phases
else
    # The ended container was started again from outside: its agent must not run twice.
    ! exists "$STATE/begun" || finish 70
    echo >"$STATE/begun"
    setup_and_agent "$@"
fi
export AGENTLAB_AGENT_EXIT_STATUS

# A regrading in a folder of the image deletes what the stored trial had deleted.
[ ! -e "$IN/restore.sh" ] || sh "$IN/restore.sh" || finish 70
check_shared_folders
empty_outputs
user_switcher=''
if [ -n "$GRADER_USER" ]; then
    find_grader_switcher "$GRADER_USER" || refuse_user grader "$refused"
fi
run_phase grader "$GRADER_CS"
[ "$timed_out" = 1 ] && finish 41
[ "$status" = 0 ] || [ "$grader_status" = ignored ] || finish 40
finish "$agent_failed"

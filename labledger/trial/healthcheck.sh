#!/bin/sh
# healthcheck.sh COMMAND INTERVAL TIMEOUT START_PERIOD_CS START_INTERVAL RETRIES [WORD…]
#
# Runs COMMAND until it succeeds, and then the command WORD…, if there is one. Fails when RETRIES tries in
# a row have failed. Tries that begin in the first START_PERIOD_CS hundredths of a second do not count;
# between them START_INTERVAL seconds pass, and between later ones INTERVAL seconds. A try may take TIMEOUT
# seconds.
set -u
check=$1 interval=$2 limit=$3 start_period=$4 start_interval=$5 retries=$6
shift 6

# Sets $now: hundredths of a second since boot.
read_clock() {
    read -r uptime _ </proc/uptime
    now=${uptime%.*}${uptime#*.}
}

shell=sh
! command -v bash >/dev/null 2>&1 || shell=bash
try() {
    if command -v timeout >/dev/null 2>&1; then
        timeout "$limit" "$shell" -c "$check"
    else
        "$shell" -c "$check"
    fi
}

read_clock
start_end=$((now + start_period)) failures=0
while :; do
    read_clock
    tried=$now
    if try; then
        [ $# -gt 0 ] || exit 0
        exec "$@"
    fi
    if [ "$tried" -lt "$start_end" ]; then
        sleep "$start_interval"
        continue
    fi
    failures=$((failures + 1))
    if [ "$failures" -ge "$retries" ]; then
        echo "the health check failed $failures times in a row: $check" >&2
        exit 1
    fi
    sleep "$interval"
done

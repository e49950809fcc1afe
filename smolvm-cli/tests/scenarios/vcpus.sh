#!/bin/sh
# Machines with two and with four vCPUs: all of them work, are saved and come back.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=vcpus-$$ dir=$(mktemp -d)
cd "$dir"
trap 'for n in "$name" "$name-back"; do "$smolvm" machine delete --name "$n" -f > /dev/null 2>&1 || :; done; cd /; rm -rf "$dir"' EXIT
fail() { echo "vcpus: $*" >&2; exit 1; }
inside() { machine=$1; shift; "$smolvm" machine exec --name "$machine" -- sh -euc "$@"; }
# Each processor runs something, and the kernel has nothing to complain about.
check() { # machine, number of vCPUs
    [ "$(inside "$1" nproc)" = "$2" ] || fail "$1 has $(inside "$1" nproc) processors, not $2"
    ran=$(inside "$1" 'for n in $(seq 0 $(($(nproc) - 1))); do
        taskset -c "$n" python3 -c "import os; print(*os.sched_getaffinity(0))"
    done' | tr '\n' ' ')
    [ "$ran" = "$(seq -s ' ' 0 $(($2 - 1))) " ] || fail "$1: only these ran: $ran"
    said=$(inside "$1" "dmesg --level=emerg,alert,crit,err,warn | grep -iE 'lockup|stall|rcu|not responding' || :")
    [ -z "$said" ] || fail "$1: $said"
}
for cpus in 2 4; do
    echo "$cpus vCPUs"
    "$smolvm" machine create --name "$name" --image "$image" --cpus $cpus
    "$smolvm" machine start --name "$name"
    check "$name" $cpus
    # A counter on each processor, in memory only.
    inside "$name" 'for n in $(seq 0 $(($(nproc) - 1))); do
        setsid taskset -c "$n" sh -c "i=0; while :; do
            i=\$((i + 1)); echo \$i > /run/new-$n; mv /run/new-$n /run/count-$n; sleep 0.1
        done" > /dev/null 2>&1 &
    done
    for n in $(seq 0 $(($(nproc) - 1))); do until [ -s /run/count-$n ]; do sleep 0.1; done; done'
    "$smolvm" machine checkpoint --name "$name" --store ./store -o "./$cpus.checkpoint"
    "$smolvm" machine delete --name "$name" -f
    "$smolvm" machine create --name "$name-back" --from "./$cpus.checkpoint"
    "$smolvm" machine start --name "$name-back"
    inside "$name-back" 'for n in $(seq 0 $(($(nproc) - 1))); do
        before=$(cat /run/count-$n)
        until [ "$(cat /run/count-$n)" -gt "$before" ]; do sleep 0.1; done
    done'
    check "$name-back" $cpus
    "$smolvm" machine delete --name "$name-back" -f
done
echo ok

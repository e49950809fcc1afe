#!/bin/sh
# Two to four vCPUs, two of them busy and a timer on each, saved in the middle and restored twice: the
# same processes go on, timers fire, no CPU is lost, and the kernel has nothing to complain about.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} dir=$(mktemp -d) names=
cd "$dir"
trap 'for n in $names; do "$smolvm" machine delete --name "$n" -f > /dev/null 2>&1 || :; done; cd /; rm -rf "$dir"' EXIT
inside() { "$smolvm" machine exec --name "$1" -- sh -ec "$2"; }

cat > worker.py <<'P'
# Bound to one CPU: counts, checks its sums, and is interrupted by a timer of its own all the while.
import os, signal, sys, time
cpu, work = int(sys.argv[1]), sys.argv[2] == "busy"
os.sched_setaffinity(0, {cpu})
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
last = time.monotonic()
for n in range(1, 10**9):
    if work:
        good = sum(i * i for i in range(2000)) == 2664667000
    else:
        good = True
        time.sleep(0.05)
    now = time.monotonic()
    good = good and now >= last
    last = now
    if n % 20 == 0:
        state = f"{os.getpid()} {n} {ticks} {'good' if good else 'BAD'}\n"
        with open(f"/run/cpu{cpu}", "a") as log:
            log.write(state)
P
# Every worker has the pid that it had, and both its counters grow.
goes_on() { # machine, vCPUs
    inside "$1" '
        cpus='"$2"'; test "$(nproc)" = $cpus; test "$(cat /sys/devices/system/cpu/online)" = 0-$((cpus - 1))
        for c in $(seq 0 $((cpus - 1))); do tail -n 1 /run/cpu$c > /run/before$c; done
        for c in $(seq 0 $((cpus - 1))); do
            read pid n ticks word < /run/before$c
            i=0; while :; do
                now=$(tail -n 1 /run/cpu$c); set -- $now
                if [ $# = 4 ] && [ "$2" -gt "$n" ] && [ "$3" -gt "$ticks" ]; then break; fi
                i=$((i + 1)); [ $i -lt 600 ] || { echo "cpu $c stands still: $now"; exit 1; }
                sleep 0.1
            done
            test "$1" = "$pid"; kill -0 "$pid"
        done
        if grep BAD /run/cpu*; then exit 1; fi
        if dmesg | grep -E "soft lockup|hard LOCKUP|rcu.*(stall|starved)|not responding|clocksource.*unstable|BUG:|WARNING:|Oops|unchecked MSR"; then exit 1; fi'
}

for cpus in 2 3 4; do
    a=smp-$cpus-$$ from=
    names="$names $a"
    "$smolvm" machine create --name "$a" --image "$image" --cpus $cpus
    "$smolvm" machine start --name "$a"
    "$smolvm" machine cp ./worker.py "$a:/root/worker.py"
    inside "$a" 'for c in $(seq 0 '$((cpus - 1))'); do
            if [ $c -lt 2 ]; then kind=busy; else kind=idle; fi
            setsid python3 /root/worker.py $c $kind > /run/err$c 2>&1 < /dev/null &
        done
        for c in $(seq 0 '$((cpus - 1))'); do until test -s /run/cpu$c; do sleep 0.2; done; done'
    goes_on "$a" $cpus
    for generation in 1 2; do
        "$smolvm" machine checkpoint --name "$a" --store ./store -o "./$cpus-$generation.checkpoint"
        goes_on "$a" $cpus
        "$smolvm" machine delete --name "$a" -f
        a=smp-$cpus-$generation-$$
        names="$names $a"
        "$smolvm" machine create --name "$a" --from "./$cpus-$generation.checkpoint"
        "$smolvm" machine start --name "$a"
        goes_on "$a" $cpus
    done
    "$smolvm" machine delete --name "$a" -f
    echo "$cpus vCPUs go on"
done
echo ok

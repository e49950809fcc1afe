#!/bin/sh
# Ten boots in a row beside two programs that want the host's processors: each comes up, and its kernel
# complains about nothing.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=boots-$$ dir=$(mktemp -d)
cd "$dir"
busy=
trap 'kill $busy 2> /dev/null || :; "$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
for _ in 1 2; do
    sh -c 'while :; do :; done' &
    busy="$busy $!"
done
n=0
while [ $n -lt 10 ]; do
    n=$((n + 1))
    "$smolvm" machine create --name "$name" --image "$image" --mem 256M > /dev/null
    begin=$(date +%s%3N)
    "$smolvm" machine start --name "$name" > /dev/null
    echo "boot $n: $(($(date +%s%3N) - begin)) ms"
    "$smolvm" machine exec --name "$name" -- dmesg > dmesg
    if grep -E 'soft lockup|hung task|rcu.*(stall|starved)|clocksource.*unstable|BUG:|WARNING:|Oops|general protection|unchecked MSR' dmesg; then
        echo "ten-boots: boot $n" >&2
        exit 1
    fi
    "$smolvm" machine delete --name "$name" -f > /dev/null
done
echo ok

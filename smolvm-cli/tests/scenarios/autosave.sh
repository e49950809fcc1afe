#!/bin/sh
# Saves on a schedule: when something changed and not otherwise, after a restart too; told in the log, by undo and status.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=autosave-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "autosave: $*" >&2; exit 1; }
m() { command=$1; shift; "$smolvm" machine "$command" --name "$name" "$@"; }
inside() { m exec -- sh -c "$1"; }
points() { "$smolvm" machine checkpoint-log --store ./store --machine "$name" | wc -l; }
last() { m status | sed -n 's/^autosave *//p'; }
# As long as it takes on a busy host.
until_so() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "it does not come to: $*: $(m status)"
        sleep 0.5
    done
}
quiet() { last | grep -q 'nothing changed'; }
# What the file system still has to write after a boot is a change, and saved.
stays_quiet() {
    count=$(points) files=$(find ./store -type f | wc -l)
    sleep 6
    quiet && [ "$(points)" = "$count" ] && [ "$(find ./store -type f | wc -l)" = "$files" ]
}
more_than() { [ "$(points)" -gt "$1" ]; }

m create --image "$image" --mem 256M > /dev/null
if m autosave 2> /dev/null; then fail "neither --every nor --off"; fi
if m autosave --every 10ms 2> err; then fail "too often"; fi
if m autosave --every 5m --keep-last 0 2> err; then fail "none is kept"; fi
m start > /dev/null
inside 'echo 1 > /root/disk'
# The store that it was saved into last is the one.
m checkpoint --store ./store > /dev/null
m autosave --every 2s > /dev/null
"$smolvm" machine ls -v | grep -q " 2s" || fail "ls does not show it: $("$smolvm" machine ls -v)"

echo "what changed is saved"
inside 'echo 2 > /root/disk; echo 2 > /run/memory'
until_so more_than 1
until_so quiet
"$smolvm" machine checkpoint-log --store ./store | tail -n 1 | grep -q autosave || fail "the log: $("$smolvm" machine checkpoint-log --store ./store)"

echo "what did not change is not"
until_so stays_quiet
inside 'echo 3 > /run/memory'
until_so more_than "$count"
until_so quiet
count=$(points)
# A process that only computes.
inside 'setsid sh -c "while :; do :; done" > /dev/null 2>&1 < /dev/null &'
until_so more_than $((count + 1))

echo "undo says what it goes to"
m autosave --off > /dev/null
m undo --discard > out
grep -q 'autosave, ' out || fail "undo: $(cat out)"
grep -q -- "--to '~1'" out || fail "the way further back is not said: $(cat out)"
count=$(points)
sleep 5
[ "$(points)" = "$count" ] || fail "it is off, and saved"

echo "it goes on after a restart"
m autosave --every 2s > /dev/null
m stop > /dev/null
m start > /dev/null
until_so more_than "$count"
m status --json | grep -q '"every_seconds":2' || fail "status: $(m status --json)"

echo "only so many stay, and what was not saved on the schedule"
left() { "$smolvm" machine checkpoint-log --store ./store --machine "$name" | grep -v gone; }
m autosave --every 2s --keep-last 2 > /dev/null
m status | grep -q 'keeping last 2' || fail "status: $(m status)"
inside 'echo 4 > /root/disk; setsid sh -c "while :; do :; done" > /dev/null 2>&1 < /dev/null &'
count=$(points)
until_so more_than $((count + 2))
m autosave --off > /dev/null
thinned_out() { [ "$(left | grep -c 'autosave$')" -le 2 ]; }
until_so thinned_out
left | grep -v -q 'autosave$' || fail "the checkpoint is gone: $(left)"
"$smolvm" machine checkpoint-verify --store ./store > out || fail "$(cat out)"
m undo --discard > /dev/null
[ "$(inside 'cat /root/disk')" = 4 ] || fail "the head is another"
m delete -f > /dev/null
echo ok

#!/bin/sh
# Commands that are stopped (SIGSTOP) while they hold a lock: nobody waits for them without end, everybody learns who they are.
# And one that is killed beside its output.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=stopped-$$ dir=$(mktemp -d)
cd "$dir"
started=
cleanup() {
    for pid in $started; do kill -KILL "$pid" 2> /dev/null || :; done
    "$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :
    cd /
    rm -rf "$dir"
}
trap cleanup EXIT
fail() { echo "stopped-clients: $*" >&2; exit 1; }
home=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
m() { command=$1; shift; "$smolvm" machine "$command" --name "$name" "$@"; }
state() { m status --json | sed 's/.*"state":"\([a-z]*\)".*/\1/'; }
until_so() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "it does not come to: $*"
        sleep 0.2
    done
}
is_stopped() { grep -q '^State:.T' "/proc/$1/status"; }
halt() { kill -STOP "$1"; until_so is_stopped "$1"; }
# It ends, fails, and names the process and what lets it go on.
names() {
    holder=$1
    shift
    "$@" > out 2> err && fail "not refused: $*"
    grep -q "process $holder (.*), which is stopped" err || fail "$* names nobody: $(cat err)"
    grep -q "kill -CONT $holder" err || fail "$* has no way out: $(cat err)"
}

m create --image "$image" --mem 256M > /dev/null
m start > /dev/null
m checkpoint --store ./store > /dev/null
mkdir -m 700 hold

echo "an undo that is stopped"
: > hold/target-held
SMOLVM_TEST_HOLD=$dir/hold "$smolvm" machine undo --name "$name" > undone 2>&1 &
undo=$!
started="$started $undo"
until_so test -s hold/target-held.held
halt $undo
[ "$(state)" = running ] || fail "status: $(state)"
names $undo m stop
names $undo m delete -f
names $undo m start
[ "$(state)" = running ] || fail "it was ended: $(state)"
rm hold/target-held
kill -CONT $undo
wait $undo || fail "the undo: $(cat undone)"
started=
m exec -- true || fail "it does not answer after the undo"

echo "a prune that is stopped"
: > hold/points-given-up
SMOLVM_TEST_HOLD=$dir/hold "$smolvm" machine checkpoint-prune --store ./store > pruned 2>&1 &
prune=$!
started="$started $prune"
until_so test -s hold/points-given-up.held
halt $prune
names $prune m checkpoint --store ./store
m exec -- true || fail "it does not answer after a save that failed"

echo "a change of machine.json that is stopped"
flock --no-fork "$home/machines/$name/file.lock" sleep 1000 &
change=$!
started="$started $change"
until_so sh -c "grep -q \"FLOCK.* $change \" /proc/locks"
halt $change
names $change m autosave --every 5m
[ "$(state)" = running ] || fail "status: $(state)"
kill -KILL $change
started=$prune

m stop > /dev/null || fail "it does not stop"
[ "$(state)" = stopped ] || fail "it is $(state)"
rm hold/points-given-up
kill -CONT $prune
wait $prune || fail "the prune: $(cat pruned)"
started=
m start > /dev/null
m checkpoint --store ./store -o ./x.checkpoint > /dev/null || fail "nothing can be saved after the prune"

echo "an import that is killed"
mkdir place
mkfifo pipe
"$smolvm" machine checkpoint-import - -o place/y.checkpoint < pipe > imported 2>&1 &
import=$!
started=$import
exec 3> pipe
hidden() { ls -A place | grep -q '^\.y\.checkpoint\.staging-'; }
until_so hidden
touch place/.mine.staging-0123456789abcdef
kill -KILL $import
wait $import || :
started=
exec 3>&-
hidden || fail "nothing was left behind: the test shows nothing"
"$smolvm" machine checkpoint-export ./x.checkpoint -o place/x.archive > /dev/null || fail "export"
[ "$(ls -A place | tr '\n' ' ')" = ".mine.staging-0123456789abcdef x.archive " ] || fail "left: $(ls -A place)"
"$smolvm" machine checkpoint-import place/x.archive -o place/y.checkpoint > /dev/null || fail "import"
"$smolvm" machine checkpoint-export ./x.checkpoint -o x.checkpoint/in 2> err && fail "exported into a checkpoint"
"$smolvm" machine checkpoint-export ./x.checkpoint -o "$home/in" 2> err && fail "exported into the home"
echo ok

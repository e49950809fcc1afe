#!/bin/sh
# Signals: to a command in front, to a supervisor while it saves; and guests that end while they start or just after they were
# restored.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=signals-$$ copy=signals-$$-copy dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; "$smolvm" machine delete --name "$copy" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "signals: $*" >&2; exit 1; }
command -v pgrep > /dev/null || fail "pgrep is missing: apt-get install procps"
m() { command=$1; shift; "$smolvm" machine "$command" --name "$name" "$@"; }
inside() { m exec -- sh -c "$1"; }
supervisor() { pgrep -f "__supervisor .* $1\$" || :; }
state() { "$smolvm" machine status --name "$1" --json | sed 's/.*"state":"\([a-z]*\)".*/\1/'; }
# As long as it takes on a busy host.
until_so() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "it does not come to: $*"
        sleep 0.2
    done
}
is() { [ "$(state "$1")" = "$2" ]; }
said() { grep -q "$1" out; }

m create --image "$image" --mem 256M > /dev/null
m start > /dev/null

echo "a command in front gets what a local one gets"
for signal in TERM HUP INT; do
    "$smolvm" machine exec --name "$name" -- sh -c "trap 'echo got; exit 7' $signal; echo ready; while :; do sleep 0.1; done" > out &
    client=$!
    until_so said ready
    kill -$signal $client
    code=0
    wait $client || code=$?
    [ $code = 7 ] || fail "$signal: the command's code is not told: $code"
    said got || fail "$signal did not arrive"
done
"$smolvm" machine exec --name "$name" -- sh -c "trap 'echo got' TERM; echo ready; while :; do sleep 0.1; done" > out &
client=$!
until_so said ready
kill -TERM $client
until_so said got
kill -TERM $client
code=0
wait $client || code=$?
[ $code = 143 ] || fail "the second signal does not end exec: $code"

echo "a supervisor that is told to end while it saves"
inside 'dd if=/dev/urandom of=/run/much bs=1M count=64 2> /dev/null; echo kept > /root/disk'
m checkpoint --store ./store > saved 2>&1 &
saving=$!
sleep 0.3
kill -TERM "$(supervisor "$name")"
code=0
wait $saving || code=$?
until_so is "$name" stopped
gone() { [ -z "$(supervisor "$name")" ]; }
until_so gone
if [ $code = 0 ]; then
    "$smolvm" machine checkpoint-verify --store ./store > /dev/null || fail "what was said to be saved is not"
fi
m start > /dev/null
[ "$(inside 'cat /root/disk')" = kept ] || fail "the disk was not synced"
m checkpoint --store ./store -o ./x.checkpoint > /dev/null || fail "it cannot be saved after that"

echo "the other signals that end a supervisor, while it saves and while it does not"
for signal in INT HUP; do
    m checkpoint --store ./store > saved 2>&1 &
    saving=$!
    sleep 0.3
    kill -$signal "$(supervisor "$name")"
    code=0
    wait $saving || code=$?
    until_so is "$name" stopped
    until_so gone
    [ $code != 0 ] || "$smolvm" machine checkpoint-verify --store ./store > /dev/null || fail "$signal: what was said to be saved is not"
    m start > /dev/null
    inside "echo $signal > /root/by-signal"
    kill -$signal "$(supervisor "$name")"
    until_so is "$name" stopped
    until_so gone
    m start > /dev/null
    [ "$(inside 'cat /root/by-signal')" = $signal ] || fail "$signal: the disk was not synced"
done

echo "a supervisor that is stopped"
kill -STOP "$(supervisor "$name")"
until_so sh -c "grep -q '^State:.T' /proc/$(supervisor "$name")/status"
"$smolvm" machine ls > out || fail "ls beside a stopped supervisor"
grep "$name" out | grep -q running || fail "what ls says: $(cat out)"
m status --json > out || fail "status of a stopped supervisor"
grep -q '"ready":false' out || fail "what status says: $(cat out)"
kill -CONT "$(supervisor "$name")"
inside true || fail "it does not go on"

echo "a cold start of a machine that runs"
m start --cold > out 2> err && fail "not refused: $(cat out)"
grep -q "smolvm machine stop --name $name" err || fail "no way out: $(cat err)"
is "$name" running || fail "it was ended"

echo "a guest that ends while it starts"
m stop > /dev/null
m start > out 2>&1 &
starting=$!
there() { [ -n "$(supervisor "$name")" ]; }
until_so there
vmm() { for pid in $(supervisor "$name"); do pgrep -P "$pid" -f __vmm || :; done; }
sleep 0.5
kill -KILL $(vmm) 2> /dev/null || :
wait $starting || :
# Killed before the guest ran, it leaves the machine as it was.
ended() { is "$name" failed || is "$name" stopped; }
until_so ended
m start > /dev/null || fail "it does not start again"

echo "a guest that ends just after it was restored"
inside 'setsid sh -c "sleep 3; echo 1 > /proc/sys/kernel/sysrq; echo o > /proc/sysrq-trigger" > /dev/null 2>&1 < /dev/null &'
m checkpoint --store ./store -o ./y.checkpoint > /dev/null
until_so is "$name" stopped
"$smolvm" machine create --name "$copy" --from ./y.checkpoint > /dev/null
# It may end before it is ready.
"$smolvm" machine start --name "$copy" > out 2>&1 || grep -q 'ended' out || fail "start: $(cat out)"
until_so is "$copy" stopped
"$smolvm" machine start --name "$copy" > /dev/null || fail "a copy that switched itself off does not start"
[ "$("$smolvm" machine exec --name "$copy" -- cat /root/disk)" = kept ] || fail "its disk"
echo ok

#!/bin/sh
# Points by id, message and number, a machine's own log, the end of its console's log, and a loop of commands that Ctrl-C ends.
set -eu
smolvm=${SMOLVM:-smolvm}; image=${IMAGE:-debian}; name=points-$$; other=points-$$-b; dir=$(mktemp -d); cd "$dir"
trap 'for n in $name $other; do "$smolvm" machine delete --name $n -f >/dev/null 2>&1 || :; done; cd /; rm -rf "$dir"' EXIT
fail() { echo "$1"; exit 1; }
run() { "$smolvm" exec --name "$name" -- "$@"; }
"$smolvm" create --name "$name" --image "$image" > /dev/null
[ -z "$("$smolvm" checkpoint-log "$name" 2> err)" ] || fail "points of a machine that has none"
grep -q "smolvm machine checkpoint --name $name" err || fail "no hint: $(cat err)"
"$smolvm" start --name "$name" > /dev/null
for step in one two three; do
    run sh -c "echo $step > /root/step"
    "$smolvm" checkpoint --name "$name" --store ./store -m "after $step" > /dev/null
done
"$smolvm" checkpoint-log "$name" > log 2> err
[ "$(grep -c '^~' log)" = 3 ] || fail "the machine's log: $(cat log)"
grep '^~0' log | grep -q 'after three' || fail "its head: $(cat log)"
grep -q "smolvm machine undo --name $name" err || fail "no hint: $(cat err)"

echo "by message, number and id"
"$smolvm" undo --name "$name" --to "after one" > /dev/null
[ "$(run cat /root/step)" = one ] || fail "undo by message"
three=$(awk '/^~0/ {print $2}' log)
"$smolvm" undo --name "$name" --to "$three" --discard > /dev/null
"$smolvm" undo --name "$name" --to 1 --discard > /dev/null
[ "$(run cat /root/step)" = two ] || fail "undo by number"
! "$smolvm" undo --name "$name" --to "no such message" 2> err || fail "an unknown message is taken"
grep -q "no such message" err || fail "not named: $(cat err)"
"$smolvm" checkpoint --name "$name" -m "in the default store" -o ./x.checkpoint > /dev/null
id=$("$smolvm" checkpoint-log ./x.checkpoint 2> err | awk '/^~0/ {print $2}')
"$smolvm" checkpoint-log "$id" > by-id 2> err
grep -q "^~0 .*$id.*in the default store" by-id || fail "the log by id: $(cat by-id)"
"$smolvm" create --name "$other" --from ./x.checkpoint --at "after two" > /dev/null
[ "$("$smolvm" checkpoint-log "$other" 2> err | awk '/^~0/ {print $2}')" = "$(awk '/^~1/ {print $2}' by-id)" ] || fail "create by message"

echo "the end of the log"
"$smolvm" exec --name "$name" -d -- sh -c 'seq 100; echo the last' > /dev/null
n=0
until "$smolvm" logs "$name" --tail 2 | grep -q 'ended with code 0'; do n=$((n + 1)); [ $n -lt 100 ] || fail "no end in the log"; sleep 0.1; done
[ "$("$smolvm" logs "$name" --tail 2 | wc -l)" = 2 ] || fail "not two lines: $("$smolvm" logs "$name" --tail 2)"
"$smolvm" logs "$name" --tail 2 | grep -q 'the last' || fail "not the last: $("$smolvm" logs "$name" --tail 2)"
[ -z "$("$smolvm" logs "$name" --tail 0)" ] || fail "lines where none is wanted"

# A shell goes on with its loop unless the command died of the signal: bash, which tells.
echo "a loop that is interrupted"
cat > loop.sh <<LOOP
for n in 1 2 3; do "$smolvm" exec --name "$name" -- sleep 4713; done
echo went on
LOOP
setsid sh -c 'trap - INT; exec env --default-signal=INT bash ./loop.sh' > loop.out 2>&1 &
n=0
until run pgrep -f 'sleep 4713' > /dev/null; do n=$((n + 1)); [ $n -lt 100 ] || fail "it does not start"; sleep 0.1; done
group=$(pgrep -f 'bash ./loop.sh')
kill -INT "-$group"
wait || :
! grep -q 'went on' loop.out || fail "the loop went on: $(cat loop.out)"
! run pgrep -f 'sleep 4713' > /dev/null || fail "the command goes on"
echo ok

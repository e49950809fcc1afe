#!/bin/sh
# Commands in a machine: exit codes, streams, environment, directory, user, time limits, the log.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=exec-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "exec: $*" >&2; exit 1; }
run() { "$smolvm" machine exec --name "$name" "$@"; }
# code EXPECTED ARGUMENTS...: the exit code of exec.
code() {
    expected=$1; shift
    actual=0
    run "$@" > out 2> err < /dev/null || actual=$?
    [ "$actual" = "$expected" ] || { cat out err >&2; fail "$*: exit code $actual, not $expected"; }
}

actual=0
"$smolvm" machine exec --name "$name" -- true 2> err || actual=$?
[ "$actual" = 125 ] || fail "no machine: $actual"
"$smolvm" machine create --name "$name" --image "$image" -e FROM=create -e BOTH=create -w /srv --label a=b
"$smolvm" machine exec --name "$name" -- true 2> err && fail "a machine that does not run"
grep -q "smolvm machine start --name $name" err || fail "no hint: $(cat err)"
"$smolvm" machine start --name "$name"

echo "exit codes"
code 0 -- true
code 1 -- false
code 7 -- sh -c 'exit 7'
code 255 -- sh -c 'exit 255'
code 126 -- /etc/passwd
grep -q 'cannot be executed' err || fail "126: $(cat err)"
code 126 -w /absent -- true
code 127 -- no-such-command
grep -q 'no-such-command' err || fail "127: $(cat err)"
code 137 -- sh -c 'kill -9 $$'
code 143 -- sh -c 'kill -15 $$'
code 124 --timeout 500ms -- sleep 60
run -- pgrep -x sleep > out && fail "what ran out of time still runs"
code 0 --timeout 1m -- true
# A command that its kernel does not let go: the disk is frozen under it.
run -- fsfreeze -f /
code 124 --timeout 1s -- touch /root/frozen
run -- fsfreeze -u /
run -- sh -c 'while pgrep -x touch > /dev/null; do sleep 0.1; done'

echo "streams"
run -- sh -c 'for i in 1 2 3; do echo out $i; echo err $i >&2; done' > out 2> err
[ "$(cat out)" = "out 1
out 2
out 3" ] || fail "stdout: $(cat out)"
[ "$(cat err)" = "err 1
err 2
err 3" ] || fail "stderr: $(cat err)"
[ -z "$(echo not for it | run -- cat)" ] || fail "stdin without -i"
# Without -i the stdin of a script that calls exec is left alone.
printf 'a\nb\n' | { run -- true; read -r first; [ "$first" = a ]; } || fail "exec read the stdin of its caller"
[ "$(echo for it | run -i -- cat)" = 'for it' ] || fail "stdin with -i"
[ "$(head -c 1048576 /dev/zero | run -i -- wc -c)" = 1048576 ] || fail "a MiB of stdin"
# What cannot be read is not the end of it.
code=0
run -i -- sh -c 'cat > /tmp/input; echo "taken for the end" > /tmp/taken' < / 2> err || code=$?
[ "$code" = 125 ] || fail "a stdin that cannot be read: $code"
grep -q 'Is a directory' err || fail "no reason: $(cat err)"
run -- test ! -e /tmp/taken || fail "a broken stdin was taken for its end"
# A command that reads nothing does not hang on stdin.
head -c 10485760 /dev/zero | run -i -- true
run -- sh -c 'echo first; exec >&-; sleep 0.2; echo second >&2' > out 2> err
[ "$(cat out err)" = "first
second" ] || fail "a closed stream: $(cat out err)"

echo "where and as whom"
[ "$(run -- pwd)" = /srv ] || fail "the directory of create"
[ "$(run -w /tmp -- pwd)" = /tmp ] || fail "the directory of exec"
[ "$(run -e BOTH=exec -e EMPTY= -- sh -c 'echo "$FROM $BOTH ${EMPTY-unset}"')" = 'create exec ' ] || fail "variables"
[ "$(run -- sh -c 'id -un; echo $HOME')" = "root
/root" ] || fail "root is the default"
[ "$(run -u nobody -- id -un)" = nobody ] || fail "a user by name"
[ "$(run -u 65534:0 -- id -g)" = 0 ] || fail "a user by number"
code 126 -u no-such-user -- true

echo "in the background"
run -- sh -c 'sleep 300 > /dev/null 2>&1 & echo $! > /tmp/left'
run -- sh -c 'kill -0 $(cat /tmp/left)' || fail "what a command left does not go on"
id=$(run -d -- sh -c 'echo to the log; sleep 0.1; echo and this')
[ "$id" -gt 0 ] || fail "no id: $id"
n=0
until "$smolvm" machine logs --name "$name" | grep -q "exec $id: ended with code 0"; do
    n=$((n + 1)); [ $n -lt 100 ] || fail "no end in the log"
    sleep 0.1
done
"$smolvm" machine logs --name "$name" | grep -q "and this" || fail "no output in the log"

echo "interrupted"
"$smolvm" machine exec --name "$name" -- sleep 4711 &
client=$!
n=0
until run -- pgrep -f 'sleep 4711' > /dev/null; do n=$((n + 1)); [ $n -lt 100 ] || fail "it does not start"; sleep 0.1; done
kill -INT "$client"
actual=0
wait "$client" || actual=$?
[ "$actual" = 130 ] || fail "interrupted: $actual"
n=0
while run -- pgrep -f 'sleep 4711' > /dev/null; do n=$((n + 1)); [ $n -lt 100 ] || fail "it goes on"; sleep 0.1; done
"$smolvm" machine exec --name "$name" -- sleep 4712 &
client=$!
n=0
until run -- pgrep -f 'sleep 4712' > /dev/null; do n=$((n + 1)); [ $n -lt 100 ] || fail "it does not start"; sleep 0.1; done
kill -KILL "$client"
n=0
while run -- pgrep -f 'sleep 4712' > /dev/null; do n=$((n + 1)); [ $n -lt 100 ] || fail "it outlives its client"; sleep 0.1; done
run -- yes | head -n 1 > out
[ "$(cat out)" = y ] || fail "yes | head"

echo "a command that sees its machine end"
actual=0
(sleep 1; "$smolvm" machine stop --name "$name" --timeout 0s) > /dev/null 2>&1 &
"$smolvm" machine exec --name "$name" -- sleep 60 2> err || actual=$?
wait
[ "$actual" = 125 ] || [ "$actual" = 137 ] || [ "$actual" = 143 ] || fail "machine ended: $actual, $(cat err)"
echo ok

#!/bin/sh
# A machine for one command: its exit code, its streams, and nothing left whatever happens.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} dir=$(mktemp -d)
cd "$dir"
trap 'cd /; rm -rf "$dir"' EXIT
fail() { echo "run: $*" >&2; exit 1; }
left() { "$smolvm" machine ls | grep '^run-' || :; }

[ -z "$(left)" ] || fail "before: $(left)"
code=0
echo input | "$smolvm" machine run --image "$image" --mem 256M -i -e A=b -- sh -c 'cat; echo $A; echo err >&2; exit 7' > out 2> err || code=$?
[ "$code" = 7 ] || fail "exit code $code: $(cat err)"
[ "$(cat out)" = "input
b" ] || fail "stdout: $(cat out)"
[ "$(cat err)" = err ] || fail "stderr: $(cat err)"
code=0
"$smolvm" machine run --image "$image" --mem 256M -- no-such-command 2> err || code=$?
[ "$code" = 127 ] || fail "exit code $code"
code=0
"$smolvm" machine run --image no-such-image -- true 2> err || code=$?
[ "$code" = 125 ] || fail "exit code $code"
[ -z "$(left)" ] || fail "left: $(left)"

for pause in 0.05 0.5 2 15; do
    "$smolvm" machine run --image "$image" --mem 256M -- sleep 600 &
    client=$!
    sleep "$pause"
    kill -INT "$client"
    code=0
    wait "$client" || code=$?
    [ "$code" = 130 ] || fail "interrupted after $pause s: exit code $code"
    [ -z "$(left)" ] || fail "interrupted after $pause s, left: $(left)"
done

# Killed so that it can put nothing in order: its machine ends with it.
for pause in 0.05 0.5 2 8; do
    "$smolvm" machine run --image "$image" --mem 256M -- sleep 600 &
    client=$!
    sleep "$pause"
    kill -KILL "$client"
    wait "$client" 2> /dev/null || :
    looks=0
    until [ -z "$(left)" ]; do
        looks=$((looks + 1))
        [ "$looks" -lt 600 ] || fail "killed after $pause s, left: $(left)"
        sleep 0.1
    done
done
# The next one takes away what is left of it.
"$smolvm" machine create --image "$image" --name after-run > /dev/null
"$smolvm" machine delete -f --name after-run > /dev/null
home=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
[ -z "$(ls "$home/machines" | grep '^run-' || :)" ] || fail "left: $(ls "$home/machines")"
echo ok

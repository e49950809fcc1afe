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
echo ok

#!/bin/sh
# Processes killed at random moments: the registry and the images stay usable, the next command says
# the truth. Fifty moments with SMOLVM_LONG, else eight.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=killed-$$ dir=$(mktemp -d)
rounds=8
[ -z "${SMOLVM_LONG:-}" ] || rounds=50
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "killed: $*" >&2; exit 1; }
# Without it nothing would be killed, and nothing said.
command -v pgrep > /dev/null || fail "pgrep is missing: apt-get install procps"
m() { "$smolvm" machine "$@"; }
state() { m status --name "$name" --json | sed 's/.*"state":"\([a-z]*\)".*/\1/'; }
random() { od -An -N2 -tu2 /dev/urandom | tr -d ' '; }
# The processes of the machine: its supervisor, and the VMM that the supervisor started.
supervisor() { pgrep -f "__supervisor .* $name\$" || :; }
vmm() { for pid in $(supervisor); do pgrep -P "$pid" -f __vmm || :; done; }

m create --name "$name" --image "$image" --mem 256M
m start --name "$name"
m exec --name "$name" -- sh -c 'echo base > /root/file; sync'
n=0
while [ $n -lt $rounds ]; do
    n=$((n + 1))
    m start --name "$name" > start.log 2>&1 &
    client=$!
    # Up to three seconds: while it starts, while it works, while it is idle.
    sleep "$(random | awk '{ printf "%.2f", $1 % 300 / 100 }')"
    case $((n % 4)) in
    0) victims=$client ;;
    1) victims=$(supervisor) ;;
    2) victims=$(vmm) ;;
    3) victims="$(supervisor) $(vmm)" ;;
    esac
    # shellcheck disable=SC2086 # a list
    kill -KILL $victims 2> /dev/null || :
    wait "$client" 2> /dev/null || :
    m ls > /dev/null || fail "round $n: ls"
    "$smolvm" image ls | grep -q "^$image " || fail "round $n: the image"
    # Whatever is said now must hold: what runs answers, what does not starts.
    i=0
    until m exec --name "$name" -- cat /root/file > out 2> err; do
        i=$((i + 1)); [ $i -lt 60 ] || fail "round $n: $(state): $(cat err) $(cat start.log)"
        [ "$(state)" = running ] || m start --name "$name" > start.log 2>&1 || :
        sleep 0.5
    done
    [ "$(cat out)" = base ] || fail "round $n: the disk: $(cat out)"
done
m stop --name "$name" > /dev/null 2>&1
[ "$(state)" = stopped ] || fail "at the end: $(state)"
m delete --name "$name" -f
[ -z "$(supervisor)" ] || fail "a supervisor is left"
echo ok

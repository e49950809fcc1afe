#!/bin/sh
# From nothing to deleted: states, what they allow, what stays over a stop.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} dir=$(mktemp -d)
cd "$dir"
# A home of its own, with the images and kernels of the given one: here "all machines" are ours.
outer=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
export SMOLVM_HOME="$dir/home"
trap '"$smolvm" machine delete --all -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "lifecycle: $*" >&2; exit 1; }
m() { "$smolvm" machine "$@"; }
state() { m status --name "$1" --json | sed 's/.*"state":"\([a-z]*\)".*/\1/'; }
is() { [ "$(state "$1")" = "$2" ] || fail "$1 is $(state "$1"), not $2"; }
refused() { m "$@" > out 2> err && fail "not refused: $*"; [ -s err ] || fail "no message: $*"; }

echo "without kernel and image"
refused start --name agent
grep -q 'hint: .*smolvm' err || fail "no hint: $(cat err)"
mkdir -p "$SMOLVM_HOME"
ln -s "$outer/images" "$outer/kernels" "$SMOLVM_HOME"
[ "$image" = debian ] || "$smolvm" image ls | grep -q "^$image " || fail "no image $image"

echo "start makes an unknown machine, and says so"
m start --name agent --branchable > out
grep -q "Created 'agent'" out && grep -q "Started 'agent'" out || fail "$(cat out)"
is agent running
m start --name agent | grep -q already || fail "a second start"
m exec -- sh -c 'echo kept > /root/file; echo gone > /run/file'
[ "$(SMOLVM_MACHINE_NAME=agent m exec -- hostname)" = agent ] || fail "host name"
# A sleep of a millisecond takes one: the kernel may program its timer for any moment.
[ "$(m exec -- grep -c 'hres_active *: 1' /proc/timer_list)" -ge 1 ] || fail "no high-resolution timers"
refused delete --name agent
is agent running

echo "stop and start"
m stop --name agent
is agent stopped
m stop --name agent | grep -q 'did not run' || fail "a second stop"
refused exec -- true
grep -q 'smolvm machine start --name agent' err || fail "no hint: $(cat err)"
refused cp agent:/root/file .
m start
[ "$(m exec -- cat /root/file)" = kept ] || fail "the disk forgot"
m exec -- test -e /run/file && fail "memory outlived a stop"

echo "a guest that ends by itself"
m exec -- sh -c 'sync; echo o > /proc/sysrq-trigger' > /dev/null 2>&1 || :
n=0
while [ "$(state agent)" = running ]; do n=$((n + 1)); [ $n -lt 100 ] || fail "power-off is not seen"; sleep 0.1; done
is agent stopped
m start > /dev/null
m exec -- sh -c 'sync; echo c > /proc/sysrq-trigger' > /dev/null 2>&1 || :
n=0
while [ "$(state agent)" = running ]; do n=$((n + 1)); [ $n -lt 100 ] || fail "a panic is not seen"; sleep 0.1; done
is agent failed
m status | grep -q panic || fail "the reason: $(m status)"
m logs | grep -q 'Kernel panic' || fail "the log"
m logs --json | grep -q '^{"v":1,"line":".*Kernel panic' || fail "the log as objects"
m start > /dev/null
[ "$(m exec -- cat /root/file)" = kept ] || fail "the disk after a panic"

echo "a guest that reboots"
boot=$(m exec -- cat /proc/sys/kernel/random/boot_id)
m exec -- sh -c 'sync; echo b > /proc/sysrq-trigger' > /dev/null 2>&1 || :
n=0
until new=$(m exec -- cat /proc/sys/kernel/random/boot_id 2> /dev/null) && [ "$new" != "$boot" ]; do
    n=$((n + 1)); [ $n -lt 60 ] || fail "it does not come back: $(m status)"
    sleep 0.5
done
is agent running

echo "a guest that hangs"
# Its agent is the child of PID 1 that has no name on a disk. The command goes on: as long as not all threads of the
# agent stand still, its end would be told.
m exec -- sh -c 'echo soon; sleep 1; kill -STOP $PPID; sleep 600' > hung 2> /dev/null &
hung=$!
n=0
until grep -q soon hung; do n=$((n + 1)); [ $n -lt 600 ] || fail "the command does not start"; sleep 0.1; done
sleep 3
m stop --timeout 1s > out 2> err
grep -q 'did not shut down' err || fail "no warning: $(cat out err)"
is agent stopped
actual=0
wait $hung || actual=$?
[ "$actual" = 125 ] || fail "the command's client: $actual"

echo "two machines"
m create --name second --image "$image" --mem 256M --cpus 1 --label purpose=test
refused exec -- true
grep -q -- '--name' err || fail "which machine: $(cat err)"
refused create --name second
m rename --name second other
is other created
refused status --name second
m ls | grep -q '^other .*256 MiB' || fail "ls: $(m ls)"
[ "$(m ls --json | wc -l)" = 2 ] || fail "ls --json"
m start --name other > /dev/null
m start --name agent > /dev/null
[ "$(m exec --name other -- cat /etc/machine-id)" != "$(m exec --name agent -- cat /etc/machine-id)" ] ||
    fail "one machine-id for two machines"
m exec --name other -- sh -c 'cat /etc/ssh/ssh_host_ed25519_key.pub' > key-1
m exec --name agent -- sh -c 'cat /etc/ssh/ssh_host_ed25519_key.pub' > key-2
cmp -s key-1 key-2 && fail "one host key for two machines"
m stop --all > out
[ "$(grep -c '^Stopped' out)" = 2 ] || fail "stop --all: $(cat out)"
is other stopped

echo "deleted"
m delete --name other < /dev/null 2> err && fail "deleted without being asked"
grep -q -- '-f' err || fail "no hint: $(cat err)"
m start --name agent > /dev/null
m delete --name agent -f
m delete --all -f
[ -z "$(m ls --json)" ] || fail "something is left: $(m ls)"
[ -z "$(ls -A "$SMOLVM_HOME/machines")" ] || fail "files are left: $(ls -A "$SMOLVM_HOME/machines")"
echo ok

#!/bin/sh
# A machine gets another name while it runs, and does all that it did.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} dir=$(mktemp -d)
cd "$dir"
outer=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
export SMOLVM_HOME="$dir/home"
trap '"$smolvm" machine delete --all -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "rename: $*" >&2; exit 1; }
m() { "$smolvm" machine "$@"; }
refused() { m "$@" > out 2> err && fail "not refused: $*"; [ -s err ] || fail "no message: $*"; }
mkdir -m 700 "$SMOLVM_HOME"
ln -s "$outer/images" "$outer/kernels" "$SMOLVM_HOME"

m create --name first --image "$image" --mem 256M > /dev/null
m start --name first > /dev/null
m exec --name first -- sh -c 'echo 1 > /root/file'
# The kernel makes it up when it is first asked.
boot=$(m exec --name first -- cat /proc/sys/kernel/random/boot_id)
m checkpoint --name first -m one > /dev/null
id=$(m exec --name first -- cat /etc/machine-id)

echo "a command goes on while its machine gets another name"
mkfifo in
m exec --name first -i -- sh -c 'echo begun; read line; echo "$line"' < in > said &
command=$!
exec 3> in
n=0
until grep -q begun said; do n=$((n + 1)); [ $n -lt 200 ] || fail "the command does not begin"; sleep 0.05; done
m rename first second | grep -q "Renamed 'first' to 'second'" || fail "what it says"
echo still >&3
exec 3>&-
wait $command || fail "the command ended with $?"
grep -q still said || fail "the command heard nothing"

echo "it is the same machine, under its new name only"
refused status --name first
[ ! -e "$SMOLVM_HOME/machines/first" ] || fail "the old directory is there"
[ "$(m exec --name second -- cat /proc/sys/kernel/random/boot_id)" = "$boot" ] || fail "it booted"
m ls | grep -q '^second .*running' || fail "$(m ls)"
refused rename second second

echo "its old name is free, and nothing of the new machine mixes with it"
m create --name first --image "$image" --mem 256M > /dev/null
m start --name first > /dev/null
refused rename first second
grep -q 'there is a machine second' err || fail "$(cat err)"
[ "$(m exec --name first -- cat /etc/machine-id)" != "$id" ] || fail "one identity for two"
m exec --name first -- sh -c 'echo first > /root/file'

echo "it is saved and undone in place, with what it had before"
m exec --name second -- sh -c 'echo 2 > /root/file'
m checkpoint --name second -m two > /dev/null
m checkpoint --name second -o ./two.checkpoint > /dev/null
m exec --name second -- sh -c 'echo 3 > /root/file; sync'
m undo --name second > /dev/null
[ "$(m exec --name second -- cat /root/file)" = 2 ] || fail "the undo"
m undo --name second --to '~2' > /dev/null
[ "$(m exec --name second -- cat /root/file)" = 1 ] || fail "the undo beyond the rename"
[ "$(m exec --name second -- cat /proc/sys/kernel/random/boot_id)" = "$boot" ] || fail "it booted"
m checkpoint-log ./two.checkpoint > log
grep -q second log || fail "$(cat log)"
[ "$(m exec --name first -- cat /root/file)" = first ] || fail "the other machine was undone"

echo "branches, pauses, stops and starts"
m branch --from second --name child > /dev/null
m rename child grandchild > /dev/null
[ "$(m exec --name grandchild -- cat /root/file)" = 1 ] || fail "the branch"
m pause --name second > /dev/null
m rename second third > /dev/null
m resume --name third > /dev/null
[ "$(m exec --name third -- cat /proc/sys/kernel/random/boot_id)" = "$boot" ] || fail "it booted in a pause"
m rename third fourth > /dev/null
m stop --name fourth | grep -q Stopped || fail "stop"
m start --name fourth > /dev/null
[ "$(m exec --name fourth -- cat /root/file)" = 1 ] || fail "the disk"
[ "$(m exec --name fourth -- cat /etc/machine-id)" = "$id" ] || fail "the identity"

echo "a supervisor that is killed after it leaves a machine of the new name"
m rename fourth fifth > /dev/null
m exec --name fifth -- sh -c 'echo 5 > /root/file; sync'
m stop --name fifth --timeout 0s > /dev/null 2>&1 || fail "stop at once"
m start --name fifth > /dev/null
[ "$(m exec --name fifth -- cat /root/file)" = 5 ] || fail "the disk"

echo "messages name directories"
grep -r "/proc/self/fd" "$SMOLVM_HOME"/machines/*/supervisor.log && fail "a path that nobody can use"
m delete --name fifth -f > /dev/null
[ ! -e "$SMOLVM_HOME/machines/fifth" ] || fail "it is not gone"
echo ok

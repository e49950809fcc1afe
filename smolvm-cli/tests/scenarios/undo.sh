#!/bin/sh
# Going back: from every state that a guest, its VMM or its supervisor can be in, in place where the VMM is sound; again and
# again, forth, further back, and after all that a point lay in is gone.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=undo-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "undo: $*" >&2; exit 1; }
command -v pgrep > /dev/null || fail "pgrep is missing: apt-get install procps"
m() { command=$1; shift; "$smolvm" machine "$command" --name "$name" "$@"; }
inside() { m exec -- sh -c "$1"; }
field() { sed "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/"; }
supervisor() { pgrep -f "__supervisor .* $name\$" || :; }
vmm() { for pid in $(supervisor); do pgrep -P "$pid" -f __vmm || :; done; }
# Both disk and memory of the point, and a kernel that has noticed nothing.
at() {
    [ "$(inside 'cat /root/disk /run/memory' | tr '\n' ' ')" = "$1 $1 " ] || fail "$2: $(inside 'cat /root/disk /run/memory' 2>&1)"
    complaints=$(inside 'dmesg --level=emerg,alert,crit,err | grep -v "PCI: Fatal: No config space" || :')
    [ -z "$complaints" ] || fail "$2: $complaints"
}

m create --image "$image" --mem 256M --disk 1G > /dev/null
m start > /dev/null
if m undo 2> err; then fail "it went back to no point"; fi
grep -q 'machine checkpoint' err || fail "no way out is named: $(cat err)"

# The first two points lie in directories that go away, the third in the store.
for i in 1 2 3; do
    inside "echo $i > /root/disk; echo $i > /run/memory"
    case $i in
    3) m checkpoint --store ./store -m "before $i" ;;
    *) m checkpoint --store ./store -o "./$i.checkpoint" ;;
    esac > /dev/null
done
pid=$(vmm)

echo "a guest that does not help"
# As far as it comes: on a busy host it takes minutes.
m exec --timeout 20s -- rm -rf --no-preserve-root / > /dev/null 2>&1 || :
m undo > out || fail "rm -rf /: $(cat out)"
at 3 "rm -rf /"
grep -q '"before 3"' out || fail "the message is not said: $(cat out)"
inside 'kill -9 -1' > /dev/null 2>&1 || :
m undo > /dev/null
at 3 "kill -9 -1"
inside 'bomb() { bomb | bomb & }; bomb' > /dev/null 2>&1 &
sleep 3
m undo --discard > /dev/null
wait
at 3 "a fork bomb"
inside 'dd if=/dev/zero of=/root/fill bs=1M > /dev/null 2>&1 || :; ! echo x > /root/more 2> /dev/null' || :
m undo --discard > /dev/null
at 3 "a full disk"
inside 'fsfreeze -f / && sleep 1' > /dev/null 2>&1 &
sleep 1
m undo > /dev/null
wait
at 3 "a frozen file system"
[ "$(vmm)" = "$pid" ] || fail "its VMM is another one"

echo "ends"
inside 'echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger' > /dev/null 2>&1 || :
m undo > /dev/null 2> err
grep -q 'is lost: .*panic' err || fail "a panic is not said: $(cat err)"
at 3 "a panic"
kill -KILL "$(vmm)"
m undo > /dev/null 2> err
grep -q 'is lost' err || fail "a killed VMM is not said: $(cat err)"
at 3 "a killed VMM"
kill -STOP "$(vmm)"
if m checkpoint > /dev/null 2> err; then fail "a stopped VMM was saved"; fi
grep -q 'is stopped' err || fail "that the VMM is stopped is not said: $(cat err)"
if m undo 2> err; then fail "the state of a stopped VMM was kept"; fi
grep -q -- '--discard' err || fail "the way out is not named: $(cat err)"
m undo --discard > /dev/null
at 3 "a stopped VMM"
kill -KILL "$(supervisor)"
m undo > /dev/null 2> err
grep -q 'is lost' err || fail "a killed supervisor is not said: $(cat err)"
at 3 "a killed supervisor"
inside 'echo changed > /root/disk'
m stop > /dev/null
if m undo 2> err; then fail "a stopped machine whose disk changed went back without a word"; fi
grep -q -- '--discard' err || fail "the way out is not named: $(cat err)"
m undo --discard > /dev/null
at 3 "stopped"

echo "commands that are open"
m exec -- sleep 1000 2> err &
client=$!
until inside 'pgrep sleep' > /dev/null; do sleep 0.1; done
m undo > /dev/null
code=0
wait $client || code=$?
[ $code = 125 ] || fail "exec ended with $code"
grep -q 'went back to point' err || fail "it does not say why: $(cat err)"

echo "there and back"
inside 'echo 4 > /root/disk; echo 4 > /run/memory'
kept=$(m undo --json | field kept)
at 3 "undo"
m undo --to "$kept" --discard > /dev/null
at 4 "redo"
m undo --to '~1' > /dev/null
at 3 "the point before"
rm -rf ./1.checkpoint ./2.checkpoint
m undo --to '~1' > /dev/null
at 2 "one before that"
m undo --to '~1' > /dev/null
at 1 "the first"
if m undo --to '~1' 2> err; then fail "there is nothing before the first"; fi
rm -rf ./store
m undo > /dev/null
at 1 "without its store"

echo "identity"
before=$(inside 'hostname; cat /etc/machine-id; cat /etc/ssh/ssh_host_*_key.pub 2> /dev/null | sha256sum')
m undo --discard > /dev/null
[ "$(inside 'hostname; cat /etc/machine-id; cat /etc/ssh/ssh_host_*_key.pub 2> /dev/null | sha256sum')" = "$before" ] ||
    fail "it is another machine"
now=$(date +%s)
guest=$(inside 'date +%s')
[ $((guest - now)) -ge -2 ] && [ $((guest - now)) -le 60 ] || fail "its clock: $guest, not $now"

m delete -f > /dev/null
[ -z "$(supervisor)" ] || fail "a supervisor is left"
echo ok

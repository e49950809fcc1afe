#!/bin/sh
# A terminal: size, changes of it, keys that signal, and the terminal as before afterwards.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=shell-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "shell: $*" >&2; exit 1; }
command -v script > /dev/null || fail "this test needs script (package bsdutils)"
"$smolvm" machine create --name "$name" --image "$image"
"$smolvm" machine start --name "$name"
# In a terminal of 33 lines of 99: COMMAND with keys typed by stdin; the terminal's settings before
# and after are compared.
terminal() {
    cat > inside << END
stty rows 33 cols 99
stty -g > before
$1
echo "code \$?"
stty -g > after
END
    script -qec 'sh inside' /dev/null
    cmp before after || fail "the terminal was left changed: $1"
}

{ sleep 2; printf 'stty size; tty; echo "<$TERM>"\n'; sleep 1; printf 'exit 3\n'; sleep 1; } |
    TERM=xterm-256color terminal "$smolvm machine shell --name $name" > out
grep -q '33 99' out && grep -q '/dev/pts/' out && grep -q '<xterm-256color>' out && grep -q 'code 3' out || { cat out; fail "shell"; }

{ sleep 2; printf '\003'; sleep 1; } |
    terminal "$smolvm machine exec --name $name -it -- sh -c 'trap \"echo caught; exit 9\" INT; sleep 60 & wait'" > out
grep -q caught out && grep -q 'code 9' out || { cat out; fail "Ctrl-C does not reach the command"; }

{ sleep 4; } |
    terminal "t=\$(tty); (sleep 1; stty rows 40 cols 120 < \$t) & $smolvm machine exec --name $name -it -- sh -c 'sleep 2; stty size'" > out
grep -q '40 120' out || { cat out; fail "a resized terminal"; }

{ sleep 4; } |
    terminal "(sleep 2; kill \$(cat pid)) & sh -c 'echo \$\$ > pid; exec $smolvm machine exec --name $name -it -- sleep 60'" > out
grep -q 'code 143' out || { cat out; fail "ended by a signal"; }

terminal "$smolvm machine exec --name $name -t -- no-such-command" > out < /dev/null
grep -q 'code 127' out || { cat out; fail "not found"; }
# -t without a terminal of our own still gives the command one.
"$smolvm" machine exec --name "$name" -t -- sh -c 'tty; stty size; echo err >&2' > out 2> err
grep -q '/dev/pts' out && grep -q '24 80' out && grep -q err out && [ ! -s err ] || { cat out err; fail "-t alone"; }
echo ok

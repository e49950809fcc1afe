#!/bin/sh
# Trees both ways: modes, times, links, holes, odd names; where a copy lands; what cannot be copied.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=trees-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "trees: $*" >&2; exit 1; }
run() { "$smolvm" machine exec --name "$name" "$@"; }
cp_() { "$smolvm" machine cp "$@"; }
# What a tree is: kinds, modes, sizes, times, targets, contents.
describe() {
    find . -printf '%y %m %p %l\n' | sort
    find . -type f -printf '%s %TY-%Tm-%Td %TH:%TM %p\n' | sort
    find . -type f -exec sha1sum '{}' + | sort
}

mkdir -p tree/sub/deep tree/empty
echo plain > tree/plain
printf 'no newline' > tree/sub/deep/file
echo script > tree/run; chmod 755 tree/run
echo secret > tree/secret; chmod 600 tree/secret
ln -s ../plain tree/sub/link
ln -s /nowhere/at/all tree/dangling
ln tree/plain tree/second-name
echo odd > 'tree/a name with "quotes" and $signs'
echo odd > "tree/$(printf 'new\nline')"
echo odd > "tree/$(printf '\377\376')"
echo odd > tree/-dash
truncate -s 64M tree/sparse; printf end >> tree/sparse
touch -d '2001-02-03 04:05' tree/plain
chmod 750 tree/sub
(cd tree && describe) > host

"$smolvm" machine create --name "$name" --image "$image"
"$smolvm" machine start --name "$name"

echo "there and back"
cp_ ./tree "$name:/root/copy"
cp_ "$name:/root/copy" ./back
(cd back && describe) > guest
cmp host guest || { diff host guest >&2 || :; fail "a tree came back changed"; }
[ "$(du -k back/sparse | cut -f1)" -lt 1024 ] || fail "holes were filled"
[ "$(stat -c %h back/plain)" = 2 ] || fail "a hard link was lost"
[ "$(run -- stat -c '%U %a' /root/copy/secret)" = 'root 600' ] || fail "owner or mode in the machine"

echo "where it lands"
cp_ ./tree/plain "$name:/root"
[ "$(run -- cat /root/plain)" = plain ] || fail "into a directory"
cp_ ./tree/run "$name:/root/plain"
[ "$(run -- cat /root/plain)" = script ] || fail "over a file"
run -- chmod 640 /root/plain
run -- chown nobody /root/plain
cp_ ./tree/run "$name:/root/plain"
[ "$(run -- stat -c '%U %a' /root/plain)" = 'nobody 640' ] || fail "what was there lost its owner or mode"
cp_ ./tree/plain "$name:/dev/null"
run -- test -c /dev/null || fail "a device was replaced"
mkfifo pipe
cat pipe > read & reader=$!
# The reader may not have opened it yet.
until cp_ "$name:/root/copy/plain" pipe 2> err; do grep -q 'nobody reads' err || fail "$(cat err)"; sleep 0.1; done
wait $reader
[ -p pipe ] && [ "$(cat read)" = plain ] || fail "into a pipe"
[ "$(cp_ "$name:/root/copy/plain" /dev/stdout | cat)" = plain ] || fail "to stdout"
cp_ "$name:/root/copy/plain" ./absent/. 2> err && fail "into a directory that is not there"
grep -q 'there is no directory' err || fail "absent/.: $(cat err)"
cp_ ./tree/. "$name:/root/contents"
run -- test -f /root/contents/plain || fail "the contents of a directory"
cp_ "$name:/etc/hostname" .
[ "$(cat hostname)" = "$name" ] || fail "into this directory"
mkdir into
cp_ "$name:/root/copy/sub" ./into
[ "$(cat into/sub/deep/file)" = 'no newline' ] || fail "a directory into a directory"

echo "interrupted"
run -- sh -c 'head -c 300000000 /dev/zero | tr "\\0" x > /root/large'
mkdir cut
for signal in INT TERM KILL; do
    # Not in the background: there the shell has it ignore SIGINT.
    code=0
    timeout -s $signal 0.5 "$smolvm" machine cp "$name:/root/large" cut/large || code=$?
    # Which it is depends on the host's speed: whole, or nothing.
    case $(ls -A cut) in
        large) [ $code = 0 ] || fail "a copy was whole before it was ended by $signal: $code"; rm cut/large ;;
        '') [ $code != 0 ] || fail "a copy succeeded and made nothing" ;;
        *) fail "left by a copy that ended by $signal: $(ls -A cut)" ;;
    esac
done

echo "what cannot be copied"
for wrong in "$name:/absent ./x" "./absent $name:/x" "$name:/etc/hostname ./absent/x" "./tree $name:/etc/hostname"; do
    # shellcheck disable=SC2086 # two words
    cp_ $wrong 2> err && fail "$wrong was copied"
    [ -s err ] || fail "$wrong: no message"
done
run -- cat /etc/hostname > hostname
[ "$(cat hostname)" = "$name" ] || fail "a refused copy changed something"
cp_ "$name:relative" . 2> err && fail "a relative path"
grep -q "$name:/" err || fail "no hint: $(cat err)"
echo ok

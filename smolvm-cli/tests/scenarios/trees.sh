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
cp_ ./tree/. "$name:/root/contents"
run -- test -f /root/contents/plain || fail "the contents of a directory"
cp_ "$name:/etc/hostname" .
[ "$(cat hostname)" = "$name" ] || fail "into this directory"
mkdir into
cp_ "$name:/root/copy/sub" ./into
[ "$(cat into/sub/deep/file)" = 'no newline' ] || fail "a directory into a directory"

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

#!/bin/sh
# Bad input: a clear error that names the next command, and nothing changed.
set -eu
smolvm=${SMOLVM:-smolvm} dir=$(mktemp -d)
cd "$dir"
outer=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
export SMOLVM_HOME="$dir/home"
trap 'cd /; rm -rf "$dir"' EXIT
fail() { echo "refusals: $*" >&2; exit 1; }
# refused WORDS ARGUMENTS...: fails, and says WORDS on stderr.
refused() {
    words=$1; shift
    "$smolvm" "$@" > out 2> err && fail "not refused: $*"
    grep -q -- "$words" err || fail "$*: $(cat err)"
    [ ! -s out ] || fail "$*: data: $(cat out)"
}

refused 'smolvm image build debian' machine start --name agent
mkdir -p "$SMOLVM_HOME"
ln -s "$outer/images" "$SMOLVM_HOME"
refused 'smolvm kernel import default' machine start --name agent
ln -s "$outer/kernels" "$SMOLVM_HOME"
for name in ../x a/b '' 'UPPER' '.hidden' '-dash' "$(printf 'x%.0s' $(seq 300))"; do
    refused 'a-z 0-9' machine create "--name=$name"
done
refused 'there is no image named' machine create --name a --image absent
refused 'there is no kernel named' machine create --name a --kernel absent
refused 'choose between 96M and 1T' machine create --name a --mem 1M
refused 'choose at least' machine create --name a --disk 1M
refused 'choose 1 to 16' machine create --name a --cpus 200
refused 'cpu' machine create --name a --cpu pentium
refused 'not a size' machine create --name a --mem lots
[ -z "$("$smolvm" machine ls --json)" ] || fail "something was made: $("$smolvm" machine ls)"

echo "damaged archives"
rm "$SMOLVM_HOME/images"
mkdir -p root/etc
echo hello > root/etc/motd
tar -cf whole.tar -C root .
head -c 700 whole.tar > cut.tar
gzip -c whole.tar | head -c 100 > cut.tar.gz
head -c 4096 /dev/urandom > noise.tar
for file in cut.tar cut.tar.gz noise.tar absent.tar; do refused "$file" image import mine "./$file"; done
"$smolvm" image import mine whole.tar > out
refused 'smolvm image rm mine' image import mine whole.tar
[ "$("$smolvm" image ls --json | wc -l)" = 1 ] || fail "an image is left: $("$smolvm" image ls)"
"$smolvm" image rm mine > out
refused 'smolvm image ls' image rm mine

echo "a full disk: a limit on file sizes stops writes as one does"
head -c 10000000 /dev/urandom > root/large
tar -cf large.tar -C root .
(ulimit -f 1000; trap '' XFSZ; "$smolvm" image import large large.tar > out 2> err) && fail "a full disk"
[ -s err ] || fail "a full disk: no message"
[ -z "$("$smolvm" image ls --json)" ] || fail "half an image"
"$smolvm" image import large large.tar > out || fail "the next import"
echo ok

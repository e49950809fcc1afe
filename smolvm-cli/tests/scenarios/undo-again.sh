#!/bin/sh
# Twenty undos and redos in a row under a load on memory and disk: what the guest computed of both is exact each time, its kernel
# says nothing, its VMM stays the same process.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=again-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "undo-again: $*" >&2; exit 1; }
command -v pgrep > /dev/null || fail "pgrep is missing: apt-get install procps"
m() { command=$1; shift; "$smolvm" machine "$command" --name "$name" "$@"; }
inside() { m exec -- sh -c "$1"; }
field() { sed "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/"; }
vmm() { pgrep -P "$(pgrep -f "__supervisor .* $name\$")" -f __vmm; }

cat > load.py << 'LOAD'
# Writes blocks of memory and of a file in turn and keeps a checksum of each. Whenever a block is taken up again it must be what it was.
import hashlib, os, random

BLOCK, BLOCKS = 64 << 10, 256
memory = [bytearray(BLOCK) for _ in range(BLOCKS)]
sums = [[hashlib.blake2b(bytes(BLOCK)).digest()] * BLOCKS for _ in range(2)]
file = os.open("/root/load", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.ftruncate(file, BLOCK * BLOCKS)
source, rounds = random.Random(1), 0
while True:
    index, kind = source.randrange(BLOCKS), rounds % 2
    content = bytes(memory[index]) if kind == 0 else os.pread(file, BLOCK, index * BLOCK)
    if hashlib.blake2b(content).digest() != sums[kind][index]:
        open("/run/wrong", "w").write("round %d, %s, block %d" % (rounds, "memory disk".split()[kind], index))
        break
    content = source.randbytes(BLOCK)
    if kind == 0:
        memory[index][:] = content
    else:
        os.pwrite(file, content, index * BLOCK)
        if rounds % 32 == 1:
            os.fsync(file)
            # Read back from the disk, not from what the kernel remembers.
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    sums[kind][index] = hashlib.blake2b(content).digest()
    rounds += 1
    open("/run/rounds.new", "w").write(str(rounds))
    os.rename("/run/rounds.new", "/run/rounds")
LOAD

m create --image "$image" --mem 256M > /dev/null
m start > /dev/null
"$smolvm" machine cp ./load.py "$name:/root/load.py" > /dev/null
inside 'setsid python3 /root/load.py > /run/log 2>&1 < /dev/null &'
until inside 'test "$(cat /run/rounds)" -gt 300' 2> /dev/null; do sleep 0.5; done
m checkpoint --store ./store > /dev/null
inside 'cat /run/rounds' > at
pid=$(vmm)
kept=
n=0
while [ $n -lt 20 ]; do
    n=$((n + 1))
    before=$(inside 'cat /run/rounds')
    until [ "$(inside 'cat /run/rounds')" -gt $((before + 20)) ]; do sleep 0.1; done
    case $((n % 4)) in
    1 | 2) m undo --json > out ;;
    3) m undo --discard --json > out ;;
    0) m undo --to "$kept" --json > out ;;
    esac || fail "undo $n: $(cat out)"
    case $((n % 4)) in 1 | 2) kept=$(field kept < out) ;; esac
    [ "$(field in_place < out)" = true ] || fail "undo $n was not in place: $(cat out)"
    wrong=$(inside 'cat /run/wrong 2> /dev/null || :')
    [ -z "$wrong" ] || fail "undo $n: $wrong"
    [ "$(vmm)" = "$pid" ] || fail "undo $n: another VMM"
done
before=$(inside 'cat /run/rounds')
until [ "$(inside 'cat /run/rounds')" -gt $((before + 600)) ]; do
    inside 'test ! -e /run/wrong' || fail "at the end: $(inside 'cat /run/wrong')"
    sleep 0.5
done
complaints=$(inside 'dmesg --level=emerg,alert,crit,err,warn | grep -v "PCI: Fatal: No config space" | grep -i "lockup\|stall\|error\|bug\|warn" || :')
[ -z "$complaints" ] || fail "the kernel: $complaints"
m delete -f > /dev/null
echo ok

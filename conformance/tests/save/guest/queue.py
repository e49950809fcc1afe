"""32 random writes with O_DIRECT under way at a time, of one to eight blocks, and every so often an fsync.

Runs until /run/stop appears, then prints how often each block was written: what the file holds follows from that
alone. Block b in its version v is the number b << 32 | v, over and over.
"""
import mmap, os, random, struct, threading

WRITERS, BLOCK, OWN, LONGEST = 32, 4096, 64, 8
BLOCKS = WRITERS * OWN
STOP = "/run/stop"
versions = [0] * BLOCKS
errors = []


def content(block, version):
    return struct.pack("<Q", block << 32 | version) * (BLOCK // 8)


def write(buffer, first, count):
    data = b"".join(content(b, versions[b]) for b in range(first, first + count))
    buffer[: len(data)] = data
    view = memoryview(buffer)[: len(data)]
    if os.pwritev(file, [view], first * BLOCK) != len(data):
        errors.append(f"a short write at block {first}")


def writer(number):
    choice = random.Random(number)
    # Memory of its own pages: aligned as O_DIRECT wants it.
    buffer = mmap.mmap(-1, LONGEST * BLOCK)
    done = 0
    try:
        while not os.path.exists(STOP):
            count = choice.randint(1, LONGEST)
            first = number * OWN + choice.randint(0, OWN - count)
            for block in range(first, first + count):
                versions[block] += 1
            write(buffer, first, count)
            done += 1
            if done % 8 == 0:
                os.fsync(file)
    except OSError as error:
        errors.append(repr(error))


file = os.open("/root/queue", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
buffer = mmap.mmap(-1, LONGEST * BLOCK)
for first in range(0, BLOCKS, LONGEST):
    write(buffer, first, LONGEST)
os.fsync(file)
threads = [threading.Thread(target=writer, args=(number,)) for number in range(WRITERS)]
for thread in threads:
    thread.start()
open("/run/ready", "w").close()
for thread in threads:
    thread.join()
os.fsync(file)
print("\n".join(errors) if errors else "ok", *versions, flush=True)

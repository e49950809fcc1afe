"""Writers that know in memory what must be on the disk, and the other way round.

counter.py WRITERS        run until /run/stop appears; then check everything, print what disagrees, or `ok`.

Each writer owns a file of SLOTS blocks and writes block k to slot k % SLOTS, with its number and a checksum in
it. Memory holds the number of the last block whose write was acknowledged. So the disk must hold exactly the
acknowledged blocks; the one after them only if it was under way. Writer 0 writes through the page cache with
fsync, all others with O_DIRECT. One thread counts in many pages of memory one after the other, one in SQLite.
"""
import mmap, os, sqlite3, struct, sys, threading, zlib

SLOTS, BLOCK, PAGES = 64, 4096, 256
STOP = "/run/stop"
errors = []


def complain(text):
    errors.append(text)


def block(writer, number):
    head = struct.pack("<QQ", writer, number)
    body = head * (BLOCK // 16 - 1)
    return body + struct.pack("<QQ", number, zlib.crc32(body))


def number_in(data, writer):
    body, (number, crc) = data[:-16], struct.unpack("<QQ", data[-16:])
    if zlib.crc32(body) != crc or struct.unpack("<Q", data[:8])[0] != writer:
        return None
    return number


def disk_writer(writer, acknowledged):
    path = f"/root/counter-{writer}"
    flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if writer else 0)
    file = os.open(path, flags, 0o600)
    # Memory of its own page: aligned as O_DIRECT wants it.
    buffer = mmap.mmap(-1, BLOCK)
    for slot in range(SLOTS):
        buffer[:] = block(writer, slot)
        os.pwritev(file, [buffer], slot * BLOCK)
    os.fsync(file)
    acknowledged[writer] = SLOTS - 1
    barrier.wait()
    number = SLOTS
    while not os.path.exists(STOP):
        at = number % SLOTS * BLOCK
        os.preadv(file, [buffer], at)
        found = number_in(buffer[:], writer)
        if found != number - SLOTS:
            complain(f"writer {writer}: before block {number} its slot holds {found}")
        buffer[:] = block(writer, number)
        os.pwritev(file, [buffer], at)
        if writer == 0 and number % 16 == 0:
            os.fsync(file)
        acknowledged[writer] = number
        number += 1
    os.fsync(file)
    os.close(file)


def check_disk(writer, last):
    with open(f"/root/counter-{writer}", "rb") as file:
        for slot in range(SLOTS):
            expected = last - (last - slot) % SLOTS
            found = number_in(file.read(BLOCK), writer)
            if found != expected:
                complain(f"writer {writer}: slot {slot} holds {found}, not {expected}")


def memory_counter(pages, steps):
    """Pages count one after the other: at any instant each is equal to the one before, or one less."""
    count = 0
    while not os.path.exists(STOP):
        count += 1
        for page in range(PAGES):
            struct.pack_into("<Q", pages, page * BLOCK, count)
            if page % 16 == 0:
                look(pages)
        steps[0] = count


def look(pages):
    """Any order of values but a falling staircase of one step is another instant's page."""
    values = [struct.unpack_from("<Q", pages, page * BLOCK)[0] for page in range(PAGES)]
    if sorted(values, reverse=True) != values or values[0] - values[-1] > 1:
        complain(f"memory disagrees: {values[0]} to {values[-1]}")


def database(committed):
    connection = sqlite3.connect("/root/counter.db", isolation_level=None)
    connection.execute("create table if not exists count (n integer)")
    connection.execute("delete from count")
    connection.execute("insert into count values (0)")
    number = 0
    while not os.path.exists(STOP):
        found = connection.execute("select n from count").fetchone()[0]
        if found != number:
            complain(f"the database holds {found}, {number} was committed")
        number += 1
        connection.execute("begin")
        connection.execute("update count set n = ?", (number,))
        connection.execute("commit")
        committed[0] = number
    connection.close()


def check_database(committed):
    connection = sqlite3.connect("/root/counter.db")
    verdict = connection.execute("pragma integrity_check").fetchone()[0]
    if verdict != "ok":
        complain(f"integrity_check: {verdict}")
    found = connection.execute("select n from count").fetchone()[0]
    if found != committed:
        complain(f"the database holds {found} at the end, {committed} was committed")


writers = int(sys.argv[1])
acknowledged, steps, committed = [0] * writers, [0], [0]
pages = mmap.mmap(-1, PAGES * BLOCK)
barrier = threading.Barrier(writers + 1)
bodies = [(disk_writer, (number, acknowledged)) for number in range(writers)]
bodies += [(memory_counter, (pages, steps)), (database, (committed,))]


def guarded(body, arguments):
    try:
        body(*arguments)
    except Exception as error:
        complain(f"{body.__name__}{arguments[:1]}: {error!r}")
        barrier.abort()


threads = [threading.Thread(target=guarded, args=pair) for pair in bodies]
for thread in threads:
    thread.start()
barrier.wait()
open("/run/ready", "w").close()
for thread in threads:
    thread.join()
look(pages)
for again in ("from the page cache", "from the disk"):
    for number in range(writers):
        check_disk(number, acknowledged[number])
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")
check_database(committed[0])
print("\n".join(errors[:20]) if errors else "ok", *acknowledged, steps[0], committed[0], flush=True)

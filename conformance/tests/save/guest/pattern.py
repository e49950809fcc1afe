"""Memory with a pattern that only this process knows, and what it says about it.

pattern.py MIB        fills so much memory, then serves /run/pattern.fifo, one command a line; answers go to
                      /run/pattern.answer, which appears whole.

hash        SHA-256 of all of it
pages N     N pages spread over all of it: guest physical address, SHA-256
change K    every seventh page gets another pattern, every eleventh becomes zero
"""
import ctypes, hashlib, mmap, os, struct, sys

PAGE = 4096
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size)


def pattern(page, key):
    return hashlib.sha256(b"%d %d" % (page, key)).digest() * (PAGE // 32)


for page in range(size // PAGE):
    memory[page * PAGE:(page + 1) * PAGE] = pattern(page, 0) if page % 5 else (b"smolvm %9d" % page) * 256


def address_of_memory():
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def physical(page):
    with open("/proc/self/pagemap", "rb") as file:
        file.seek((start // PAGE + page) * 8)
        entry, = struct.unpack("<Q", file.read(8))
    if not entry >> 63:
        raise RuntimeError(f"page {page} is not present")
    return (entry & ((1 << 55) - 1)) * PAGE


def sha(data):
    return hashlib.sha256(data).hexdigest()


def page_of(page):
    return memory[page * PAGE:(page + 1) * PAGE]


def answer(command, number):
    pages = size // PAGE
    if command == "hash":
        return sha(memory)
    if command == "pages":
        chosen = range(0, pages, max(1, pages // number))
        return "\n".join(f"{physical(page)} {sha(page_of(page))}" for page in chosen)
    if command == "change":
        for page in range(number % 7, pages, 7):
            memory[page * PAGE:(page + 1) * PAGE] = pattern(page, number)
        for page in range(number % 11, pages, 11):
            memory[page * PAGE:(page + 1) * PAGE] = bytes(PAGE)
        return "changed"
    raise RuntimeError(f"unknown command {command}")


start = address_of_memory()
os.mkfifo("/run/pattern.fifo")
open("/run/ready", "w").close()
while True:
    with open("/run/pattern.fifo") as fifo:
        words = fifo.readline().split()
    with open("/run/pattern.new", "w") as file:
        file.write(answer(words[0], int(words[1]) if len(words) > 1 else 0))
    os.rename("/run/pattern.new", "/run/pattern.answer")

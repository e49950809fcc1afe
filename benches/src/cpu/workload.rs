//! What the guests do.

use serde::Serialize;

/// What a workload is mostly made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// A machine's start.
    Boot,
    /// New processes, system calls, page faults, code that runs a few times.
    Forks,
    /// Loops in one process.
    Compute,
}

/// A script that is run some number of times in a shell.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it is made of.
    pub group: Group,
    /// The program that the image must have.
    pub(super) program: &'static str,
    /// Done once, before.
    prepare: &'static str,
    /// One repetition.
    body: &'static str,
}

impl Workload {
    /// All of them.
    pub fn all() -> &'static [Workload] {
        ALL
    }

    /// The script of so many repetitions.
    pub(super) fn script(&self, times: u32) -> String {
        let Self { prepare, body, .. } = self;
        format!("set -e\n{prepare}\ni=0\nwhile [ $i -lt {times} ]; do i=$((i + 1))\n{body}\ndone")
    }
}

const fn forks(name: &'static str, program: &'static str, body: &'static str) -> Workload {
    Workload {
        name,
        group: Group::Forks,
        program,
        prepare: "",
        body,
    }
}

const fn compute(name: &'static str, program: &'static str, body: &'static str) -> Workload {
    Workload {
        name,
        group: Group::Compute,
        program,
        prepare: "",
        body,
    }
}

const fn after(prepare: &'static str, workload: Workload) -> Workload {
    Workload {
        prepare,
        ..workload
    }
}

const ALL: &[Workload] = &[
    forks("fork and exec", "sh", "/bin/true; /bin/true; /bin/true; /bin/true; /bin/true"),
    forks("pipes", "sed", "echo a | cat | sed s/a/b/ | grep -q b"),
    forks("find", "find", "find /usr/lib /usr/share > /dev/null"),
    forks("python start", "python3", "python3 -c pass"),
    forks(
        "python imports",
        "python3",
        "python3 -c 'import asyncio, ctypes, decimal, email.message, http.server, json, sqlite3, unittest.mock, \
         urllib.request, xml.dom.minidom, zipfile'",
    ),
    after(
        "rm -rf /dev/shm/g; mkdir /dev/shm/g; cd /dev/shm/g; git init -q .\n\
         git config user.name a; git config user.email a@b",
        forks(
            "git",
            "git",
            "echo $i > file$((i % 10)); git add .; git commit -q -m $i; git log --oneline > /dev/null; git status -s",
        ),
    ),
    after(
        "printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(int c, char **v) { long s = 0; for (int i = 0; i < c; \
         i++) s += strtol(v[i], 0, 0); printf(\"%%ld\\\\n\", s); return 0; }\\n' > /dev/shm/a.c",
        forks("gcc", "gcc", "gcc -O2 -o /dev/shm/a /dev/shm/a.c"),
    ),
    compute(
        "python compute",
        "python3",
        "python3 -c '
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
assert fib(20) == 6765
d = {}
for i in range(60000): d[i % 1000] = d.get(i % 1000, 0) + i * i % 7
assert sum(sorted(d.values())) > 0'",
    ),
    compute(
        "json",
        "python3",
        "python3 -c '
import json
rows = [{\"id\": i, \"name\": str(i) * 3, \"values\": [i, i / 3, None, True]} for i in range(4000)]
for _ in range(3): assert json.loads(json.dumps(rows))[7][\"id\"] == 7'",
    ),
    compute(
        "re",
        "python3",
        "python3 -c '
import re
text = \"\".join(\"name%d = value-%d; # note %d\\n\" % (i, i * 7, i) for i in range(4000))
assert len(re.findall(r\"(\\w+)\\s*=\\s*([a-z]+)-(\\d+)\", text)) == 4000
assert len(re.sub(r\"[0-9]+\", lambda m: m[0][::-1], text)) == len(text)'",
    ),
    after(
        "head -c 8388608 /dev/zero > /dev/shm/zero",
        compute("sha256", "sha256sum", "sha256sum /dev/shm/zero > /dev/null"),
    ),
    compute(
        "sqlite",
        "python3",
        "python3 -c '
import sqlite3
base = sqlite3.connect(\":memory:\")
base.execute(\"create table t(a integer primary key, b text, c real)\")
base.executemany(\"insert into t values (?, ?, ?)\", ((i, str(i * 7919 % 10007), i / 3) for i in range(10000)))
base.execute(\"create index x on t(b)\")
assert base.execute(\"select count(*) from t where b like ?\", (\"%7\",)).fetchone()[0] > 0
assert base.execute(\"select sum(x.c * y.c) from t x join t y on x.b = y.b\").fetchone()[0] > 0'",
    ),
    compute(
        "sort",
        "sort",
        "seq 1 40000 | sed 's/.*\\(.\\)$/\\1&/' | sort | md5sum > /dev/null",
    ),
    compute(
        "zlib",
        "python3",
        "python3 -c '
import zlib
data = repr([(i, i * i % 1009) for i in range(20000)]).encode()
assert zlib.decompress(zlib.compress(data)) == data'",
    ),
    compute(
        "floating point",
        "python3",
        "python3 -c '
import math
x, v, s = 1.0, 0.0, 0.0
for i in range(60000):
    a = -x / (1.0 + abs(x) * 0.01)
    v += a * 0.001
    x += v * 0.001
    s += math.sqrt(x * x + v * v) + math.sin(x)
assert s > 0'",
    ),
    compute(
        "lua",
        "lua",
        "lua -e 'local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end assert(fib(24) == 46368)'",
    ),
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_are_not_parts_of_one_another() {
        for (n, a) in ALL.iter().enumerate() {
            for (m, b) in ALL.iter().enumerate() {
                assert!(n == m || a.name != b.name, "{}", a.name);
            }
        }
    }

    #[test]
    fn scripts_are_ones_that_a_shell_understands() {
        for workload in ALL {
            let output = Command::new("sh")
                .args(["-n", "-c", &workload.script(2)])
                .output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {said}", workload.name);
        }
    }

    #[test]
    fn a_script_repeats() {
        let workload = compute("one", "sh", "echo $i");
        let output = Command::new("sh")
            .args(["-c", &workload.script(3)])
            .output();
        assert_eq!(output.unwrap().stdout, b"1\n2\n3\n");
    }
}

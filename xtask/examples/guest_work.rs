//! What `boots` (see the library) lets a guest compute besides the work of busybox: a static program for
//! x86-64-v2 that prints `KEY = VALUE` lines, equal on every processor that computes right.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

const THREADS: u64 = 4;

fn main() {
    report("program integers", integers());
    report("program wide integers", wide_integers());
    report("program floats", floats());
    report("program single floats", single_floats());
    report("program conversions", conversions());
    report("program vectors", vectors());
    report("program text", text());
    report("program map", map());
    report("program threads", threads());
}

fn report(key: &str, digest: Digest) {
    println!("{key} = {:016x}", digest.0);
}

/// FNV-1a over 64-bit words, enough to show any difference.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self.0 ^= self.0 >> 29;
    }
}

/// The same numbers on every run (xorshift, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        black_box(self.0)
    }

    /// A finite number of any size up to 2^±300, either sign.
    fn next_float(&mut self) -> f64 {
        let bits = self.next();
        let exponent = 1023 - 300 + (bits >> 52) % 600;
        f64::from_bits(bits & 0x800f_ffff_ffff_ffff | exponent << 52)
    }
}

fn integers() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    for _ in 0..20_000 {
        let (a, b) = (numbers.next(), numbers.next());
        let shift = (b & 63) as u32;
        digest.add(a.wrapping_mul(b));
        digest.add(a / (b >> shift | 1));
        digest.add(((a as i64) % ((b as i64) >> shift | 1)) as u64);
        digest.add(a.rotate_left(shift) ^ (a as u32).rotate_right(shift) as u64);
        digest.add(u64::from(
            a.count_ones() + a.leading_zeros() + b.trailing_zeros(),
        ));
        digest.add(a.swap_bytes() ^ b.reverse_bits());
        digest.add(
            ((a as i16).wrapping_mul(b as i16) as i8)
                .unsigned_abs()
                .into(),
        );
        let (sum, carry) = a.overflowing_add(b);
        digest.add(sum.wrapping_add(carry.into()));
    }
    digest
}

fn wide_integers() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    for _ in 0..5_000 {
        let a = u128::from(numbers.next()) << 64 | u128::from(numbers.next());
        let b = u128::from(numbers.next()) << (numbers.next() & 63) | 1;
        for value in [
            a / b,
            a % b,
            a.wrapping_mul(b),
            a.wrapping_sub(b),
            a >> (b & 127),
        ] {
            digest.add(value as u64);
            digest.add((value >> 64) as u64);
        }
    }
    digest
}

fn floats() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    let special = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::MIN_POSITIVE,
        5e-324,
        f64::MAX,
    ];
    for round in 0..10_000 {
        let a = numbers.next_float();
        let b = match special.get(round % 64) {
            Some(value) => black_box(*value),
            None => numbers.next_float(),
        };
        let small = a.abs().sqrt() % 50.0;
        for value in [
            a + b,
            a - b,
            a * b,
            a / b,
            a.abs().sqrt(),
            a.max(b),
            small.sin(),
            small.cos(),
            small.exp(),
            a.abs().ln(),
            small.powf(1.7),
            small.floor() + small.ceil() + small.round() + small.trunc(),
        ] {
            digest.add(canonical(value));
        }
        digest.add(a.total_cmp(&b) as i8 as u64 ^ u64::from(a < b));
    }
    digest
}

/// The bits of a number; all that are none count as equal, since Rust leaves their bits open.
fn canonical(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        value.to_bits()
    }
}

fn single_floats() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    for _ in 0..10_000 {
        let (a, b) = (
            numbers.next_float() as f32,
            (numbers.next() as u32 as f32) / 3.0,
        );
        for value in [
            a + b,
            a * b,
            a / b,
            b.sqrt(),
            b.sin(),
            b.ln(),
            a.mul_add(b, 1.5),
        ] {
            digest.add(canonical(value.into()));
        }
    }
    digest
}

fn conversions() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    for _ in 0..10_000 {
        let (number, float) = (numbers.next(), numbers.next_float());
        digest.add((number as f64).to_bits());
        digest.add((number as i64 as f64).to_bits());
        digest.add(u64::from((number as f32).to_bits()));
        digest.add(float as u64 ^ float as i64 as u64);
        digest.add((float as i32 as u64) << 32 | u64::from(float as u8));
    }
    digest
}

/// Loops that a compiler turns into SSE instructions.
fn vectors() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    let mut words = [0_u32; 1024];
    let mut bytes = [0_u8; 1024];
    let mut floats = [0.0_f64; 1024];
    for round in 0..100_u32 {
        for index in 0..words.len() {
            words[index] = numbers.next() as u32;
            bytes[index] = numbers.next() as u8;
            floats[index] = numbers.next_float();
        }
        let multiplied = words.map(|word| word.wrapping_mul(0x9e37_79b9).min(word ^ round));
        let saturated = bytes.map(|byte| byte.saturating_add(77).max(byte.wrapping_sub(9)));
        let signed = bytes.map(|byte| i32::from(byte as i8).abs());
        let halves = floats.map(|float| (float * 0.5).floor());
        multiplied
            .iter()
            .for_each(|word| digest.add((*word).into()));
        saturated.iter().for_each(|byte| digest.add((*byte).into()));
        digest.add(signed.iter().sum::<i32>() as u64);
        halves.iter().for_each(|float| digest.add(float.to_bits()));
    }
    digest
}

fn text() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    let mut line = String::new();
    for _ in 0..3_000 {
        line.clear();
        let float = numbers.next_float();
        // Writing to a string cannot fail.
        let _written = write!(line, "{float:e} {float:.3} {}", numbers.next());
        line.bytes().for_each(|byte| digest.add(byte.into()));
        let shortest = line.split(' ').next().unwrap_or_default();
        digest.add(shortest.parse::<f64>().map_or(0, f64::to_bits));
    }
    digest
}

fn map() -> Digest {
    let (mut digest, mut numbers) = (Digest::new(), Numbers::new());
    let mut map = BTreeMap::new();
    for index in 0..20_000_u64 {
        map.insert(numbers.next() % 10_000, index);
    }
    let mut values: Vec<u64> = map.iter().map(|(key, value)| key * value).collect();
    values.sort_unstable();
    values.iter().for_each(|value| digest.add(*value));
    digest
}

/// Atomic operations, locks and wake-ups: what is computed does not depend on the order.
fn threads() -> Digest {
    let (counter, sum) = (AtomicU64::new(0), Mutex::new(0_u128));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sender, counter, sum) = (sender.clone(), &counter, &sum);
            scope.spawn(move || {
                for step in 0..2_000_u64 {
                    counter.fetch_add(step ^ thread, Ordering::Relaxed);
                    if let Ok(mut sum) = sum.lock() {
                        *sum += u128::from(step * thread);
                    }
                    if step % 100 == 0 {
                        // The receiver lives until all threads have ended.
                        let _received = sender.send(step + thread);
                    }
                }
            });
        }
    });
    drop(sender);
    let mut digest = Digest::new();
    digest.add(counter.load(Ordering::Relaxed));
    digest.add(sum.into_inner().map_or(0, |sum| sum as u64));
    digest.add(receiver.iter().sum());
    digest
}

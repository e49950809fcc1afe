//! Bodies for disks: anything under a virtual block device, at least 1 MiB long and of zeros.
//!
//! [`block_suite!`](crate::block_suite) lists them all. Crashes, faults and layers are tested by
//! `cow-disk` itself.

use std::thread;

use vmm_core::host_side::BlockBackend;

/// Makes one `#[test]` of each body, on a disk that `$make` makes: a function that returns a
/// `Box<dyn BlockBackend>`.
#[macro_export]
macro_rules! block_suite {
    ($make:ident) => {
        $crate::block_suite! { $make =>
            a_new_disk_is_zero,
            what_is_written_reads_back,
            accesses_beyond_the_end_change_nothing,
            zeroes_are_exact,
            a_discard_leaves_the_rest_alone,
            threads_do_not_disturb_each_other,
            random_requests_agree_with_an_array,
        }
    };
    ($make:ident => $($body:ident,)*) => {
        $(
            #[test]
            fn $body() {
                $crate::block::$body(&*$make());
            }
        )*
    };
}

/// Bytes of each disk that bodies use.
const USED: u64 = 1 << 20;

fn read(disk: &dyn BlockBackend, at: u64, bytes: u64) -> Vec<u8> {
    // Not zero, so that a read that fills nothing is noticed.
    let mut buffer = vec![0xa5; bytes as usize];
    disk.read_at(at, &mut buffer)
        .expect("a read inside the disk");
    buffer
}

fn write(disk: &dyn BlockBackend, at: u64, data: &[u8]) {
    disk.write_at(at, data).expect("a write inside the disk");
}

/// All of it reads as zero.
pub fn a_new_disk_is_zero(disk: &dyn BlockBackend) {
    assert!(!disk.read_only());
    assert_eq!(disk.size_bytes() % 512, 0);
    assert!(disk.size_bytes() >= USED);
    assert!(read(disk, 0, USED).iter().all(|byte| *byte == 0));
}

/// At once, after a flush, in parts and as a whole; neighbours stay.
pub fn what_is_written_reads_back(disk: &dyn BlockBackend) {
    let size = disk.size_bytes();
    for (at, bytes) in [
        (0, 512),
        (3 * 512, 4096),
        (0x1_0000 - 512, 1024),
        (size - 512, 512),
    ] {
        let data: Vec<u8> = (0..bytes).map(|n| (n * 7 + at) as u8 | 1).collect();
        write(disk, at, &data);
        assert_eq!(read(disk, at, bytes), data);
        disk.flush().expect("a flush");
        assert_eq!(read(disk, at + 256, bytes - 256), data[256..]);
    }
    assert_eq!(read(disk, 512, 1024), vec![0; 1024], "between the writes");
    assert_eq!(
        read(disk, size - 1024, 512),
        vec![0; 512],
        "before the last sector"
    );
}

/// Requests that reach beyond the disk are refused, also where the end overflows.
pub fn accesses_beyond_the_end_change_nothing(disk: &dyn BlockBackend) {
    let size = disk.size_bytes();
    write(disk, size - 512, &[7; 512]);
    for at in [size - 511, size, u64::MAX - 100] {
        let mut buffer = [0; 512];
        assert!(disk.read_at(at, &mut buffer).is_err(), "a read at {at}");
        assert!(disk.write_at(at, &[9; 512]).is_err(), "a write at {at}");
        assert!(disk.discard(at, 512).is_err(), "a discard at {at}");
        assert!(disk.write_zeroes(at, 512).is_err(), "zeroes at {at}");
    }
    assert_eq!(disk.size_bytes(), size);
    assert_eq!(read(disk, size - 512, 512), [7; 512]);
}

/// Exactly the range becomes zero, aligned or not.
pub fn zeroes_are_exact(disk: &dyn BlockBackend) {
    write(disk, 0, &vec![3; 0x4_0000]);
    for (at, bytes) in [(0x1000, 0x1000), (0x8200, 0x600), (0x1_0e00, 0x1_1400)] {
        disk.write_zeroes(at, bytes)
            .expect("zeroes inside the disk");
        assert_eq!(read(disk, at, bytes), vec![0; bytes as usize]);
        assert_eq!(read(disk, at - 512, 512), [3; 512], "before {at:#x}");
        assert_eq!(read(disk, at + bytes, 512), [3; 512], "behind {at:#x}");
    }
}

/// What is given up reads as zero or as before, everything else as before.
pub fn a_discard_leaves_the_rest_alone(disk: &dyn BlockBackend) {
    write(disk, 0, &vec![5; 0x4_0000]);
    for (at, bytes) in [(0x1_0000, 0x1_0000), (0x2_0200, 0x2400)] {
        disk.discard(at, bytes).expect("a discard inside the disk");
        assert!(
            read(disk, at, bytes)
                .iter()
                .all(|byte| [0, 5].contains(byte))
        );
        assert_eq!(read(disk, at - 512, 512), [5; 512], "before {at:#x}");
        assert_eq!(read(disk, at + bytes, 512), [5; 512], "behind {at:#x}");
        write(disk, at, &[6; 512]);
        assert_eq!(read(disk, at, 512), [6; 512], "used again");
    }
}

/// Neighbouring sectors written by several threads, each of which sees its own.
pub fn threads_do_not_disturb_each_other(disk: &dyn BlockBackend) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 64;
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let at = (round * THREADS + number) * 512;
                    let data = [(round * THREADS + number) as u8 | 1; 512];
                    write(disk, at, &data);
                    if round % 16 == 0 {
                        disk.flush().expect("a flush");
                    }
                    assert_eq!(read(disk, at, 512), data);
                }
            });
        }
    });
    for sector in 0..THREADS * ROUNDS {
        assert_eq!(read(disk, sector * 512, 512), [sector as u8 | 1; 512]);
    }
}

/// A thousand requests, compared with an array that does the same.
pub fn random_requests_agree_with_an_array(disk: &dyn BlockBackend) {
    let mut model = vec![0_u8; USED as usize];
    // Xorshift; a fixed seed, so that a failure comes again.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for number in 0..1000 {
        let at = random(USED / 512 - 64) * 512;
        let bytes = (1 + random(64)) * 512;
        let range = at as usize..(at + bytes) as usize;
        match random(4) {
            0 => {
                disk.write_zeroes(at, bytes)
                    .expect("zeroes inside the disk");
                model[range.clone()].fill(0);
            }
            1 => disk.flush().expect("a flush"),
            _ => {
                let data = vec![random(256) as u8; bytes as usize];
                write(disk, at, &data);
                model[range.clone()].copy_from_slice(&data);
            }
        }
        assert!(read(disk, at, bytes) == model[range], "request {number}");
    }
    assert!(read(disk, 0, USED) == model);
}

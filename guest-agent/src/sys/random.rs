//! The kernel's random pool, `linux/random.h`.
#![allow(unsafe_code)] // ioctls on /dev/urandom

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOW('R', 0x03, int[2])`
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
/// `_IO('R', 0x07)`
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

fn device() -> io::Result<File> {
    File::options().write(true).open("/dev/urandom")
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Mixes `seed` in and counts each of its bits as random; needs `CAP_SYS_ADMIN`.
pub(crate) fn credit(seed: &[u8]) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = i32::try_from(seed.len()).map_err(too_long)?;
    let bits = length.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
    // struct rand_pool_info: two ints, then the bytes, padded to whole words.
    let mut words = vec![0i32; 2 + seed.len().div_ceil(4)];
    words[0] = bits;
    words[1] = length;
    for (word, bytes) in words[2..].iter_mut().zip(seed.chunks(4)) {
        let mut whole = [0; 4];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = i32::from_le_bytes(whole);
    }
    let device = device()?;
    // SAFETY: `words` is a rand_pool_info with `length` bytes behind its header, alive during the
    // call, and the kernel only reads it.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, words.as_ptr()) })
}

/// Makes the generator draw a new key from the pool at once.
pub(crate) fn reseed() -> io::Result<()> {
    let device = device()?;
    // SAFETY: this request takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG) })
}

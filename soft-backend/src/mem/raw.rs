//! Raw access to guest memory: the one place where host pointers into guest RAM are followed.
#![allow(unsafe_code)] // guest RAM is shared with device threads and reached by pointer

use crate::int::Int;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// A host address of guest RAM, valid for the width it was asked for. Made only from a
/// region's base, so that the rest of the crate stays free of `unsafe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPtr(usize);

impl HostPtr {
    /// # Safety
    ///
    /// `addr` must lie in a mapping of guest RAM that outlives the CPU, with at least the bytes up
    /// to the end of its 4 KiB page mapped; accesses through it must not cross that page.
    pub(crate) unsafe fn new(addr: usize) -> Self {
        HostPtr(addr)
    }

    /// The address.
    pub(crate) fn addr(self) -> usize {
        self.0
    }

    /// Moves within the page: the caller keeps the offset inside.
    #[inline(always)]
    pub(crate) fn add(self, n: usize) -> Self {
        HostPtr(self.0 + n)
    }

    /// A translation's result: the pointer that a valid TLB entry stands for.
    #[inline(always)]
    pub(crate) fn from_tlb(addend: usize, va: u64) -> Self {
        HostPtr(addend.wrapping_add(va as usize))
    }

    /// Reads; whole when naturally aligned.
    #[inline(always)]
    pub(crate) fn load<T: Int>(self) -> T {
        // SAFETY: see `new`; guest RAM may change under us, so nothing is assumed of the value.
        // A relaxed atomic is used where it exists, an unaligned read elsewhere (which may tear,
        // as it may on hardware).
        let v = unsafe {
            match T::BYTES {
                1 => u64::from((*(self.0 as *const AtomicU8)).load(Ordering::Relaxed)),
                2 if self.0 & 1 == 0 => {
                    u64::from((*(self.0 as *const AtomicU16)).load(Ordering::Relaxed))
                }
                2 => u64::from((self.0 as *const u16).read_unaligned()),
                4 if self.0 & 3 == 0 => {
                    u64::from((*(self.0 as *const AtomicU32)).load(Ordering::Relaxed))
                }
                4 => u64::from((self.0 as *const u32).read_unaligned()),
                _ if self.0 & 7 == 0 => (*(self.0 as *const AtomicU64)).load(Ordering::Relaxed),
                _ => (self.0 as *const u64).read_unaligned(),
            }
        };
        T::cut(v)
    }

    /// Writes; whole when naturally aligned. Release order, so that what the guest wrote before is
    /// seen before (the guest's memory model is x86's).
    #[inline(always)]
    pub(crate) fn store<T: Int>(self, v: T) {
        let v = v.u64();
        // SAFETY: as for `load`.
        unsafe {
            match T::BYTES {
                1 => (*(self.0 as *const AtomicU8)).store(v as u8, Ordering::Release),
                2 if self.0 & 1 == 0 => {
                    (*(self.0 as *const AtomicU16)).store(v as u16, Ordering::Release);
                }
                2 => (self.0 as *mut u16).write_unaligned(v as u16),
                4 if self.0 & 3 == 0 => {
                    (*(self.0 as *const AtomicU32)).store(v as u32, Ordering::Release);
                }
                4 => (self.0 as *mut u32).write_unaligned(v as u32),
                _ if self.0 & 7 == 0 => {
                    (*(self.0 as *const AtomicU64)).store(v, Ordering::Release);
                }
                _ => (self.0 as *mut u64).write_unaligned(v),
            }
        }
    }

    /// Compare and exchange: `Ok` if `old` was there and is now `new`, else what was there.
    /// Atomic when naturally aligned; otherwise atomic only against other vCPUs (which do not run
    /// at the same time).
    pub(crate) fn compare_exchange<T: Int>(self, old: T, new: T) -> Result<(), T> {
        if self.0 as u64 & (T::BYTES - 1) != 0 {
            fence(Ordering::SeqCst);
            let now = self.load::<T>();
            if now != old {
                return Err(now);
            }
            self.store(new);
            fence(Ordering::SeqCst);
            return Ok(());
        }
        let (o, n) = (old.u64(), new.u64());
        const S: Ordering = Ordering::SeqCst;
        // SAFETY: as for `load`, and the address is aligned.
        let r = unsafe {
            match T::BYTES {
                1 => (*(self.0 as *const AtomicU8))
                    .compare_exchange(o as u8, n as u8, S, S)
                    .map_err(u64::from)
                    .map(u64::from),
                2 => (*(self.0 as *const AtomicU16))
                    .compare_exchange(o as u16, n as u16, S, S)
                    .map_err(u64::from)
                    .map(u64::from),
                4 => (*(self.0 as *const AtomicU32))
                    .compare_exchange(o as u32, n as u32, S, S)
                    .map_err(u64::from)
                    .map(u64::from),
                _ => (*(self.0 as *const AtomicU64)).compare_exchange(o, n, S, S),
            }
        };
        r.map(|_| ()).map_err(T::cut)
    }

    /// As [`HostPtr::compare_exchange`] for 16 aligned bytes. Atomic on hosts with x86-64 and CMPXCHG16B, which
    /// all but the first processors have; elsewhere a device's write between may be lost.
    pub(crate) fn compare_exchange_wide(self, old: u128, new: u128) -> Result<(), u128> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("cmpxchg16b") {
            // SAFETY: as for `load`; the caller has aligned the address, and the feature is there.
            let now = unsafe { cmpxchg16b(self.0 as *mut u128, old, new) };
            return if now == old { Ok(()) } else { Err(now) };
        }
        fence(Ordering::SeqCst);
        let high = self.add(8);
        let now = u128::from(self.load::<u64>()) | u128::from(high.load::<u64>()) << 64;
        if now == old {
            self.store(new as u64);
            high.store((new >> 64) as u64);
        }
        fence(Ordering::SeqCst);
        if now == old { Ok(()) } else { Err(now) }
    }

    /// Copies `bytes.len()` bytes out of guest memory (within the page).
    pub(crate) fn copy_out(self, bytes: &mut [u8]) {
        // SAFETY: see `new`; the source is guest memory, the destination is ours.
        unsafe {
            std::ptr::copy(self.0 as *const u8, bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Copies `n` bytes from one page run to another, as `memmove` does.
    pub(crate) fn copy_to(self, to: HostPtr, n: usize) {
        // SAFETY: both runs are inside one page each.
        unsafe { std::ptr::copy(self.0 as *const u8, to.0 as *mut u8, n) }
    }

    /// Fills `count` elements with `v`.
    pub(crate) fn fill<T: Int>(self, v: T, count: usize) {
        if T::BYTES == 1 {
            // SAFETY: the run is inside one page.
            unsafe { std::ptr::write_bytes(self.0 as *mut u8, v.u64() as u8, count) }
            return;
        }
        for i in 0..count {
            self.add(i * T::BYTES as usize).store(v);
        }
    }
}

/// The pointer to the start of a region of RAM. Whoever holds it keeps `ram` as well.
pub(crate) fn region_base(ram: &vmm_core::ram::GuestRam, index: usize) -> Option<HostPtr> {
    let (base, _) = ram.host_region(index)?;
    // SAFETY: the region is mapped as long as a clone of `ram` lives, and the caller keeps one;
    // regions are whole pages.
    Some(unsafe { HostPtr::new(base as usize) })
}

/// The host's instruction; gives what was there. (The standard library's function of the name wants a
/// run-time library where it is not inlined.)
///
/// # Safety
///
/// `there` is aligned and may be written; the host has the feature.
#[cfg(target_arch = "x86_64")]
unsafe fn cmpxchg16b(there: *mut u128, old: u128, new: u128) -> u128 {
    let (mut low, mut high) = (old as u64, (old >> 64) as u64);
    // SAFETY: the caller's; RBX, which asm cannot take, is as it was afterwards.
    unsafe {
        std::arch::asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b [rdi]",
            "mov rbx, rsi",
            in("rdi") there,
            inout("rsi") new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    u128::from(low) | u128::from(high) << 64
}

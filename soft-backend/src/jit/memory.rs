//! Memory for translated code: the same pages mapped twice, writable here and executable there.
#![allow(unsafe_code)] // mappings are made and written by pointer

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod host {
    use std::io;
    use std::ptr::{self, NonNull};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    /// Code memory. No page of it is ever writable and executable at one address.
    pub(crate) struct CodeMemory {
        write: NonNull<u8>,
        exec: NonNull<u8>,
        bytes: usize,
    }

    // SAFETY: the mappings belong to the value, and nothing of them belongs to a thread.
    unsafe impl Send for CodeMemory {}

    impl CodeMemory {
        /// So many bytes, a multiple of the page size.
        pub(crate) fn new(bytes: usize) -> io::Result<Self> {
            let file = match memfd_create("code", MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
                // Kernels before 6.3 do not know the flag.
                Err(rustix::io::Errno::INVAL) => memfd_create("code", MemfdFlags::CLOEXEC)?,
                other => other?,
            };
            ftruncate(&file, bytes as u64)?;
            let map = |prot| {
                // SAFETY: a new mapping at an address of the kernel's choice.
                let at = unsafe { mmap(ptr::null_mut(), bytes, prot, MapFlags::SHARED, &file, 0) }?;
                NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory.into())
            };
            let write: NonNull<u8> = map(ProtFlags::READ | ProtFlags::WRITE)?;
            match map(ProtFlags::READ | ProtFlags::EXEC) {
                Ok(exec) => Ok(CodeMemory { write, exec, bytes }),
                Err(error) => {
                    // SAFETY: mapped above, and nobody else has the address.
                    unsafe { munmap(write.as_ptr().cast(), bytes)? };
                    Err(error)
                }
            }
        }

        /// Where the code runs.
        pub(crate) fn base(&self) -> u64 {
            self.exec.as_ptr() as u64
        }

        pub(crate) fn len(&self) -> usize {
            self.bytes
        }

        /// Writes code; it must fit.
        pub(crate) fn put(&mut self, at: usize, code: &[u8]) {
            assert!(at <= self.bytes && code.len() <= self.bytes - at);
            // SAFETY: inside the writable mapping, by the assertion; `&mut self`, and no translated code runs.
            unsafe {
                ptr::copy_nonoverlapping(code.as_ptr(), self.write.as_ptr().add(at), code.len())
            }
        }
    }

    impl Drop for CodeMemory {
        fn drop(&mut self) {
            for at in [self.write, self.exec] {
                // SAFETY: mapped by `new`; code in it runs only while the value is borrowed.
                if let Err(error) = unsafe { munmap(at.as_ptr().cast(), self.bytes) } {
                    tracing::error!(%error, "memory of translated code cannot be unmapped");
                }
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod host {
    use std::io;

    /// There is none on this host.
    pub(crate) enum CodeMemory {}

    impl CodeMemory {
        pub(crate) fn new(_: usize) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn base(&self) -> u64 {
            match *self {}
        }

        pub(crate) fn len(&self) -> usize {
            match *self {}
        }

        pub(crate) fn put(&mut self, _: usize, _: &[u8]) {
            match *self {}
        }
    }
}

pub(crate) use host::CodeMemory;

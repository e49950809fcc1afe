#![allow(unsafe_code)] // memory slots, an ioctl that kvm-ioctls lacks, fields of kvm_run

use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::{
    KVM_MEM_LOG_DIRTY_PAGES, KVMIO, Xsave, kvm_clear_dirty_log, kvm_clear_dirty_log__bindgen_ty_1,
    kvm_userspace_memory_region, kvm_xsave,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vmm_core::ram::GuestRam;

/// `_IOWR(KVMIO, 0xc0, struct kvm_clear_dirty_log)` (linux/kvm.h).
const KVM_CLEAR_DIRTY_LOG: libc::c_ulong = 3 << 30
    | (size_of::<kvm_clear_dirty_log>() as libc::c_ulong) << 16
    | (KVMIO as libc::c_ulong) << 8
    | 0xc0;

/// Maps every region of `ram` into the VM, region N as slot N.
pub(super) fn map_ram(vm: &VmFd, ram: &GuestRam, log_dirty: bool) -> Result<(), kvm_ioctls::Error> {
    for (index, region) in ram.layout().regions().iter().enumerate() {
        let Some((host, bytes)) = ram.host_region(index) else {
            continue;
        };
        let slot = kvm_userspace_memory_region {
            slot: index as u32,
            flags: if log_dirty {
                KVM_MEM_LOG_DIRTY_PAGES
            } else {
                0
            },
            guest_phys_addr: region.start.0,
            memory_size: bytes,
            userspace_addr: host as u64,
        };
        // SAFETY: the host range is one mapping of `bytes` bytes that the VM keeps alive by holding
        // a clone of `ram`; slots do not overlap since the layout's regions do not.
        unsafe { vm.set_user_memory_region(slot)? };
    }
    Ok(())
}

/// Re-arms the pages of `slot` that are set in `bitmap`, one bit per page from the slot's start.
pub(super) fn clear_dirty_log(
    vm: &VmFd,
    slot: u32,
    pages: usize,
    bitmap: &mut [u64],
) -> io::Result<()> {
    let request = kvm_clear_dirty_log {
        slot,
        num_pages: pages as u32,
        first_page: 0,
        __bindgen_anon_1: kvm_clear_dirty_log__bindgen_ty_1 {
            dirty_bitmap: bitmap.as_mut_ptr().cast(),
        },
    };
    debug_assert!(bitmap.len() * 64 >= pages);
    // SAFETY: the request names a bitmap with at least `pages` bits that outlives the call; the
    // kernel only reads it.
    let result = unsafe { libc::ioctl(vm.as_raw_fd(), KVM_CLEAR_DIRTY_LOG, &raw const request) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Size in bytes of one element of the port access that the vCPU just left for.
pub(super) fn port_access_bytes(vcpu: &mut VcpuFd) -> usize {
    let run = vcpu.get_kvm_run();
    // SAFETY: called after an IO exit only, when the kernel has filled in the `io` member.
    let size = unsafe { run.__bindgen_anon_1.io.size };
    usize::from(size.clamp(1, 4))
}

/// Reads the XSAVE area into `xsave`, whose length is what `KVM_CAP_XSAVE2` reports.
pub(super) fn get_xsave2(vcpu: &VcpuFd, xsave: &mut Xsave) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: `xsave` was made with room for the size that the kernel reports for this VM.
    unsafe { vcpu.get_xsave2(xsave) }
}

/// Loads the XSAVE area.
pub(super) fn set_xsave2(vcpu: &VcpuFd, xsave: &Xsave) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: as for `get_xsave2`.
    unsafe { vcpu.set_xsave2(xsave) }
}

/// The bytes of an XSAVE area.
pub(super) fn xsave_bytes(xsave: &Xsave) -> Vec<u8> {
    let fixed = &xsave.as_fam_struct_ref().xsave.region;
    let extra = xsave.as_slice();
    fixed
        .iter()
        .chain(extra)
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

/// Fills an XSAVE area from bytes; what is missing is zero.
pub(super) fn fill_xsave(xsave: &mut Xsave, bytes: &[u8]) {
    let mut words = bytes.chunks(4).map(|chunk| {
        let mut raw = [0; 4];
        raw[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(raw)
    });
    // SAFETY: only the fixed part's contents change, not the length of the variable part.
    let fixed: &mut kvm_xsave = unsafe { &mut xsave.as_mut_fam_struct().xsave };
    fixed.region.fill_with(|| words.next().unwrap_or(0));
    xsave.as_mut_slice().fill_with(|| words.next().unwrap_or(0));
}

/// Port, data and direction of the port access that the vCPU just left for. The data stays in the
/// memory that is shared with the kernel: what is written there by a read is what the guest gets.
pub(super) fn port_access_data(vcpu: &mut VcpuFd) -> (u16, &mut [u8], bool) {
    let run = vcpu.get_kvm_run();
    let base: *mut u8 = std::ptr::from_mut(run).cast();
    // SAFETY: called after an IO exit only, when the kernel has filled in the `io` member.
    let io = unsafe { run.__bindgen_anon_1.io };
    let bytes = usize::from(io.size) * io.count as usize;
    // SAFETY: the kernel places `count` elements of `size` bytes at `data_offset` within the
    // mapping of kvm_run (api.rst, KVM_EXIT_IO); the borrow of `vcpu` keeps it alive and unshared.
    let data = unsafe { std::slice::from_raw_parts_mut(base.add(io.data_offset as usize), bytes) };
    (
        io.port,
        data,
        u32::from(io.direction) == kvm_bindings::KVM_EXIT_IO_OUT,
    )
}

use std::io;

use vmm_core::ram::PAGE_BYTES;
use vmm_core::tracker::{DirtyLog, TrackerError};

use super::raw;
use super::vm::KvmVm;

impl DirtyLog for KvmVm {
    fn start(&self) -> Result<(), TrackerError> {
        raw::map_ram(self.fd(), self.ram(), true).map_err(host("KVM_SET_USER_MEMORY_REGION"))
    }

    fn stop(&self) -> Result<(), TrackerError> {
        raw::map_ram(self.fd(), self.ram(), false).map_err(host("KVM_SET_USER_MEMORY_REGION"))
    }

    fn take(&self, region: usize, into: &mut [u64]) -> Result<(), TrackerError> {
        let Some(bytes) = self
            .ram()
            .layout()
            .regions()
            .get(region)
            .map(|region| region.bytes)
        else {
            return Ok(());
        };
        let slot = region as u32;
        let mut dirty = self
            .fd()
            .get_dirty_log(slot, bytes as usize)
            .map_err(host("KVM_GET_DIRTY_LOG"))?;
        if self.manual_protection() && dirty.iter().any(|word| *word != 0) {
            let pages = (bytes / PAGE_BYTES) as usize;
            raw::clear_dirty_log(self.fd(), slot, pages, &mut dirty).map_err(|source| {
                TrackerError::Host {
                    operation: "KVM_CLEAR_DIRTY_LOG",
                    source,
                }
            })?;
        }
        for (out, word) in into.iter_mut().zip(dirty) {
            *out |= word;
        }
        Ok(())
    }
}

fn host(operation: &'static str) -> impl Fn(kvm_ioctls::Error) -> TrackerError {
    move |error| TrackerError::Host {
        operation,
        source: io::Error::from_raw_os_error(error.errno()),
    }
}

//! x87, SSE and larger registers, component by component, to and from KVM's XSAVE area.

use kvm_bindings::{Xsave, kvm_xsave};
use kvm_ioctls::VcpuFd;
use vmm_core::hypervisor::HypervisorError;
use vmm_core::x86::{CpuidTable, XSAVE_SSE_BYTES, XSAVE_X87_BYTES, XsaveComponent};

use super::{host_error, raw};

/// Offset of XSTATE_BV in the XSAVE header (Intel SDM volume 1, 13.4.2).
const XSTATE_BV_OFFSET: usize = 512;
/// Length in bytes of the legacy area and the header.
const HEADER_END: usize = 576;
/// MXCSR_MASK says what the host's MXCSR may hold; it is no guest state.
const MXCSR_MASK: std::ops::Range<usize> = 28..32;
/// CPUID leaf that sizes the components.
const XSAVE_LEAF: u32 = 0xd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Component {
    index: u8,
    offset: usize,
    bytes: usize,
}

/// Where each component lies in the host's uncompacted XSAVE area.
#[derive(Debug, Clone)]
pub(super) struct XsaveLayout {
    components: Vec<Component>,
    area_bytes: usize,
}

impl XsaveLayout {
    /// The layout of a host with this CPUID; `kvm_bytes` is what KVM says of the area, 0 when it
    /// knows only the fixed 4 KiB.
    pub(super) fn new(host: &CpuidTable, kvm_bytes: usize) -> Self {
        let mut components = vec![
            Component {
                index: 0,
                offset: 0,
                bytes: XSAVE_X87_BYTES,
            },
            Component {
                index: 1,
                offset: XSAVE_X87_BYTES,
                bytes: XSAVE_SSE_BYTES,
            },
        ];
        let area_bytes = kvm_bytes.max(size_of::<kvm_xsave>());
        for index in 2..63_u8 {
            let Some(leaf) = host.get(XSAVE_LEAF, index.into()) else {
                continue;
            };
            let (offset, bytes) = (leaf.ebx as usize, leaf.eax as usize);
            let end = offset.saturating_add(bytes);
            if bytes > 0 && offset >= HEADER_END && end <= area_bytes {
                components.push(Component {
                    index,
                    offset,
                    bytes,
                });
            }
        }
        Self {
            components,
            area_bytes,
        }
    }

    /// The layout reduced to the components that a guest with this CPUID has.
    pub(super) fn for_guest(&self, guest: &CpuidTable) -> Self {
        let leaf = guest.get(XSAVE_LEAF, 0).copied().unwrap_or_default();
        let mask = u64::from(leaf.edx) << 32 | u64::from(leaf.eax) | 3;
        let has = |component: &&Component| mask >> component.index & 1 == 1;
        let components = self.components.iter().filter(has).copied().collect();
        Self {
            components,
            area_bytes: self.area_bytes,
        }
    }

    /// Reads all components.
    pub(super) fn read(&self, vcpu: &VcpuFd) -> Result<Vec<XsaveComponent>, HypervisorError> {
        let mut area = self.area()?;
        if self.is_large() {
            raw::get_xsave2(vcpu, &mut area).map_err(host_error("KVM_GET_XSAVE2"))?;
        } else {
            let fixed = vcpu.get_xsave().map_err(host_error("KVM_GET_XSAVE"))?;
            let bytes: Vec<u8> = fixed
                .region
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            raw::fill_xsave(&mut area, &bytes);
        }
        let mut bytes = raw::xsave_bytes(&area);
        bytes[MXCSR_MASK].fill(0);
        let read = |component: &Component| XsaveComponent {
            index: component.index,
            bytes: bytes[component.offset..component.offset + component.bytes].to_vec(),
        };
        Ok(self.components.iter().map(read).collect())
    }

    /// Loads components; those that are not listed get their initial values.
    pub(super) fn write(
        &self,
        vcpu: &VcpuFd,
        components: &[XsaveComponent],
    ) -> Result<(), HypervisorError> {
        let bytes = self.assemble(components)?;
        let mut area = self.area()?;
        raw::fill_xsave(&mut area, &bytes);
        raw::set_xsave2(vcpu, &area).map_err(host_error("KVM_SET_XSAVE"))
    }

    /// The uncompacted area that holds `components`.
    fn assemble(&self, components: &[XsaveComponent]) -> Result<Vec<u8>, HypervisorError> {
        let mut area = vec![0; self.area_bytes];
        let mut present = 0_u64;
        for component in components {
            let place = self
                .components
                .iter()
                .find(|place| place.index == component.index)
                .filter(|place| place.bytes == component.bytes.len())
                .ok_or_else(|| HypervisorError::State {
                    what: format!(
                        "XSAVE component {} of {} bytes does not exist here",
                        component.index,
                        component.bytes.len()
                    ),
                })?;
            area[place.offset..place.offset + place.bytes].copy_from_slice(&component.bytes);
            present |= 1 << component.index;
        }
        area[XSTATE_BV_OFFSET..XSTATE_BV_OFFSET + 8].copy_from_slice(&present.to_le_bytes());
        Ok(area)
    }

    fn is_large(&self) -> bool {
        self.area_bytes > size_of::<kvm_xsave>()
    }

    fn area(&self) -> Result<Xsave, HypervisorError> {
        let extra = self
            .area_bytes
            .saturating_sub(size_of::<kvm_xsave>())
            .div_ceil(4);
        Xsave::new(extra).map_err(|error| HypervisorError::State {
            what: format!("XSAVE area: {error:?}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use vmm_core::x86::CpuidEntry;

    use super::*;

    fn layout() -> XsaveLayout {
        let leaf = |subleaf, eax, ebx| CpuidEntry {
            leaf: XSAVE_LEAF,
            subleaf,
            indexed: true,
            eax,
            ebx,
            ..CpuidEntry::default()
        };
        XsaveLayout::new(&CpuidTable::new(vec![leaf(0, 7, 0), leaf(2, 256, 576)]), 0)
    }

    #[test]
    fn components_lie_at_their_offsets() {
        let area = layout()
            .assemble(&[XsaveComponent {
                index: 2,
                bytes: vec![7; 256],
            }])
            .unwrap();
        assert_eq!(area[576..832], [7; 256]);
        assert_eq!(area[XSTATE_BV_OFFSET], 4);
    }

    #[test]
    fn a_guest_without_xsave_has_x87_and_sse_only() {
        assert_eq!(layout().components.len(), 3);
        assert_eq!(
            layout().for_guest(&CpuidTable::default()).components.len(),
            2
        );
    }

    #[test]
    fn foreign_components_are_refused() {
        let wrong_size = XsaveComponent {
            index: 2,
            bytes: vec![0; 5],
        };
        assert!(layout().assemble(&[wrong_size]).is_err());
        let unknown = XsaveComponent {
            index: 9,
            bytes: vec![0; 8],
        };
        assert!(layout().assemble(&[unknown]).is_err());
    }
}

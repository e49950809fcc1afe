use kvm_bindings::{
    KVM_IRQ_ROUTING_MSI, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi, kvm_irq_routing_msi__bindgen_ty_1, kvm_msi,
};
use vmm_core::hypervisor::HypervisorError;
use vmm_core::irq::{MsiMessage, MsiSink};

use super::host_error;
use super::vm::KvmVm;

impl MsiSink for KvmVm {
    fn deliver(&self, message: MsiMessage) -> Result<(), HypervisorError> {
        let msi = kvm_msi {
            address_lo: message.address as u32,
            address_hi: (message.address >> 32) as u32,
            data: message.data,
            ..kvm_msi::default()
        };
        // Zero means that the guest blocked the interrupt (its local APIC is disabled): not an error.
        self.fd()
            .signal_msi(msi)
            .map(drop)
            .map_err(host_error("KVM_SIGNAL_MSI"))
    }

    /// With a split irqchip KVM reports the end of exactly those interrupts that are in its routing
    /// table and level-triggered.
    fn watch_level_messages(&self, messages: &[Option<MsiMessage>]) -> Result<(), HypervisorError> {
        let entries: Vec<kvm_irq_routing_entry> = messages
            .iter()
            .enumerate()
            .filter_map(|(pin, message)| message.map(|message| route(pin as u32, message)))
            .collect();
        let routing =
            KvmIrqRouting::from_entries(&entries).map_err(|error| HypervisorError::State {
                what: format!("interrupt routing: {error:?}"),
            })?;
        self.fd()
            .set_gsi_routing(&routing)
            .map_err(host_error("KVM_SET_GSI_ROUTING"))
    }
}

fn route(gsi: u32, message: MsiMessage) -> kvm_irq_routing_entry {
    kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_MSI,
        u: kvm_irq_routing_entry__bindgen_ty_1 {
            msi: kvm_irq_routing_msi {
                address_lo: message.address as u32,
                address_hi: (message.address >> 32) as u32,
                data: message.data,
                __bindgen_anon_1: kvm_irq_routing_msi__bindgen_ty_1::default(),
            },
        },
        ..kvm_irq_routing_entry::default()
    }
}

//! Pending events and run state, to and from KVM's structures.

use kvm_bindings::{
    KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE,
    KVM_MP_STATE_SIPI_RECEIVED, KVM_MP_STATE_UNINITIALIZED, KVM_VCPUEVENT_VALID_NMI_PENDING,
    KVM_VCPUEVENT_VALID_SHADOW, KVM_VCPUEVENT_VALID_SIPI_VECTOR, KVM_X86_SHADOW_INT_MOV_SS,
    KVM_X86_SHADOW_INT_STI, kvm_mp_state, kvm_vcpu_events,
};
use vmm_core::hypervisor::HypervisorError;
use vmm_core::x86::{InterruptShadow, MpState, PendingEvents, PendingException, PendingInterrupt};

pub(super) fn from_kvm(events: &kvm_vcpu_events) -> PendingEvents {
    let exception = &events.exception;
    let shadow = u32::from(events.interrupt.shadow);
    PendingEvents {
        exception: (exception.injected != 0 || exception.pending != 0).then(|| PendingException {
            vector: exception.nr,
            error_code: (exception.has_error_code != 0).then_some(exception.error_code),
            injected: exception.injected != 0,
        }),
        interrupt: (events.interrupt.injected != 0).then_some(PendingInterrupt {
            vector: events.interrupt.nr,
            soft: events.interrupt.soft != 0,
        }),
        shadow: InterruptShadow {
            sti: shadow & KVM_X86_SHADOW_INT_STI != 0,
            mov_ss: shadow & KVM_X86_SHADOW_INT_MOV_SS != 0,
        },
        nmi_injected: events.nmi.injected != 0,
        nmi_pending: events.nmi.pending != 0,
        nmi_masked: events.nmi.masked != 0,
        sipi_vector: events.sipi_vector as u8,
    }
}

pub(super) fn to_kvm(events: &PendingEvents) -> kvm_vcpu_events {
    let mut kvm = kvm_vcpu_events {
        sipi_vector: events.sipi_vector.into(),
        flags: KVM_VCPUEVENT_VALID_NMI_PENDING
            | KVM_VCPUEVENT_VALID_SIPI_VECTOR
            | KVM_VCPUEVENT_VALID_SHADOW,
        ..kvm_vcpu_events::default()
    };
    if let Some(exception) = events.exception {
        // Without KVM_CAP_EXCEPTION_PAYLOAD a waiting exception is delivered as an injected one.
        kvm.exception.injected = 1;
        kvm.exception.nr = exception.vector;
        kvm.exception.has_error_code = exception.error_code.is_some().into();
        kvm.exception.error_code = exception.error_code.unwrap_or(0);
    }
    if let Some(interrupt) = events.interrupt {
        kvm.interrupt.injected = 1;
        kvm.interrupt.nr = interrupt.vector;
        kvm.interrupt.soft = interrupt.soft.into();
    }
    if events.shadow.sti {
        kvm.interrupt.shadow |= KVM_X86_SHADOW_INT_STI as u8;
    }
    if events.shadow.mov_ss {
        kvm.interrupt.shadow |= KVM_X86_SHADOW_INT_MOV_SS as u8;
    }
    kvm.nmi.injected = events.nmi_injected.into();
    kvm.nmi.pending = events.nmi_pending.into();
    kvm.nmi.masked = events.nmi_masked.into();
    kvm
}

const MP_STATES: [(MpState, u32); 5] = [
    (MpState::Runnable, KVM_MP_STATE_RUNNABLE),
    (MpState::Uninitialized, KVM_MP_STATE_UNINITIALIZED),
    (MpState::InitReceived, KVM_MP_STATE_INIT_RECEIVED),
    (MpState::Halted, KVM_MP_STATE_HALTED),
    (MpState::SipiReceived, KVM_MP_STATE_SIPI_RECEIVED),
];

pub(super) fn mp_state_from_kvm(state: &kvm_mp_state) -> Result<MpState, HypervisorError> {
    let found = MP_STATES.iter().find(|(_, kvm)| *kvm == state.mp_state);
    found
        .map(|(state, _)| *state)
        .ok_or_else(|| unknown(state.mp_state))
}

pub(super) fn mp_state_to_kvm(state: MpState) -> Result<kvm_mp_state, HypervisorError> {
    let found = MP_STATES.iter().find(|(known, _)| *known == state);
    found
        .map(|(_, kvm)| kvm_mp_state { mp_state: *kvm })
        .ok_or_else(|| unknown(state.code().into()))
}

fn unknown(code: u32) -> HypervisorError {
    HypervisorError::State {
        what: format!("run state {code} is unknown"),
    }
}

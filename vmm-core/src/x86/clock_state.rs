/// kvm-clock of a VM at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockState {
    /// Nanoseconds that the guest has seen pass since it was started; does not advance while the
    /// guest is saved.
    pub guest_nanoseconds: u64,
}

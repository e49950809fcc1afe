/// Numbers of the MSRs that machine model 1 knows (Intel SDM volume 4; kernel documentation
/// `virt/kvm/x86/msr.rst` for the last group).
#[allow(missing_docs)] // the registers' own names
pub mod msr {
    pub const TSC: u32 = 0x10;
    pub const APIC_BASE: u32 = 0x1b;
    pub const SYSENTER_CS: u32 = 0x174;
    pub const SYSENTER_ESP: u32 = 0x175;
    pub const SYSENTER_EIP: u32 = 0x176;
    pub const MISC_ENABLE: u32 = 0x1a0;
    pub const PAT: u32 = 0x277;
    /// Bases and masks of the eight variable ranges in turn, to 0x20f.
    pub const MTRR_VARIABLE: std::ops::RangeInclusive<u32> = 0x200..=0x20f;
    /// Types of the first MiB, in pieces of 64, 16 and 4 KiB.
    pub const MTRR_FIXED: [u32; 11] = [
        0x250, 0x258, 0x259, 0x268, 0x269, 0x26a, 0x26b, 0x26c, 0x26d, 0x26e, 0x26f,
    ];
    pub const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub const EFER: u32 = 0xc000_0080;
    pub const STAR: u32 = 0xc000_0081;
    pub const LSTAR: u32 = 0xc000_0082;
    pub const CSTAR: u32 = 0xc000_0083;
    pub const SYSCALL_MASK: u32 = 0xc000_0084;
    pub const FS_BASE: u32 = 0xc000_0100;
    pub const GS_BASE: u32 = 0xc000_0101;
    pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
    pub const TSC_AUX: u32 = 0xc000_0103;
    pub const KVM_WALL_CLOCK: u32 = 0x4b56_4d00;
    pub const KVM_SYSTEM_TIME: u32 = 0x4b56_4d01;
}

/// The MSRs of a CPU profile, in the order in which they are loaded (the TSC first).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MsrList {
    numbers: Vec<u32>,
}

impl MsrList {
    /// The MSRs that every profile has. Points of before have no memory ranges in their own lists.
    pub fn model_1() -> Self {
        let mut numbers = vec![
            msr::TSC,
            msr::SYSENTER_CS,
            msr::SYSENTER_ESP,
            msr::SYSENTER_EIP,
            msr::MISC_ENABLE,
            msr::PAT,
            msr::MTRR_DEF_TYPE,
            msr::STAR,
            msr::LSTAR,
            msr::CSTAR,
            msr::SYSCALL_MASK,
            msr::KERNEL_GS_BASE,
            msr::KVM_WALL_CLOCK,
            msr::KVM_SYSTEM_TIME,
        ];
        numbers.extend(msr::MTRR_VARIABLE);
        numbers.extend(msr::MTRR_FIXED);
        Self { numbers }
    }

    /// A recorded list.
    pub fn from_numbers(numbers: Vec<u32>) -> Self {
        Self { numbers }
    }

    /// Adds an MSR unless it is there.
    pub fn with(mut self, number: u32) -> Self {
        if !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
        self
    }

    /// The numbers, in load order.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }
}

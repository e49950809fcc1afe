/// Most entries a CPUID table may have.
pub const MAX_CPUID_ENTRIES: usize = 256;

/// What CPUID answers for one leaf (and subleaf).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the registers' own names
pub struct CpuidEntry {
    /// The leaf, in EAX.
    pub leaf: u32,
    /// The subleaf, in ECX.
    pub subleaf: u32,
    /// Whether the subleaf matters; otherwise the entry answers all of them.
    pub indexed: bool,
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

/// All of CPUID: what is not listed reads as zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuidTable {
    entries: Vec<CpuidEntry>,
}

impl CpuidTable {
    /// A table of these entries.
    pub fn new(entries: Vec<CpuidEntry>) -> Self {
        Self { entries }
    }

    /// The entries in the order given.
    pub fn entries(&self) -> &[CpuidEntry] {
        &self.entries
    }

    /// The entries, to change them.
    pub fn entries_mut(&mut self) -> &mut Vec<CpuidEntry> {
        &mut self.entries
    }

    /// The entry for a leaf and subleaf.
    pub fn get(&self, leaf: u32, subleaf: u32) -> Option<&CpuidEntry> {
        self.entries
            .iter()
            .find(|entry| entry.leaf == leaf && (!entry.indexed || entry.subleaf == subleaf))
    }

    /// The table as vCPU number `apic_id` sees it: leaf 1 `EBX[31:24]`, leaves 0xB and 0x1F EDX, and
    /// leaf 0x8000_001E EAX hold the APIC id (Intel SDM volume 2, CPUID; AMD APM volume 3, E.4.17).
    pub fn for_vcpu(&self, apic_id: u8) -> Self {
        let mut table = self.clone();
        for entry in &mut table.entries {
            match entry.leaf {
                1 => entry.ebx = entry.ebx & 0x00ff_ffff | u32::from(apic_id) << 24,
                0xb | 0x1f => entry.edx = apic_id.into(),
                0x8000_001e => entry.eax = apic_id.into(),
                _ => {}
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_apic_id_is_where_each_leaf_has_it() {
        let leaf = |leaf| CpuidEntry {
            leaf,
            ebx: 0x0102_0304,
            ..Default::default()
        };
        let table = CpuidTable::new(vec![leaf(1), leaf(0xb), leaf(0x8000_001e)]).for_vcpu(5);
        assert_eq!(table.get(1, 0).unwrap().ebx, 0x0502_0304);
        assert_eq!(table.get(0xb, 1).unwrap().edx, 5);
        assert_eq!(table.get(0x8000_001e, 0).unwrap().eax, 5);
        assert!(table.get(2, 0).is_none());
    }
}

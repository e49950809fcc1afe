use object::elf;

/// Length in bytes of an ELF header, and of a program header.
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;
/// `XEN_ELFNOTE_PHYS32_ENTRY`.
const PHYS32_ENTRY: u32 = 18;

/// An ELF file that places `code` at a guest address, for [`crate::x86::boot::load`]: a kernel that is
/// entered by PVH at `entry`, or that lacks the PVH note.
pub fn pvh_kernel(address: u32, code: &[u8], entry: Option<u32>) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    put_u16(&mut file, &[2, 62]);
    put_u32(&mut file, &[1]);
    put_u64(&mut file, &[0, HEADER_BYTES, 0]);
    put_u32(&mut file, &[0]);
    put_u16(&mut file, &[64, 56, 2, 64, 0, 0]);
    let (code_at, code_bytes) = (HEADER_BYTES + 2 * SEGMENT_BYTES, code.len() as u64);
    let segments = [
        (elf::PT_LOAD, code_at, code_bytes),
        match entry {
            Some(_) => (elf::PT_NOTE, code_at + code_bytes, 20),
            None => (elf::PT_NULL, code_at + code_bytes, 20),
        },
    ];
    for (kind, offset, bytes) in segments {
        put_u32(&mut file, &[kind, 7]);
        let address = address.into();
        put_u64(&mut file, &[offset, address, address, bytes, bytes, 4]);
    }
    file.extend_from_slice(code);
    put_u32(&mut file, &[4, 4, PHYS32_ENTRY]);
    file.extend_from_slice(b"Xen\0");
    put_u32(&mut file, &[entry.unwrap_or(0)]);
    file
}

fn put_u16(file: &mut Vec<u8>, values: &[u16]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put_u32(file: &mut Vec<u8>, values: &[u32]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put_u64(file: &mut Vec<u8>, values: &[u64]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

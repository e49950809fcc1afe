//! CRC32 (the Castagnoli polynomial), for the core.

/// Reflected polynomial 11EDC6F41h.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The CRC32 instruction over the low `bytes` bytes (1, 2, 4 or 8) of `value`.
#[must_use]
pub fn crc32c(crc: u32, value: u64, bytes: usize) -> u32 {
    super::host::crc32c(crc, value, bytes).unwrap_or_else(|| portable(crc, value, bytes))
}

fn portable(crc: u32, value: u64, bytes: usize) -> u32 {
    let bytes = &value.to_le_bytes()[..bytes.min(8)];
    bytes.iter().fold(crc, |crc, byte| {
        crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::{crc32c, portable};

    #[test]
    fn the_host_and_the_table_agree() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(7);
            for bytes in [1, 2, 4, 8] {
                let crc = (seed >> 17) as u32;
                assert_eq!(crc32c(crc, seed, bytes), portable(crc, seed, bytes));
            }
        }
    }

    #[test]
    fn check_value_of_the_polynomial() {
        let crc = b"123456789"
            .iter()
            .fold(!0, |crc, &byte| crc32c(crc, byte.into(), 1));
        assert_eq!(!crc, 0xe306_9283);
        assert_eq!(
            crc32c(7, 0x0807_0605_0403_0201, 8),
            crc32c(crc32c(7, 0x0403_0201, 4), 0x0807_0605, 4)
        );
    }
}

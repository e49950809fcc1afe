//! From a bzImage to the ELF kernel packed in it. Spec: Linux
//! `Documentation/arch/x86/boot.rst`.

use std::io::{self, Read};

use super::elf;
use super::error::ImageFormatError;
use crate::artifact::decompress::{Bounded, Compression};

/// Largest unpacked kernel.
pub(super) const MAX_VMLINUX_BYTES: u64 = 512 << 20;

/// The magic of the LZ4 legacy frame that kernels are packed in.
const LZ4_LEGACY_MAGIC: [u8; 4] = 0x184c_2102_u32.to_le_bytes();
/// A legacy block holds this much at most when unpacked.
const LZ4_BLOCK_BYTES: usize = 8 << 20;
const SECTOR_BYTES: usize = 512;
/// First boot protocol that says where the payload is.
const PROTOCOL_WITH_PAYLOAD: u16 = 0x0208;
/// Longest version string read.
const MAX_VERSION_BYTES: usize = 128;

/// The ELF kernel in `image`, which is either one already or a bzImage.
pub(super) fn unpack(image: Vec<u8>) -> Result<Vec<u8>, ImageFormatError> {
    if elf::is_elf(&image) {
        return Ok(image);
    }
    if !is_bzimage(&image) {
        return Err(ImageFormatError::Unknown);
    }
    if le16(&image, 0x206)? < PROTOCOL_WITH_PAYLOAD {
        return Err(ImageFormatError::OldProtocol);
    }
    let offset = le32(&image, 0x248)? as usize;
    let length = le32(&image, 0x24c)? as usize;
    let start = setup_bytes(&image)?
        .checked_add(offset)
        .ok_or(ImageFormatError::Truncated)?;
    let payload = image.get(start..).and_then(|rest| rest.get(..length));
    unpack_payload(payload.ok_or(ImageFormatError::Truncated)?)
}

fn is_bzimage(image: &[u8]) -> bool {
    image.get(0x202..0x206) == Some(b"HdrS")
}

/// The version that a bzImage gives itself, up to the first space; `None` for anything else.
pub(super) fn version(image: &[u8]) -> Option<String> {
    if !is_bzimage(image) {
        return None;
    }
    let at = usize::from(le16(image, 0x20e).ok()?).checked_add(SECTOR_BYTES)?;
    let text = image.get(at..)?.iter().take(MAX_VERSION_BYTES);
    let text: Vec<u8> = text
        .copied()
        .take_while(|b| *b != 0 && *b != b' ')
        .collect();
    String::from_utf8(text)
        .ok()
        .filter(|version| !version.is_empty())
}

/// Bytes of real-mode code in front of the protected-mode part.
fn setup_bytes(image: &[u8]) -> Result<usize, ImageFormatError> {
    let sectors = *image.get(0x1f1).ok_or(ImageFormatError::Truncated)?;
    // Zero means four, for compatibility.
    let sectors = if sectors == 0 {
        4
    } else {
        usize::from(sectors)
    };
    Ok((sectors + 1) * SECTOR_BYTES)
}

fn unpack_payload(payload: &[u8]) -> Result<Vec<u8>, ImageFormatError> {
    if elf::is_elf(payload) {
        return Ok(payload.to_vec());
    }
    if payload.starts_with(&LZ4_LEGACY_MAGIC) {
        return unpack_lz4_legacy(&payload[4..]);
    }
    // All but gzip are followed by the unpacked size in four bytes; gzip ends
    // with it by itself.
    let compression = Compression::detect(payload);
    let data = match compression {
        Compression::None | Compression::Bzip2 => return Err(ImageFormatError::Compression),
        Compression::Gzip => payload,
        Compression::Zstd | Compression::Xz => {
            &payload[..payload
                .len()
                .checked_sub(4)
                .ok_or(ImageFormatError::Truncated)?]
        }
    };
    let mut out = Vec::new();
    let reader = compression.reader(data).map_err(ImageFormatError::Unpack)?;
    Bounded::new(reader, MAX_VMLINUX_BYTES)
        .read_to_end(&mut out)
        .map_err(ImageFormatError::Unpack)?;
    Ok(out)
}

/// Blocks of `length (4 bytes), data`; the last four bytes are the total size.
fn unpack_lz4_legacy(mut data: &[u8]) -> Result<Vec<u8>, ImageFormatError> {
    let mut out = Vec::new();
    let mut block = vec![0; LZ4_BLOCK_BYTES];
    while data.len() > 4 {
        let length = le32(data, 0)? as usize;
        let packed = data[4..].get(..length).ok_or(ImageFormatError::Truncated)?;
        data = &data[4 + length..];
        let n = lz4_flex::block::decompress_into(packed, &mut block)
            .map_err(|error| ImageFormatError::Unpack(io::Error::other(error)))?;
        out.extend_from_slice(&block[..n]);
        if out.len() as u64 > MAX_VMLINUX_BYTES {
            let error = io::Error::new(io::ErrorKind::FileTooLarge, "larger than 512 MiB");
            return Err(ImageFormatError::Unpack(error));
        }
    }
    if data.len() == 4 && u64::from(le32(data, 0)?) != out.len() as u64 {
        return Err(ImageFormatError::Truncated);
    }
    Ok(out)
}

fn le16(bytes: &[u8], at: usize) -> Result<u16, ImageFormatError> {
    let bytes = bytes.get(at..at + 2).and_then(|b| b.try_into().ok());
    bytes
        .map(u16::from_le_bytes)
        .ok_or(ImageFormatError::Truncated)
}

fn le32(bytes: &[u8], at: usize) -> Result<u32, ImageFormatError> {
    let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes
        .map(u32::from_le_bytes)
        .ok_or(ImageFormatError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A bzImage of protocol 2.15 around a payload.
    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 5 * SECTOR_BYTES];
        image[0x1f1] = 4;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend_from_slice(&[0; 16]);
        image.extend_from_slice(payload);
        image
    }

    fn lz4(plain: &[u8], claimed: u32) -> Vec<u8> {
        let packed = lz4_flex::block::compress(plain);
        let length = (packed.len() as u32).to_le_bytes();
        [
            &LZ4_LEGACY_MAGIC[..],
            &length,
            &packed,
            &claimed.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn unpacks_every_compression() {
        let plain = b"kernel".repeat(1000);
        let size = (plain.len() as u32).to_le_bytes();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&plain).unwrap();
        let payloads = [
            gzip.finish().unwrap(),
            [&xz.finish().unwrap()[..], &size].concat(),
            [&zstd::encode_all(&plain[..], 1).unwrap()[..], &size].concat(),
            lz4(&plain, plain.len() as u32),
        ];
        for payload in payloads {
            assert_eq!(unpack(bzimage(&payload)).unwrap(), plain);
        }
    }

    #[test]
    fn refuses_damage_by_name() {
        use ImageFormatError as E;
        assert!(matches!(unpack(b"hello".to_vec()), Err(E::Unknown)));
        assert!(matches!(unpack(bzimage(b"BZh9")), Err(E::Compression)));
        assert!(matches!(
            unpack(bzimage(&lz4(b"abc", 4))),
            Err(E::Truncated)
        ));
        let whole = bzimage(&lz4(&[7; 9999], 9999));
        for len in 0..whole.len() {
            assert!(unpack(whole[..len].to_vec()).is_err(), "cut at {len}");
        }
        let mut bad = whole;
        bad[0x248..0x24c].fill(0xff);
        assert!(matches!(unpack(bad), Err(E::Truncated)));
    }
}

//! Sizes in the words in which they are typed.

/// A size as a user would type it: in the largest unit that it is a whole number of, bytes otherwise.
pub(crate) fn as_typed(bytes: u64) -> String {
    for (unit, shift) in [('T', 40), ('G', 30), ('M', 20), ('K', 10)] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_whole_unit_is_taken() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (1 << 20, "1M"),
            (1536 << 20, "1536M"),
            (8 << 30, "8G"),
            (1 << 40, "1T"),
        ] {
            assert_eq!(as_typed(bytes), text);
        }
    }
}

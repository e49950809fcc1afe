//! Views of 128 bits as lanes. MMX values are the low half with a zero high half.

macro_rules! view {
    ($split:ident, $join:ident, $map:ident, $lane:ty, $count:expr) => {
        /// The lanes, lowest first.
        #[inline]
        pub(super) fn $split(v: u128) -> [$lane; $count] {
            const SIZE: usize = size_of::<$lane>();
            let bytes = v.to_le_bytes();
            std::array::from_fn(|i| {
                let mut lane = [0; SIZE];
                lane.copy_from_slice(&bytes[i * SIZE..(i + 1) * SIZE]);
                <$lane>::from_le_bytes(lane)
            })
        }

        /// The 128 bits of the lanes.
        #[inline]
        pub(super) fn $join(lanes: [$lane; $count]) -> u128 {
            const SIZE: usize = size_of::<$lane>();
            let mut bytes = [0; 16];
            for (slot, lane) in bytes.chunks_exact_mut(SIZE).zip(lanes) {
                slot.copy_from_slice(&lane.to_le_bytes());
            }
            u128::from_le_bytes(bytes)
        }

        /// Applies a function to each pair of lanes.
        #[inline]
        pub(super) fn $map(a: u128, b: u128, f: impl Fn($lane, $lane) -> $lane) -> u128 {
            let (a, b) = ($split(a), $split(b));
            $join(std::array::from_fn(|i| f(a[i], b[i])))
        }
    };
}

view!(bytes, from_bytes, map8, u8, 16);
view!(words, from_words, map16, u16, 8);
view!(dwords, from_dwords, map32, u32, 4);
view!(qwords, from_qwords, map64, u64, 2);

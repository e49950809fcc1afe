//! Constants of the transcendental instructions, to 128 bits and more.

use crate::fpu::num::Num;

const fn positive(exponent: i32, significand: u128) -> Num {
    Num {
        negative: false,
        exponent,
        significand,
    }
}

/// Natural logarithm of 2.
pub(super) const LN2: Num = positive(-1, 0xb172_17f7_d1cf_79ab_c9e3_b398_03f2_f6af);
/// Binary logarithm of e.
pub(super) const LOG2_E: Num = positive(0, 0xb8aa_3b29_5c17_f0bb_be87_fed0_691d_3e89);
/// Pi.
pub(super) const PI: Num = positive(1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
/// Pi / 2.
pub(super) const HALF_PI: Num = positive(0, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
/// Pi / 4.
pub(super) const QUARTER_PI: Num = positive(-1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1);
/// 3 pi / 4.
pub(super) const THREE_QUARTERS_PI: Num = positive(1, 0x96cb_e3f9_990e_91a7_9394_c9e8_a0a5_159d);

/// Pi / 2 as the processors have it, 66 bits in units of 2^-65.
pub(super) const HALF_PI_66: u128 = 0xc90f_daa2_2168_c234 << 2 | 3;

/// Arc tangents of 1/16 to 16/16.
pub(super) const ATAN_SIXTEENTHS: [Num; 16] = [
    positive(-5, 0xffaa_ddb9_67ef_4e36_cb27_92dc_0e2e_0d51),
    positive(-4, 0xfead_d4d5_617b_6e32_c897_989f_3e88_8ef8),
    positive(-3, 0xbdcb_da5e_72d8_1134_7b0b_4f88_1c9c_7488),
    positive(-3, 0xfadb_afc9_6406_eb15_6dc7_9ef5_f7a2_17e6),
    positive(-2, 0x9b13_b9b8_3f5e_5e69_c5ab_b498_d27a_f328),
    positive(-2, 0xb7b0_ca0f_26f7_8473_8aa3_2122_dcfe_4483),
    positive(-2, 0xd327_761e_611f_e5b6_427c_95e9_001e_7136),
    positive(-2, 0xed63_382b_0dda_7b45_6fe4_45ec_bc3a_8d03),
    positive(-1, 0x832b_f4a6_d986_7e2a_4b6a_09cb_61a5_15c1),
    positive(-1, 0x8f00_5d5e_f7f5_9f9b_5c83_5e16_65c4_3748),
    positive(-1, 0x9a2f_80e6_71bd_da20_4226_f8e2_204f_f3bd),
    positive(-1, 0xa4bc_7d19_34f7_0924_19a8_7f2a_457d_ac9f),
    positive(-1, 0xaeac_4c38_b4d8_c080_1472_5e2f_3e52_070a),
    positive(-1, 0xb805_3e2b_c231_9e73_cb2d_a552_10a4_443d),
    positive(-1, 0xc0ce_85b8_ac52_6640_89dd_62c4_6e92_fa25),
    positive(-1, 0xc90f_daa2_2168_c234_c4c6_628b_80dc_1cd1),
];

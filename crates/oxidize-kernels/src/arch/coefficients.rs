//! Coefficients of the elementary functions, which all instruction sets compute alike. Polynomials begin with
//! the highest power.

/// ln 2 in two parts, the first with so few bits that its products with integers are exact.
pub(crate) const LN_2_HIGH: f32 = 355.0 / 512.0;
pub(crate) const LN_2_LOW: f32 = -2.121_944_4e-4;

/// (e^r − 1 − r) / r² for |r| ≤ ln 2 / 2.
pub(crate) const EXP: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    5e-1,
];

/// (tanh(z) / z − 1) / z² in powers of z², for |z| < 0.625.
pub(crate) const TANH: [f32; 5] = [
    -5.704_989e-3,
    2.063_909e-2,
    -5.373_971_6e-2,
    1.333_144_2e-1,
    -0.333_332_8,
];

/// ln(erfc(z) / t) + z² in powers of t = 1 / (1 + z / 2): the Chebyshev fit of Press et al., Numerical
/// Recipes, section 6.2.
pub(crate) const ERFC: [f32; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_9,
    -1.135_204,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_7,
    -1.265_512_2,
];

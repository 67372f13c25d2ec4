//! Frequencies of rotary embeddings (RoPE), with context scaling.
//!
//! RoPE: Su et al. 2021. YaRN: Peng et al. 2023. LongRoPE: Ding et al. 2024. Llama 3: its reference
//! code.

use super::RopeFrequencies;
use std::f32::consts::PI;

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Elements of a head that are rotated.
    pub dims: usize,
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// Context scaling.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies.
    pub factors: RopeFactors,
    /// Factor of cosines and sines.
    pub magnitude: f32,
}

/// Divisors of the frequencies, one per pair.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeFactors {
    /// None.
    #[default]
    None,
    /// The same for every context length. An infinite divisor disables the rotation of its pair.
    Fixed(Vec<f32>),
    /// LongRoPE: different sets for contexts up to and beyond the original length.
    ByContext {
        /// For contexts up to `original_context`.
        short: Vec<f32>,
        /// For longer contexts.
        long: Vec<f32>,
        /// Context length before scaling.
        original_context: usize,
    },
}

/// Context scaling method.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// Position interpolation: positions are divided by a factor.
    Linear(f32),
    /// Dynamic NTK: the base grows with contexts beyond the original length.
    Dynamic {
        /// Scaling factor.
        factor: f32,
        /// Context length before scaling.
        original_context: f32,
    },
    /// YaRN: low frequencies are interpolated, high ones kept, with a ramp between.
    Yarn(Yarn),
    /// Llama 3: interpolation with a ramp over wavelengths.
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low` are fully scaled.
        low: f32,
        /// Wavelengths below `original_context / high` are not scaled.
        high: f32,
        /// Context length before scaling.
        original_context: f32,
    },
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// Scaling factor.
    pub factor: f32,
    /// Context length before scaling.
    pub original_context: f32,
    /// Pairs with more rotations than this over the original context are not interpolated.
    pub beta_fast: f32,
    /// Pairs with fewer rotations than this are fully interpolated.
    pub beta_slow: f32,
    /// True if the ramp begins and ends at whole pairs.
    pub truncate: bool,
    /// Share of high frequencies that is kept, llama.cpp's `ext_factor`: 1 keeps them, 0 interpolates all.
    pub extrapolation: f32,
}

impl Rope {
    /// Frequencies of all pairs, for sequences of at most `max_context` tokens.
    pub fn frequencies(&self, max_context: usize) -> RopeFrequencies {
        let (dims, mut base) = (self.dims as f32, self.base);
        if let RopeScaling::Dynamic {
            factor,
            original_context,
        } = self.scaling
        {
            let stretch = (max_context as f32 / original_context).max(1.0);
            base *= (factor * stretch - (factor - 1.0)).powf(dims / (dims - 2.0).max(1.0));
        }
        let mut radians: Vec<f32> = (0..self.dims / 2)
            .map(|pair| 1.0 / base.powf((2 * pair) as f32 / dims))
            .enumerate()
            .map(|(pair, frequency)| self.stretch(pair, frequency))
            .collect();
        let factors: &[f32] = match &self.factors {
            RopeFactors::None => &[],
            RopeFactors::Fixed(factors) => factors,
            RopeFactors::ByContext {
                short,
                long,
                original_context,
            } => match max_context > *original_context {
                true => long,
                false => short,
            },
        };
        for (f, factor) in radians.iter_mut().zip(factors) {
            *f /= factor;
        }
        RopeFrequencies {
            radians,
            magnitude: self.magnitude,
        }
    }

    /// Factors by which the scaling divides the frequency of each pair.
    pub fn divisors(&self) -> Vec<f32> {
        let plain = |pair: usize| 1.0 / self.base.powf((2 * pair) as f32 / self.dims as f32);
        let pairs = 0..self.dims / 2;
        pairs
            .map(|pair| plain(pair) / self.stretch(pair, plain(pair)))
            .collect()
    }

    /// Scaled frequency of a pair.
    fn stretch(&self, pair: usize, f: f32) -> f32 {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => f,
            RopeScaling::Linear(factor) => f / factor,
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp(self.dims, self.base);
                let ramp = ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0);
                let kept = (1.0 - ramp) * yarn.extrapolation;
                f / yarn.factor * (1.0 - kept) + f * kept
            }
            &RopeScaling::Llama3 {
                factor,
                low,
                high,
                original_context,
            } => {
                let wavelength = 2.0 * PI / f;
                if wavelength < original_context / high {
                    f
                } else if wavelength > original_context / low {
                    f / factor
                } else {
                    let smooth = (original_context / wavelength - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            }
        }
    }
}

/// Attention temperature of YaRN (Peng et al. 2023) for a context that is `factor` times longer.
pub(crate) fn yarn_magnitude(factor: f32, weight: f32) -> f32 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * weight * factor.ln() + 1.0
    }
}

impl Yarn {
    /// First and last pair of the interpolation ramp.
    fn ramp(&self, dims: usize, base: f32) -> (f32, f32) {
        // Pair that makes `beta` rotations over the original context.
        let pair = |beta: f32| {
            dims as f32 * (self.original_context / (beta * 2.0 * PI)).ln() / (2.0 * base.ln())
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims as f32 - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }
}

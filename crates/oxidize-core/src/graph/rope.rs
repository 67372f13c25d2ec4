//! The frequencies of rotary embeddings, with the ways of stretching the context.
//!
//! RoPE: Su et al. 2021. YaRN: Peng et al. 2023. LongRoPE: Ding et al. 2024. Llama 3's factors: its
//! reference code.

use super::RopeFrequencies;
use std::f32::consts::PI;

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Elements of a head that turn.
    pub dims: usize,
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// How the context is stretched.
    pub scaling: RopeScaling,
    /// What frequencies are divided by.
    pub factors: RopeFactors,
    /// Factor on cosines and sines.
    pub magnitude: f32,
}

/// Divisors of the frequencies, one a pair.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeFactors {
    /// None.
    #[default]
    None,
    /// The same for every context; an infinite one keeps its pair from turning.
    Fixed(Vec<f32>),
    /// LongRoPE: one set for contexts the model was first trained on, one for longer ones.
    ByContext {
        /// Up to `original_context`.
        short: Vec<f32>,
        /// Past it.
        long: Vec<f32>,
        /// Context of the first training.
        original_context: usize,
    },
}

/// How a rotary embedding reaches past the context it was trained on.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// It does not.
    #[default]
    None,
    /// Positions divided by a factor.
    Linear(f32),
    /// A base that grows with the context, once that is past the trained one (dynamic NTK).
    Dynamic {
        /// How much longer the context may get.
        factor: f32,
        /// Context of the training.
        original_context: f32,
    },
    /// Low frequencies interpolated, high ones kept, a ramp between.
    Yarn(Yarn),
    /// Llama 3's own ramp.
    Llama3 {
        /// Factor on the lowest frequencies.
        factor: f32,
        /// Wavelengths past `original_context / low` are scaled whole.
        low: f32,
        /// Wavelengths under `original_context / high` are not scaled.
        high: f32,
        /// Context of the training.
        original_context: f32,
    },
}

/// The parameters of YaRN.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// How much longer the context is.
    pub factor: f32,
    /// Context of the training.
    pub original_context: f32,
    /// Turns over the original context past which a pair is kept.
    pub beta_fast: f32,
    /// Turns under which it is interpolated.
    pub beta_slow: f32,
    /// Whether the ramp begins and ends at whole pairs.
    pub truncate: bool,
}

impl Rope {
    /// The frequencies of all pairs, in a session whose sequences have at most `max_context` tokens.
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

    /// What the scaling divides the frequency of each pair by.
    pub fn divisors(&self) -> Vec<f32> {
        let plain = |pair: usize| 1.0 / self.base.powf((2 * pair) as f32 / self.dims as f32);
        let pairs = 0..self.dims / 2;
        pairs
            .map(|pair| plain(pair) / self.stretch(pair, plain(pair)))
            .collect()
    }

    /// The frequency of a pair, as the scaling makes it.
    fn stretch(&self, pair: usize, f: f32) -> f32 {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => f,
            RopeScaling::Linear(factor) => f / factor,
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp(self.dims, self.base);
                let ramp = ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0);
                f / yarn.factor * ramp + f * (1.0 - ramp)
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

impl Yarn {
    /// The pairs between which interpolation sets in.
    fn ramp(&self, dims: usize, base: f32) -> (f32, f32) {
        // The pair that turns `beta` times over the original context.
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

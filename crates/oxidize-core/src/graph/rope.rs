//! The frequencies of rotary embeddings, with the ways of stretching the context.
//!
//! RoPE: Su et al. 2021. YaRN: Peng et al. 2023. Llama 3's factors: its reference code.

use super::RopeFrequencies;
use std::f32::consts::PI;

/// How a rotary embedding reaches past the context it was trained on.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum RopeScaling {
    /// It does not.
    #[default]
    None,
    /// Positions divided by a factor.
    Linear(f32),
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
    /// Factor on cosines and sines; the paper's `0.1 ln(factor) + 1` where `None`.
    pub magnitude: Option<f32>,
}

/// The frequencies of `dims / 2` pairs; `factors` divide them (GGUF's `rope_freqs`).
pub fn frequencies(
    dims: usize,
    base: f32,
    scaling: &RopeScaling,
    factors: Option<&[f32]>,
) -> RopeFrequencies {
    let pairs = dims / 2;
    let plain = (0..pairs).map(|i| 1.0 / base.powf((2 * i) as f32 / dims as f32));
    let mut magnitude = 1.0;
    let mut radians: Vec<f32> = match scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear(factor) => plain.map(|f| f / factor).collect(),
        RopeScaling::Yarn(yarn) => {
            magnitude = yarn.magnitude.unwrap_or(0.1 * yarn.factor.ln() + 1.0);
            let (low, high) = yarn.ramp(dims, base);
            plain
                .enumerate()
                .map(|(i, f)| {
                    let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    f / yarn.factor * ramp + f * (1.0 - ramp)
                })
                .collect()
        }
        &RopeScaling::Llama3 {
            factor,
            low,
            high,
            original_context,
        } => plain
            .map(|f| {
                let wavelength = 2.0 * PI / f;
                if wavelength < original_context / high {
                    f
                } else if wavelength > original_context / low {
                    f / factor
                } else {
                    let smooth = (original_context / wavelength - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            })
            .collect(),
    };
    if let Some(factors) = factors {
        for (f, factor) in radians.iter_mut().zip(factors) {
            *f /= factor;
        }
    }
    RopeFrequencies { radians, magnitude }
}

impl Yarn {
    /// The pairs between which interpolation sets in.
    fn ramp(&self, dims: usize, base: f32) -> (f32, f32) {
        // The pair that turns `beta` times over the original context.
        let pair = |beta: f32| {
            dims as f32 * (self.original_context / (beta * 2.0 * PI)).ln() / (2.0 * base.ln())
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(dims as f32 - 1.0);
        (low, if low == high { high + 0.001 } else { high })
    }
}

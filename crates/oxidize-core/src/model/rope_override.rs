//! [`RopeOverride`]: parameters of RoPE that replace those of the file.

use super::ModelError;
use crate::arch::{Hparams, MAX_CONTEXT};
use crate::file::ModelFile;
use crate::graph::Rope;
use crate::graph::rope::{RopeScaling, Yarn, yarn_magnitude};

/// Parameters of RoPE that replace those of the file, as llama.cpp's flags `--rope-freq-base`, `--rope-scaling`,
/// `--yarn-orig-ctx` and others do.
///
/// They apply to the RoPE of full layers. Layers with a base of their own, such as those with a window, keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopeOverride {
    /// Base of the frequencies.
    pub base: Option<f32>,
    /// Factor of the frequencies: the inverse of that of linear scaling or YaRN. Other kinds of scaling have none.
    pub scale: Option<f32>,
    /// Kind of scaling.
    pub kind: Option<ScalingKind>,
    /// Context length before YaRN.
    pub original_context: Option<f32>,
    /// Share of high frequencies that YaRN keeps.
    pub extrapolation: Option<f32>,
    /// Rotations above which YaRN keeps a frequency.
    pub beta_fast: Option<f32>,
    /// Rotations below which YaRN interpolates a frequency.
    pub beta_slow: Option<f32>,
    /// Factor of cosines and sines, besides YaRN's own.
    pub magnitude: Option<f32>,
    /// Context length that these parameters are for, if it is longer than the one that the model was trained on.
    pub context: Option<usize>,
}

/// Kind of scaling that replaces the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingKind {
    /// No scaling.
    None,
    /// Position interpolation.
    Linear,
    /// YaRN.
    Yarn,
}

impl RopeOverride {
    /// Changes the RoPE of the hyper-parameters of `file`.
    pub(super) fn apply(self, hparams: &mut Hparams, file: &ModelFile) -> Result<(), ModelError> {
        if self == RopeOverride::default() {
            return Ok(());
        }
        let bad = |key: &str, problem: String| ModelError::BadValue {
            file: file.path().to_path_buf(),
            key: key.to_owned(),
            problem,
        };
        for (field, value) in self.positive_fields() {
            if let Some(value) = value
                && !(value.is_finite() && value > 0.0)
            {
                let problem = format!("{value}; it must be a positive number");
                return Err(bad(field, problem));
            }
        }
        if let Some(share) = self.extrapolation
            && !(0.0..=1.0).contains(&share)
        {
            let problem = format!("{share}; it must be between 0 and 1");
            return Err(bad("yarn_ext_factor", problem));
        }
        let scales = self.kind.is_some() || self.scale.is_some_and(|scale| scale != 1.0);
        if hparams.mla.is_some() && scales {
            // The factor is part of the weights of queries, too.
            let problem = "latent attention has its own scaling, which cannot be replaced";
            return Err(bad("rope_scaling_type", problem.to_owned()));
        }
        let trained = hparams.n_ctx_train as f32;
        let first = hparams.ropes.first().map(|rope| rope.base);
        let ropes = hparams.ropes.iter_mut();
        for rope in ropes.filter(|rope| Some(rope.base) == first) {
            self.change(rope, trained);
        }
        if let Some(context) = self.context.filter(|_| first.is_some()) {
            hparams.n_ctx_train = hparams.n_ctx_train.max(context.min(MAX_CONTEXT));
        }
        Ok(())
    }

    /// Fields with positive numbers, by the names of their parameters.
    fn positive_fields(&self) -> [(&'static str, Option<f32>); 6] {
        [
            ("rope_freq_base", self.base),
            ("rope_freq_scale", self.scale),
            ("yarn_orig_ctx", self.original_context),
            ("yarn_beta_fast", self.beta_fast),
            ("yarn_beta_slow", self.beta_slow),
            ("yarn_attn_factor", self.magnitude),
        ]
    }

    fn change(self, rope: &mut Rope, trained: f32) {
        rope.base = self.base.unwrap_or(rope.base);
        let (own_kind, own_factor) = match &rope.scaling {
            RopeScaling::None => (Some(ScalingKind::None), 1.0),
            RopeScaling::Linear(factor) => (Some(ScalingKind::Linear), *factor),
            RopeScaling::Yarn(yarn) => (Some(ScalingKind::Yarn), yarn.factor),
            RopeScaling::Dynamic { .. } | RopeScaling::Llama3 { .. } => (None, 1.0),
        };
        let own_yarn = match &rope.scaling {
            RopeScaling::Yarn(yarn) => Some(yarn.clone()),
            _ => None,
        };
        let factor = self.scale.map_or(own_factor, |scale| 1.0 / scale);
        let kind = match (self.kind.or(own_kind), self.kind) {
            // A factor alone is one of linear scaling.
            (Some(ScalingKind::None), None) => Some(ScalingKind::Linear),
            (kind, _) => kind,
        };
        rope.magnitude *= self.magnitude.unwrap_or(1.0);
        if let (Some(_), Some(yarn)) = (kind, &own_yarn) {
            rope.magnitude /= yarn_magnitude(yarn.factor, 1.0);
        }
        rope.scaling = match kind {
            None => return,
            Some(ScalingKind::None) => RopeScaling::None,
            Some(ScalingKind::Yarn) if self.extrapolation != Some(0.0) => {
                rope.magnitude *= yarn_magnitude(factor, 1.0);
                let own = own_yarn.unwrap_or(Yarn {
                    factor,
                    original_context: trained,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    truncate: true,
                    extrapolation: 1.0,
                });
                RopeScaling::Yarn(Yarn {
                    factor,
                    original_context: self.original_context.unwrap_or(own.original_context),
                    beta_fast: self.beta_fast.unwrap_or(own.beta_fast),
                    beta_slow: self.beta_slow.unwrap_or(own.beta_slow),
                    extrapolation: self.extrapolation.unwrap_or(own.extrapolation),
                    truncate: own.truncate,
                })
            }
            Some(ScalingKind::Linear | ScalingKind::Yarn) => match factor {
                1.0 => RopeScaling::None,
                factor => RopeScaling::Linear(factor),
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::OpenOptions;
    use crate::model::Model;

    fn open(rope: RopeOverride) -> crate::Result<Model> {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/tiny/model.gguf"
        );
        let file = ModelFile::open(path, &OpenOptions::default())?;
        Model::from_file_with_rope(file, rope)
    }

    fn changed(rope: RopeOverride) -> Rope {
        open(rope).unwrap().hparams().ropes[0].clone()
    }

    #[test]
    fn base_and_linear_scaling_are_replaced() {
        let own = changed(RopeOverride::default());
        let rope = changed(RopeOverride {
            base: Some(12_345.0),
            scale: Some(0.5),
            ..RopeOverride::default()
        });
        assert_ne!(own.base, 12_345.0);
        assert_eq!(rope.base, 12_345.0);
        assert_eq!(rope.scaling, RopeScaling::Linear(2.0));
    }

    #[test]
    fn nothing_changes_without_parameters() {
        let own = changed(RopeOverride::default());
        let one = changed(RopeOverride {
            scale: Some(1.0),
            ..RopeOverride::default()
        });
        assert_eq!(
            (own.scaling.clone(), own.magnitude),
            (RopeScaling::None, 1.0)
        );
        assert_eq!(own, one);
    }

    #[test]
    fn yarn_has_the_parameters_of_its_paper() {
        let yarn = RopeOverride {
            kind: Some(ScalingKind::Yarn),
            scale: Some(0.25),
            original_context: Some(64.0),
            beta_fast: Some(16.0),
            ..RopeOverride::default()
        };
        let rope = changed(yarn);
        let RopeScaling::Yarn(scaling) = &rope.scaling else {
            panic!("{rope:?}");
        };
        assert_eq!((scaling.factor, scaling.original_context), (4.0, 64.0));
        assert_eq!((scaling.beta_fast, scaling.beta_slow), (16.0, 1.0));
        // The temperature of section 3.4: 0.1 ln(s) + 1.
        assert!((rope.magnitude - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
        // All frequencies are interpolated without extrapolation, and none are above the plain ones.
        let linear = changed(RopeOverride {
            extrapolation: Some(0.0),
            ..yarn
        });
        assert_eq!(linear.scaling, RopeScaling::Linear(4.0));
        let plain = changed(RopeOverride::default()).frequencies(64).radians;
        let frequencies = rope.frequencies(64).radians;
        assert_eq!(frequencies[0], plain[0]);
        let last = plain.len() - 1;
        assert!((frequencies[last] * 4.0 / plain[last] - 1.0).abs() < 1e-5);
        let halfway = changed(RopeOverride {
            extrapolation: Some(0.5),
            ..yarn
        });
        let first = halfway.frequencies(64).radians[0];
        assert!((first / plain[0] - (0.5 + 0.5 / 4.0)).abs() < 1e-6);
    }

    #[test]
    fn a_longer_context_needs_rope() {
        let long = RopeOverride {
            scale: Some(0.5),
            context: Some(1_000_000),
            ..RopeOverride::default()
        };
        assert_eq!(open(long).unwrap().context_length(), 1_000_000);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let rope = RopeOverride {
                base: Some(value),
                ..RopeOverride::default()
            };
            let error = open(rope).err().unwrap().to_string();
            assert!(error.contains("rope_freq_base"), "{error}");
        }
        for value in [-0.1, 1.5, f32::NAN] {
            let rope = RopeOverride {
                extrapolation: Some(value),
                ..RopeOverride::default()
            };
            let error = open(rope).err().unwrap().to_string();
            assert!(error.contains("yarn_ext_factor"), "{error}");
        }
    }
}

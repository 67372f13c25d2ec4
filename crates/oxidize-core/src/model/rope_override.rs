//! [`RopeOverride`]: parameters of RoPE that replace those of the file.

use super::ModelError;
use crate::arch::Hparams;
use crate::file::ModelFile;
use crate::graph::rope::RopeScaling;

/// Parameters of RoPE that replace those of the file, as `--rope-freq-base` and `--rope-freq-scale` of llama.cpp do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopeOverride {
    /// Base of the frequencies. Layers with a base of their own, such as those with a window, keep it.
    pub base: Option<f32>,
    /// Factor of the frequencies; 1 turns linear scaling off. Other kinds of scaling stay.
    pub scale: Option<f32>,
}

impl RopeOverride {
    /// Changes the RoPE of the hyper-parameters of `file`.
    pub(super) fn apply(self, hparams: &mut Hparams, file: &ModelFile) -> Result<(), ModelError> {
        let fields = [
            ("rope_freq_base", self.base),
            ("rope_freq_scale", self.scale),
        ];
        for (field, value) in fields {
            if let Some(value) = value
                && !(value.is_finite() && value > 0.0)
            {
                return Err(ModelError::BadValue {
                    file: file.path().to_path_buf(),
                    key: field.to_owned(),
                    problem: format!("{value}; it must be a positive number"),
                });
            }
        }
        let first = hparams.ropes.first().map(|rope| rope.base);
        for rope in hparams
            .ropes
            .iter_mut()
            .filter(|rope| Some(rope.base) == first)
        {
            rope.base = self.base.unwrap_or(rope.base);
            if let (Some(scale), RopeScaling::None | RopeScaling::Linear(_)) =
                (self.scale, &rope.scaling)
            {
                rope.scaling = match scale {
                    1.0 => RopeScaling::None,
                    scale => RopeScaling::Linear(1.0 / scale),
                };
            }
        }
        Ok(())
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

    #[test]
    fn base_and_linear_scaling_are_replaced() {
        let own = open(RopeOverride::default()).unwrap();
        let rope = RopeOverride {
            base: Some(12_345.0),
            scale: Some(0.5),
        };
        let ropes = open(rope).unwrap().hparams().ropes.clone();
        assert_ne!(own.hparams().ropes[0].base, 12_345.0);
        assert_eq!(ropes[0].base, 12_345.0);
        assert_eq!(ropes[0].scaling, RopeScaling::Linear(2.0));
    }

    #[test]
    fn numbers_that_are_not_positive_are_refused() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let rope = RopeOverride {
                base: Some(value),
                scale: None,
            };
            let error = open(rope).err().unwrap().to_string();
            assert!(error.contains("rope_freq_base"), "{error}");
        }
    }
}

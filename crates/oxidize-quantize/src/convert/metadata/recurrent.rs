//! The keys of recurrent layers, from which [`oxidize_core::arch::hparams::RecurrentParams`] are read.

use oxidize_core::arch::{Arch, Hparams, RecurrentKind, RecurrentLayers};

use super::Keys;
use crate::tensor::Tensor;

/// Writes the keys if the model has recurrent layers.
pub(super) fn write(keys: &mut Keys<'_>, arch: &Arch, hp: &Hparams, tensors: &[Tensor<'_>]) {
    let (Some(params), Some(_)) = (&hp.recurrent, arch.recurrent) else {
        return;
    };
    // Ranks follow from the shapes of the matrices.
    let rows = |ending: &str| {
        let named = |tensor: &&Tensor<'_>| tensor.name.ends_with(ending);
        let tensor = tensors.iter().find(named);
        tensor.map_or(0, |tensor| tensor.rows() as usize)
    };
    match params.kind {
        RecurrentKind::ShortConv => keys.count("shortconv.l_cache", params.kernel),
        RecurrentKind::Mamba => {
            keys.count("ssm.conv_kernel", params.kernel);
            keys.count("ssm.inner_size", params.inner);
            keys.count("ssm.state_size", params.state_dim);
            let rank = rows(".ssm_x.weight").saturating_sub(2 * params.state_dim);
            keys.count("ssm.time_step_rank", rank);
            keys.flag("ssm.dt_b_c_rms", params.inner_norms);
        }
        RecurrentKind::Mamba2 | RecurrentKind::DeltaNet => {
            keys.count("ssm.conv_kernel", params.kernel);
            keys.count("ssm.inner_size", params.inner);
            keys.count("ssm.state_size", params.state_dim);
            keys.count("ssm.time_step_rank", params.n_heads);
            keys.count("ssm.group_count", params.n_groups);
        }
        RecurrentKind::KimiDelta => {
            keys.count("ssm.conv_kernel", params.kernel);
            keys.count("kda.head_dim", params.state_dim);
        }
        RecurrentKind::Rwkv4 => {}
        RecurrentKind::Rwkv6 => {
            keys.count("wkv.head_size", params.state_dim);
            keys.count("time_mix_extra_dim", rows(".time_mix_w1.weight") / 5);
            keys.count("time_decay_extra_dim", rows(".time_mix_decay_w1.weight"));
        }
        RecurrentKind::Rwkv7 => {
            keys.count("wkv.head_size", params.state_dim);
            for (name, tensor) in [
                ("decay", "w1"),
                ("iclr", "a1"),
                ("value_residual_mix", "v1"),
                ("gate", "g1"),
            ] {
                let rank = rows(&format!(".time_mix_{tensor}.weight"));
                keys.count(&format!("attention.{name}_lora_rank"), rank);
            }
        }
    }
    if hp.halve_every.is_some() || params.kind == RecurrentKind::Rwkv6 {
        keys.count("rescale_every_n_layers", hp.halve_every.unwrap_or(0));
    }
    if let Some(interval) = interval(arch, hp) {
        keys.count("full_attention_interval", interval);
    }
}

/// True if the per-layer number of KV heads marks the attention layers.
pub(super) fn lists_attention(arch: &Arch, hp: &Hparams) -> bool {
    arch.recurrent.is_some() && interval(arch, hp).is_none()
}

/// The interval of attention layers, if readers of the family use it.
fn interval(arch: &Arch, hp: &Hparams) -> Option<usize> {
    let spec = arch.recurrent?;
    if !matches!(spec.layers, RecurrentLayers::AllButEvery(_)) {
        return None;
    }
    let attends = |layer: &oxidize_core::arch::LayerParams| layer.n_heads > 0;
    let interval = hp.layers.iter().position(attends)? + 1;
    let regular = |(i, layer): (usize, _)| attends(layer) == (i + 1).is_multiple_of(interval);
    hp.layers
        .iter()
        .enumerate()
        .all(regular)
        .then_some(interval)
}

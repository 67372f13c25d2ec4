//! Recurrent layers in a `config.json`: their indices and shape. Field names are the most common
//! ones; [`Arch::hf_keys`] contains those that differ.
//!
//! [`Arch::hf_keys`]: crate::arch::Arch::hf_keys

use super::{Config, ConfigFacts, every, number};
use crate::arch::hparams::RecurrentParams;
use crate::arch::{Hparams, RecurrentKind, RecurrentLayers};
use serde_json::Value;

impl Config<'_> {
    pub(super) fn recurrent(&mut self, hp: &Hparams, facts: &ConfigFacts) {
        let Some(params) = &hp.recurrent else {
            return;
        };
        self.layer_kinds(hp, params.kind, facts);
        let count = |n: usize| Value::from(n);
        match params.kind {
            RecurrentKind::ShortConv => {
                self.set("conv_L_cache", count(params.kernel));
                // The width of the feed-forward layers is final.
                self.set("block_auto_adjust_ff_dim", Value::from(false));
            }
            RecurrentKind::Mamba => {
                self.mamba(hp, params);
                self.set_own("d_inner", count(params.inner));
                if let Some(rank) = facts.step_rank {
                    self.set("mamba_dt_rank", count(rank));
                }
                if params.inner_norms {
                    self.float("mixer_rms_eps", params.epsilon);
                }
            }
            RecurrentKind::Mamba2 => {
                self.mamba(hp, params);
                self.set("mamba_n_heads", count(params.n_heads));
                let head = params.inner / params.n_heads.max(1);
                self.set("mamba_d_head", count(head));
                self.set("mamba_n_groups", count(params.n_groups));
                self.set_own("mamba_d_ssm", count(params.inner));
                self.set_own("mamba_rms_norm", Value::from(facts.recurrent_norm));
                let first = Value::from(params.norm_before_gate);
                self.set_own("mamba_norm_before_gate", first);
            }
            RecurrentKind::DeltaNet => {
                self.set("linear_num_value_heads", count(params.n_heads));
                let head = params.inner / params.n_heads.max(1);
                self.set("linear_value_head_dim", count(head));
                self.set("linear_num_key_heads", count(params.n_groups));
                self.set("linear_key_head_dim", count(params.state_dim));
                self.set("linear_conv_kernel_dim", count(params.kernel));
            }
            RecurrentKind::KimiDelta => {
                self.set("linear_num_heads", count(params.n_heads));
                self.set("linear_head_dim", count(params.state_dim));
                self.set("linear_conv_kernel_dim", count(params.kernel));
            }
            RecurrentKind::Rwkv4 => self.set("attention_hidden_size", count(params.inner)),
            RecurrentKind::Rwkv6 | RecurrentKind::Rwkv7 => {
                self.set("head_size", count(params.state_dim));
            }
        }
        use RecurrentKind::{Rwkv4, Rwkv6, Rwkv7};
        if matches!(params.kind, Rwkv4 | Rwkv6 | Rwkv7) {
            self.set("rescale_every", count(hp.halve_every.unwrap_or(0)));
        }
    }

    /// Sets the fields that Mamba and Mamba 2 have in common.
    fn mamba(&mut self, hp: &Hparams, params: &RecurrentParams) {
        self.set("mamba_d_state", Value::from(params.state_dim));
        self.set("mamba_d_conv", Value::from(params.kernel));
        let expand = params.inner as f32 / hp.n_embd.max(1) as f32;
        self.set("mamba_expand", number(expand));
    }

    /// Sets the kind of each layer: attention, recurrent or feed-forward only.
    fn layer_kinds(&mut self, hp: &Hparams, kind: RecurrentKind, facts: &ConfigFacts) {
        let Some(spec) = self.arch.recurrent else {
            return;
        };
        let attends: Vec<bool> = hp.layers.iter().map(|layer| layer.n_heads > 0).collect();
        let all_alike = hp.layers.iter().all(|layer| layer.recurrent);
        if all_alike || spec.layers == RecurrentLayers::Parallel {
            return;
        }
        let exclusive = spec.layers == RecurrentLayers::Exclusive;
        let (recurrent, attention) = match kind {
            RecurrentKind::ShortConv => ("conv", "full_attention"),
            RecurrentKind::Mamba | RecurrentKind::Mamba2 if !exclusive => ("mamba", "attention"),
            _ => ("linear_attention", "full_attention"),
        };
        let has_experts = |i: usize| facts.expert_layers.get(i) == Some(&true);
        let (mut names, mut letters) = (Vec::new(), String::new());
        for (i, layer) in hp.layers.iter().enumerate() {
            let (name, letter) = match layer {
                layer if layer.recurrent => (recurrent, 'M'),
                layer if layer.n_heads > 0 => (attention, '*'),
                _ if has_experts(i) => ("moe", 'E'),
                _ => ("mlp", '-'),
            };
            names.push(Value::from(name));
            letters.push(letter);
        }
        self.set("layer_types", Value::Array(names));
        self.set_own("hybrid_override_pattern", Value::from(letters));
        let indexes = (0..attends.len()).filter(|&i| attends[i]);
        self.set_own("attn_layer_indices", indexes.collect());
        if let Some((period, offset)) = every(&attends) {
            self.set_own("attn_layer_period", Value::from(period));
            self.set_own("attn_layer_offset", Value::from(offset));
            if offset + 1 == period {
                self.set_own("full_attention_interval", Value::from(period));
            }
        }
    }
}

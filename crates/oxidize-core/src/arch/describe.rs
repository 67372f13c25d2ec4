//! Descriptors in words: an [`ArchSummary`] of a few columns, and each field as a [`Property`].
//!
//! `oxidize archs` prints both. All of it is derived from the descriptor.

use super::{
    ActivationRule, Alibi, Arch, BASE, DefaultFf, GgufForm, Mixer, MoeSpec, QkNorm, QkvLayout,
    QueryScale, RecurrentKind, RecurrentLayers, RecurrentSpec, RopeLayers, RopeLayouts, Scales,
    TemperatureRule, TensorRole, WindowKind, Windows,
};
use crate::graph::{Activation, Gating, GroupScore, KeySharing, NormKind, RopeLayout};

/// Summary of a descriptor in one line. It excludes what depends on the file, such as the presence
/// of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchSummary {
    /// Kind and place of the norms.
    pub norm: String,
    /// Position encoding.
    pub position: String,
    /// Token mixer of the layers.
    pub mixer: String,
    /// Special features of attention.
    pub attention: String,
    /// Activation of the feed-forward layers.
    pub feed_forward: String,
    /// Router settings, for files with experts.
    pub experts: String,
}

impl ArchSummary {
    /// Columns with their names.
    pub fn parts(&self) -> [(&'static str, &str); 6] {
        [
            ("norm", &self.norm),
            ("position", &self.position),
            ("mixer", &self.mixer),
            ("attention", &self.attention),
            ("feed_forward", &self.feed_forward),
            ("experts", &self.experts),
        ]
    }
}

/// One field of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Name of the field.
    pub name: &'static str,
    /// Value in words.
    pub value: String,
    /// True if the value is the default.
    pub is_default: bool,
}

impl Arch {
    /// Returns the summary.
    pub fn summary(&self) -> ArchSummary {
        ArchSummary {
            norm: self.norm_in_words(),
            position: self.position_in_words(),
            mixer: self.mixer_in_words(),
            attention: self.attention_in_words(),
            feed_forward: self.activation.words(),
            experts: self.moe.words(),
        }
    }

    /// Returns all fields of the descriptor.
    pub fn properties(&self) -> Vec<Property> {
        macro_rules! properties {
            ($($field:ident),*) => {
                vec![$({
                    let value = self.$field.words();
                    let is_default = value == BASE.$field.words();
                    Property { name: stringify!($field), value, is_default }
                }),*]
            };
        }
        properties!(
            norm,
            norm_weights,
            pre_norm,
            parallel,
            rope,
            rope_layers,
            alibi,
            position_offset,
            causal,
            encoder,
            mixer,
            recurrent,
            pruned,
            windows,
            window_kind,
            window_rope_base,
            query_scale,
            qk_norm,
            attention_gate,
            gated_queries,
            value_norm,
            keys_as_values,
            temperature,
            activation,
            glu_limit,
            default_ff,
            ff_counts_both,
            moe,
            unbiased_sparsity,
            scales,
            hf_norm_offset,
            hf_rotary_share,
            hf_qkv,
            hf_transposed,
            hf_gate_up_alternate,
            gguf_form,
            gguf_names,
            hf_names
        )
    }

    fn norm_in_words(&self) -> String {
        let place = match (self.parallel, self.pre_norm) {
            (true, _) => "parallel",
            (false, true) => "before",
            (false, false) => "after",
        };
        let weights = if self.norm_weights {
            ""
        } else {
            ", no weights"
        };
        format!("{} {place}{weights}", self.norm.words())
    }

    fn position_in_words(&self) -> String {
        match (self.rope_layers, self.alibi) {
            (RopeLayers::None, Alibi::IfGiven) => "as in the file".into(),
            (RopeLayers::None, _) => "ALiBi".into(),
            (RopeLayers::All, Alibi::IfLayers(..)) => "RoPE or ALiBi".into(),
            (RopeLayers::All, _) => "RoPE".into(),
            (layers, _) => format!("RoPE, {}", layers.words()),
        }
    }

    fn mixer_in_words(&self) -> String {
        let Some(recurrent) = &self.recurrent else {
            return self.mixer.words();
        };
        let (kind, attention) = (recurrent.kind.words(), self.mixer.words());
        match recurrent.layers {
            RecurrentLayers::Listed | RecurrentLayers::Exclusive => {
                format!("{kind}, {attention} if listed")
            }
            RecurrentLayers::AllButEvery(n) => format!("{kind}, every {} {attention}", nth(n)),
            RecurrentLayers::Parallel => format!("{kind} parallel to {attention}"),
        }
    }

    fn attention_in_words(&self) -> String {
        let mut parts = Vec::new();
        if let Some(encoder) = self.encoder {
            parts.push(format!("behind the encoder of {}", encoder.name));
        }
        if !self.causal {
            parts.push("bidirectional".into());
        }
        if self.windows != Windows::Never {
            let kind = match self.window_kind {
                WindowKind::Sliding => "windows",
                WindowKind::Chunk(_) => "chunks",
            };
            parts.push(format!("{kind} {}", self.windows.words()));
        }
        parts.extend(enabled(&[
            (self.qk_norm != BASE.qk_norm, "qk norm after RoPE"),
            (self.value_norm, "v norm"),
            (self.keys_as_values, "keys as values"),
            (self.gated_queries, "gated"),
            (self.temperature != BASE.temperature, "temperature"),
            (self.pruned, "heads per layer"),
        ]));
        match parts.is_empty() {
            true => "full".into(),
            false => parts.join(", "),
        }
    }
}

/// Description of a descriptor value in words.
trait Words {
    fn words(&self) -> String;
}

impl Words for bool {
    fn words(&self) -> String {
        if *self { "yes" } else { "no" }.into()
    }
}

impl Words for f32 {
    fn words(&self) -> String {
        self.to_string()
    }
}

impl Words for usize {
    fn words(&self) -> String {
        self.to_string()
    }
}

impl<T: Words> Words for Option<T> {
    fn words(&self) -> String {
        self.as_ref().map_or("none".into(), Words::words)
    }
}

impl Words for &'static Arch {
    fn words(&self) -> String {
        self.name.into()
    }
}

impl Words for TensorRole {
    fn words(&self) -> String {
        let names = [self.gguf, self.hf];
        let name = names.into_iter().find(|name| !name.is_empty());
        name.unwrap_or_default().into()
    }
}

impl Words for &'static [TensorRole] {
    fn words(&self) -> String {
        let roles: Vec<String> = self.iter().map(Words::words).collect();
        list(&roles)
    }
}

impl Words for &'static [(TensorRole, &'static str)] {
    fn words(&self) -> String {
        let name = |(role, name): &(TensorRole, &str)| match *name {
            "" => format!("no {}", role.words()),
            name => format!("{} is {name}", role.words()),
        };
        let names: Vec<String> = self.iter().map(name).collect();
        list(&names)
    }
}

fn list(parts: &[String]) -> String {
    match parts {
        [] => "none".into(),
        parts => parts.join("; "),
    }
}

/// Names of the flags that are set.
fn enabled<'a>(flags: &'a [(bool, &'static str)]) -> impl Iterator<Item = String> + 'a {
    let on = flags.iter().filter(|(is_on, _)| *is_on);
    on.map(|(_, name)| (*name).to_owned())
}

fn nth(n: usize) -> String {
    match n {
        2 => "2nd".into(),
        3 => "3rd".into(),
        n => format!("{n}th"),
    }
}

/// Implements [`Words`] for enums.
macro_rules! words {
    ($($ty:ident { $($pattern:pat $(if $guard:expr)? => $words:expr),* $(,)? })*) => {
        $(impl Words for $ty {
            fn words(&self) -> String {
                match *self { $($pattern $(if $guard)? => String::from($words)),* }
            }
        })*
    };
}

words! {
    NormKind {
        NormKind::Rms => "RMS",
        NormKind::Layer => "layer",
    }
    RopeLayout {
        RopeLayout::Halves => "halves of a head",
        RopeLayout::Interleaved => "neighbors",
    }
    RopeLayouts {
        RopeLayouts { gguf, hf } if gguf == hf => gguf.words(),
        RopeLayouts { gguf, hf } =>
            format!("{} in GGUF, {} in safetensors", gguf.words(), hf.words()),
    }
    RopeLayers {
        RopeLayers::All => "in all layers",
        RopeLayers::None => "in none",
        RopeLayers::AllButEvery(n) => format!("not in every {}", nth(n)),
        RopeLayers::Windowed => "in windowed layers",
        RopeLayers::IfGiven => "if given",
    }
    Alibi {
        Alibi::IfGiven => "if given",
        Alibi::Always(exponent) => format!("always, exponent {exponent}"),
        Alibi::IfLayers(n, exponent) => format!("with {n} layers, exponent {exponent}"),
    }
    Mixer {
        Mixer::Attention => "attention",
        Mixer::Mla => "latent attention",
    }
    RecurrentKind {
        RecurrentKind::ShortConv => "short convolution",
        RecurrentKind::Mamba => "Mamba",
        RecurrentKind::Mamba2 => "Mamba 2",
        RecurrentKind::DeltaNet => "gated delta net",
        RecurrentKind::KimiDelta => "delta net by channel",
        RecurrentKind::Rwkv4 => "RWKV 4",
        RecurrentKind::Rwkv6 => "RWKV 6",
        RecurrentKind::Rwkv7 => "RWKV 7",
    }
    RecurrentLayers {
        RecurrentLayers::Listed => "in the layers that the file lists",
        RecurrentLayers::AllButEvery(n) => format!("in all but every {}", nth(n)),
        RecurrentLayers::Exclusive => "in layers of their own",
        RecurrentLayers::Parallel => "in all, parallel to attention",
    }
    KeySharing {
        KeySharing::Grouped => "consecutive value heads share a key head",
        KeySharing::Interleaved => "value heads cycle through the key heads",
    }
    Windows {
        Windows::Never => "in none",
        Windows::All => "in all",
        Windows::AllButEvery(n) => format!("but every {}", nth(n)),
        Windows::FullFirst(n) => format!("but every {}, from the first", nth(n)),
    }
    WindowKind {
        WindowKind::Sliding => "the last positions",
        WindowKind::Chunk(n) => format!("chunks of {n}"),
    }
    QueryScale {
        QueryScale::HeadDim => "by the head's width",
        QueryScale::HeadDimUnlessLayers(n) =>
            format!("by the head's width; with {n} layers, by embedding / heads"),
        QueryScale::One => "not scaled",
    }
    QkNorm {
        QkNorm::BeforeRope => "before RoPE, where the file has them",
        QkNorm::AfterRope => "after RoPE, where the file has them",
        QkNorm::UnweightedAfterRope(n) =>
            format!("after RoPE, without weights, unless there are {n} experts"),
    }
    TemperatureRule {
        TemperatureRule::IfGiven => "if given",
        TemperatureRule::WithoutRope(factor, period) =>
            format!("in layers without RoPE: {factor} by {period} positions"),
    }
    QkvLayout {
        QkvLayout::Concatenated => "all of q, of k, of v",
        QkvLayout::Grouped => "by key head",
    }
    ActivationRule {
        ActivationRule::Named(activation) | ActivationRule::Always(activation) =>
            activation.words(),
        ActivationRule::Xielu => "xIELU",
        ActivationRule::ReluOrGatedGelu => "ReLU, or GELU (tanh) gated",
    }
    Activation {
        Activation::Silu => "SiLU",
        Activation::GeluTanh => "GELU (tanh)",
        Activation::GeluErf => "GELU",
        Activation::GeluQuick => "GELU (quick)",
        Activation::Relu => "ReLU",
        Activation::ReluSquared => "ReLU²",
        Activation::Sigmoid => "sigmoid",
        Activation::Tanh => "tanh",
        Activation::Softplus => "softplus",
        Activation::Exp => "exp",
        Activation::Reciprocal => "1/x",
    }
    DefaultFf {
        DefaultFf::Quadruple => "4 × the stream",
        DefaultFf::TwoThirds => "8/3 × the stream, rounded up to 256",
    }
    Scales {
        Scales::Given => "as given",
        Scales::GivenMultiply => "as given, logits multiplied",
        Scales::SqrtWidth => "embeddings by the root of their width",
        Scales::MiniCpm => "MiniCPM's",
    }
    Gating {
        Gating::Softmax => "softmax",
        Gating::Sigmoid => "sigmoid",
        Gating::SoftmaxChosen => "softmax of the chosen",
        Gating::SparseMixer { .. } => "SparseMixer",
    }
    GroupScore {
        GroupScore::Best => "groups by their best",
        GroupScore::TwoBest => "groups by their two best",
    }
}

impl Words for MoeSpec {
    fn words(&self) -> String {
        let mut parts = vec![self.gating.words()];
        if self.renormalize {
            parts.push("sum 1".into());
        }
        if self.group_score != BASE.moe.group_score {
            parts.push(self.group_score.words());
        }
        if self.apply_router_weight_on_input {
            parts.push("weighs inputs".into());
        }
        parts.join(", ")
    }
}

impl Words for RecurrentSpec {
    fn words(&self) -> String {
        let mut parts = vec![self.kind.words(), self.layers.words()];
        parts.extend(enabled(&[
            (self.inner_norms, "normalized inside"),
            (self.hf_norm_groups, "norms by group in safetensors"),
        ]));
        if self.gguf_sharing != KeySharing::Grouped {
            parts.push(format!("{} in GGUF", self.gguf_sharing.words()));
        }
        parts.join(", ")
    }
}

impl Words for GgufForm {
    fn words(&self) -> String {
        let parts: Vec<String> = enabled(&[
            (self.split_qkv, "q, k and v separate"),
            (self.fused_experts, "both halves of experts together"),
            (self.absorbed_kv, "k and v ready to be absorbed"),
        ])
        .collect();
        match parts.is_empty() {
            true => "as in safetensors".into(),
            false => parts.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::arch::ARCHS;

    #[test]
    fn summaries_and_properties_describe_the_descriptor() {
        let find = |name| *ARCHS.iter().find(|arch| arch.name == name).unwrap();
        let llama4 = find("llama4");
        let summary = llama4.summary();
        assert_eq!(summary.position, "RoPE, not in every 4th");
        assert!(summary.attention.starts_with("chunks but every 4th"));
        assert_eq!(summary.experts, "sigmoid, weighs inputs");
        assert_eq!(
            find("qwen3next").summary().mixer,
            "gated delta net, every 4th attention"
        );
        let usual = find("xverse").properties();
        let differing: Vec<&str> = usual
            .iter()
            .filter(|property| !property.is_default)
            .map(|property| property.name)
            .collect();
        assert_eq!(differing, ["rope"]);
        // All fields except the two names.
        let gpt_oss = find("gpt-oss").properties();
        assert!(
            gpt_oss
                .iter()
                .any(|property| property.name == "glu_limit" && !property.is_default)
        );
        for arch in ARCHS {
            assert!(
                arch.properties()
                    .iter()
                    .all(|property| !property.value.is_empty())
            );
        }
    }
}

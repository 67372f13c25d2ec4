//! Detects missing optional tensors. Biases and gates are used where the file contains them, so one
//! that only some layers have has been lost.

use std::collections::{BTreeMap, BTreeSet};

/// Suffixes of optional tensors and of the tensors that they accompany.
const COMPANIONS: [(&str, &str); 3] = [
    (".bias", ".weight"),
    (".ffn_gate.weight", ".ffn_up.weight"),
    (".gate_proj.weight", ".up_proj.weight"),
];

/// Name of a tensor that a layer lacks although other layers have theirs.
pub(super) fn find<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    // Layers that contain a name, by the name without the layer number.
    let mut layers: BTreeMap<(&str, &str), BTreeSet<u32>> = BTreeMap::new();
    for (before, layer, after) in names.filter_map(split) {
        layers.entry((before, after)).or_default().insert(layer);
    }
    for (&(before, after), have) in &layers {
        for (optional, companion) in COMPANIONS {
            // Prepends the dot that `split` leaves to the layer number.
            let dotted = format!(".{after}");
            let Some(stem) = dotted.strip_suffix(optional) else {
                continue;
            };
            let with = format!("{stem}{companion}");
            let with = layers.get(&(before, with.trim_start_matches('.')));
            if let Some(layer) = with.and_then(|with| with.difference(have).next()) {
                return Some(format!("{before}.{layer}.{after}"));
            }
        }
    }
    None
}

/// Splits a name around its first number: `blk.3.attn_q.bias` into `blk`, 3 and `attn_q.bias`.
fn split(name: &str) -> Option<(&str, u32, &str)> {
    let mut at = 0;
    for part in name.split('.') {
        if let Ok(layer) = part.parse() {
            let before = name.get(..at)?.strip_suffix('.')?;
            return Some((before, layer, name.get(at + part.len() + 1..)?));
        }
        at += part.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tensor_that_only_some_layers_have() {
        let gated = |layers: &[u32]| {
            let names = [0, 1, 2].map(|i| format!("blk.{i}.ffn_up.weight"));
            let gates = layers.iter().map(|i| format!("blk.{i}.ffn_gate.weight"));
            let names: Vec<String> = names.into_iter().chain(gates).collect();
            find(names.iter().map(String::as_str))
        };
        assert_eq!(gated(&[]), None);
        assert_eq!(gated(&[0, 1, 2]), None);
        assert_eq!(gated(&[0, 2]), Some("blk.1.ffn_gate.weight".into()));
        let names = [
            "model.layers.0.q_proj.weight",
            "model.layers.11.q_proj.weight",
            "model.layers.0.q_proj.bias",
            "model.norm.bias",
        ];
        assert_eq!(
            find(names.into_iter()),
            Some("model.layers.11.q_proj.bias".into())
        );
        // A layer of a different kind has neither tensor.
        assert_eq!(find(names[..1].iter().chain(&names[2..]).copied()), None);
    }
}

//! Tensors of a fixture: patterns of names, and the safetensors file that they stand for.

use serde::Deserialize;
use serde_json::{Map, json};

use crate::weights::weights;

/// Tensors with similar names and the same shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Pattern of the names, for [`names`].
    pub name: String,
    /// Shape of each.
    pub shape: Vec<usize>,
    /// Middle of the elements.
    pub center: f32,
    /// Largest distance of an element from the middle.
    pub spread: f32,
    /// Type in the file; every element is exact in each of them.
    pub dtype: Dtype,
}

/// Type of the elements of a safetensors file.
#[derive(Clone, Copy, Debug, Deserialize)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    BF16,
}

/// Names that a pattern stands for: `a.{0-2}.b` is a.0.b, a.1.b and a.2.b, and `{0,2}` lists numbers.
pub fn names(pattern: &str) -> Vec<String> {
    let Some((head, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (list, tail) = rest.split_once('}').expect("an unclosed brace");
    let tails = names(tail);
    let numbers = list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    numbers
        .flat_map(|number| {
            tails
                .iter()
                .map(move |tail| format!("{head}{number}{tail}"))
        })
        .collect()
}

/// The safetensors file with these tensors.
pub(crate) fn safetensors(entries: &[TensorEntry]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for entry in entries {
        for name in names(&entry.name) {
            let start = data.len();
            let count = entry.shape.iter().product();
            for x in weights(&name, count, entry.center, entry.spread) {
                match entry.dtype {
                    Dtype::F32 => data.extend(f32::from(x).to_le_bytes()),
                    Dtype::F16 => data.extend(half::f16::from_f32(x.into()).to_le_bytes()),
                    Dtype::BF16 => data.extend(x.to_le_bytes()),
                }
            }
            let dtype = format!("{:?}", entry.dtype);
            let place =
                json!({"dtype": dtype, "shape": entry.shape, "data_offsets": [start, data.len()]});
            assert!(
                header.insert(name, place).is_none(),
                "{} is listed twice",
                entry.name
            );
        }
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    file
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn patterns_stand_for_names() {
        assert_eq!(names("norm.weight"), ["norm.weight"]);
        let found = names("h.{0-1,4}.e.{0,2}.w");
        let expected = ["0.e.0", "0.e.2", "1.e.0", "1.e.2", "4.e.0", "4.e.2"];
        assert_eq!(found, expected.map(|part| format!("h.{part}.w")));
    }
}

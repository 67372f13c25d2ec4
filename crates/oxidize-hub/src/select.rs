//! [`select`]: the files of a repository that make a model.

use std::collections::BTreeMap;

use crate::error::{Error, Result, bytes};
use crate::quantization::{bits, split_part, split_quantization};
use crate::reference::Wanted;

/// The quantizations that are preferred if none is asked for, as in llama.cpp.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Words in the names of GGUF files that are no models of their own.
const NO_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// A GGUF model of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Paths of its files; the first one is loaded.
    pub files: Vec<String>,
    /// Size of all files, as far as it is known.
    pub size: u64,
    /// Quantization in the name, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// Name without quantization.
    base: String,
    /// True if nothing but the quantization stands after the base.
    is_plain: bool,
}

impl Candidate {
    /// A model of all these files.
    pub(crate) fn whole(files: &[(String, u64)]) -> Candidate {
        let mut whole = Candidate {
            files: files.iter().map(|(file, _)| file.clone()).collect(),
            size: files
                .iter()
                .map(|(_, size)| *size)
                .fold(0, u64::saturating_add),
            quantization: None,
            ..Candidate::default()
        };
        if let [(file, _)] = files {
            let stem = file
                .rsplit_once('.')
                .map_or(file.as_str(), |(stem, _)| stem);
            whole.quantization =
                split_quantization(stem).map(|(_, quantization)| quantization.to_uppercase());
        }
        whole
    }

    /// Path of the file to load.
    pub fn path(&self) -> &str {
        self.files.first().map_or("", String::as_str)
    }

    fn quantization_is(&self, name: &str) -> bool {
        self.quantization
            .as_deref()
            .is_some_and(|own| own.eq_ignore_ascii_case(name))
    }

    fn shown(&self) -> String {
        format!("{} ({})", self.path(), bytes(self.size))
    }
}

/// The GGUF models among files with their sizes.
pub(crate) fn candidates(files: &[(String, u64)]) -> Vec<Candidate> {
    /// Number of a part, number of parts, and the file.
    type Part<'a> = (u32, u32, &'a (String, u64));
    let mut models: BTreeMap<String, Vec<Part<'_>>> = BTreeMap::new();
    for file in files {
        let name = file.0.rsplit('/').next().unwrap_or_default().to_lowercase();
        let Some(stem) = without_extension(&file.0, "gguf") else {
            continue;
        };
        if NO_MODELS.iter().any(|word| name.contains(word)) {
            continue;
        }
        let (stem, part, total) = split_part(stem).unwrap_or((stem, 1, 1));
        models
            .entry(stem.to_owned())
            .or_default()
            .push((part, total, file));
    }
    let complete = models.into_iter().filter_map(|(stem, mut parts)| {
        parts.sort_by_key(|(part, ..)| *part);
        // All parts of one total, or the model cannot be loaded.
        let total = parts.first()?.1;
        let numbers = parts.iter().map(|(part, ..)| *part);
        if !numbers.eq(1..=total) {
            return None;
        }
        let name = stem.rsplit('/').next().unwrap_or_default();
        let split = split_quantization(name);
        Some(Candidate {
            files: parts.iter().map(|(.., file)| file.0.clone()).collect(),
            size: parts
                .iter()
                .map(|(.., file)| file.1)
                .fold(0, u64::saturating_add),
            quantization: split.map(|(_, quantization)| quantization.to_uppercase()),
            base: split.map_or(name, |(base, _)| base).to_owned(),
            is_plain: split.is_none_or(|(base, quantization)| {
                base.len() + 1 + quantization.len() == name.len()
            }),
        })
    });
    complete.collect()
}

/// Tells which candidates fit in memory, and how many bytes are available.
pub(crate) type Fits<'a> = dyn Fn(&[Candidate]) -> Result<(Vec<bool>, u64)> + 'a;

/// Chooses the files of a model. The first one is to be loaded; for safetensors, it is their directory. `fits` tells
/// whether a model fits in memory, and how many bytes are available.
pub(crate) fn select(
    name: &str,
    files: &[(String, u64)],
    wanted: &Wanted,
    fits: &Fits<'_>,
) -> Result<Choice> {
    let models = candidates(files);
    let shown = |models: &[Candidate]| models.iter().map(Candidate::shown).collect::<Vec<_>>();
    let no_match = |wanted: &str| Error::NoMatch {
        name: name.into(),
        wanted: wanted.into(),
        available: match models.is_empty() {
            true => files.iter().map(|(path, _)| path.clone()).collect(),
            false => shown(&models),
        },
    };
    let only = |wanted: &str, matches: Vec<&Candidate>| match matches.as_slice() {
        [] => Err(no_match(wanted)),
        [one] => Ok(Choice::of(one)),
        several => {
            // A plain quantization goes before `UD-Q4_K_M` and the like.
            let plain: Vec<_> = several
                .iter()
                .filter(|model| model.is_plain && model.quantization_is(wanted))
                .collect();
            let matches = several.iter().map(|model| model.shown()).collect();
            match plain.as_slice() {
                [one] => Ok(Choice::of(one)),
                _ => Err(Error::Ambiguous {
                    name: name.into(),
                    wanted: wanted.into(),
                    matches,
                }),
            }
        }
    };
    match wanted {
        Wanted::File(path) => {
            if let Some(model) = models.iter().find(|model| model.files.contains(path)) {
                return Ok(Choice::of(model));
            }
            match files.iter().any(|(known, _)| known == path) {
                true => Ok(Choice {
                    files: vec![path.clone()],
                    is_directory: false,
                    others: Vec::new(),
                }),
                false => Err(no_match(path)),
            }
        }
        Wanted::Quantization(tag) => {
            let exact: Vec<_> = models
                .iter()
                .filter(|model| model.quantization_is(tag))
                .collect();
            if !exact.is_empty() {
                return only(tag, exact);
            }
            only(
                tag,
                models
                    .iter()
                    .filter(|model| has_tag(model.path(), tag))
                    .collect(),
            )
        }
        Wanted::Default | Wanted::Auto if models.is_empty() => safetensors(name, files),
        Wanted::Auto => {
            let (fit, available) = fits(&models)?;
            let fitting = models
                .iter()
                .zip(fit)
                .filter(|(_, fits)| *fits)
                .map(|(model, _)| model);
            // Among equal sizes, the plain name.
            let best = fitting.max_by_key(|model| (model.size, model.is_plain));
            best.map(Choice::of).ok_or_else(|| Error::NoFit {
                name: name.into(),
                available,
                smallest: models
                    .iter()
                    .min_by_key(|m| m.size)
                    .map(Candidate::shown)
                    .unwrap_or_default(),
            })
        }
        Wanted::Default => {
            for preferred in PREFERRED {
                let matches: Vec<_> = models
                    .iter()
                    .filter(|model| model.quantization_is(preferred))
                    .collect();
                if !matches.is_empty() {
                    let mut choice = only(preferred, matches)?;
                    choice.others = others(&models, &choice);
                    return Ok(choice);
                }
            }
            let bases = models.iter().map(|model| &model.base);
            if bases.clone().zip(bases.skip(1)).any(|(a, b)| a != b) {
                return Err(Error::Ambiguous {
                    name: name.into(),
                    wanted: "no quantization".into(),
                    matches: shown(&models),
                });
            }
            // The smallest of at least 4 bits, or else the largest.
            let rank = |model: &&Candidate| match model.quantization.as_deref().and_then(bits) {
                Some(bits) if bits < 4 => (true, u64::MAX - model.size),
                _ => (false, model.size),
            };
            let best = models.iter().min_by_key(rank).ok_or_else(|| no_match(""))?;
            let mut choice = Choice::of(best);
            choice.others = others(&models, &choice);
            Ok(choice)
        }
    }
}

/// Files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Files; the first is to be loaded, unless the directory is.
    pub(crate) files: Vec<String>,
    /// True if the directory is to be loaded: a safetensors model.
    pub(crate) is_directory: bool,
    /// Other quantizations that a default choice has left out.
    pub(crate) others: Vec<String>,
}

impl Choice {
    fn of(model: &Candidate) -> Choice {
        Choice {
            files: model.files.clone(),
            is_directory: false,
            others: Vec::new(),
        }
    }
}

fn others(models: &[Candidate], choice: &Choice) -> Vec<String> {
    let others = models.iter().filter(|model| model.files != choice.files);
    others
        .map(|model| {
            model
                .quantization
                .clone()
                .unwrap_or_else(|| model.path().to_owned())
        })
        .collect()
}

/// All files of a safetensors model: weights, configuration and tokenizer.
fn safetensors(name: &str, files: &[(String, u64)]) -> Result<Choice> {
    let is_top = |path: &str| !path.contains('/');
    let weights: Vec<&String> = files.iter().map(|(path, _)| path).collect();
    let mut weights: Vec<&String> = weights
        .into_iter()
        .filter(|path| is_top(path) && without_extension(path, "safetensors").is_some())
        .collect();
    // Mistral's own format lies beside that of transformers.
    if weights.iter().any(|path| path.starts_with("model")) {
        weights.retain(|path| !path.starts_with("consolidated"));
    }
    if weights.is_empty() {
        let available = files.iter().map(|(path, _)| path.clone()).collect();
        return Err(Error::NoModel {
            name: name.into(),
            available,
        });
    }
    let is_text = |path: &str| {
        let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
        match ending {
            "json" => path.matches('/').count() <= 1,
            "txt" => is_top(path) && (path.contains("vocab") || path.contains("merges")),
            "model" | "tiktoken" | "jinja" => is_top(path),
            _ => false,
        }
    };
    let texts = files
        .iter()
        .map(|(path, _)| path)
        .filter(|path| is_text(path));
    Ok(Choice {
        files: weights.into_iter().chain(texts).cloned().collect(),
        is_directory: true,
        others: Vec::new(),
    })
}

/// True if the path has the tag before a dot or a dash, in any case.
fn has_tag(path: &str, tag: &str) -> bool {
    let (path, tag) = (path.to_lowercase(), tag.to_lowercase());
    [".", "-"]
        .iter()
        .any(|end| path.contains(&format!("{tag}{end}")))
}

/// The path without this extension, in any case.
pub(crate) fn without_extension<'a>(path: &'a str, extension: &str) -> Option<&'a str> {
    let (stem, found) = path.rsplit_once('.')?;
    found.eq_ignore_ascii_case(extension).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[(&str, u64)]) -> Vec<(String, u64)> {
        names
            .iter()
            .map(|(name, size)| ((*name).to_owned(), *size))
            .collect()
    }

    fn chosen(names: &[(&str, u64)], wanted: &Wanted) -> Result<Vec<String>> {
        let fits =
            |models: &[Candidate]| Ok((models.iter().map(|model| model.size <= 50).collect(), 50));
        select("hf:u/r", &files(names), wanted, &fits).map(|choice| choice.files)
    }

    fn quant(tag: &str) -> Wanted {
        Wanted::Quantization(tag.into())
    }

    const REPO: [(&str, u64); 9] = [
        ("README.md", 1),
        ("m-Q8_0.gguf", 80),
        ("m-Q4_K_M.gguf", 45),
        ("m-UD-Q4_K_M.gguf", 46),
        ("m-Q2_K.gguf", 20),
        ("m-F16-00002-of-00002.gguf", 80),
        ("m-F16-00001-of-00002.gguf", 80),
        ("mmproj-m-Q8_0.gguf", 9),
        ("m-Q5_K_M-00001-of-00002.gguf", 9),
    ];

    #[test]
    fn quantizations_are_chosen() {
        for (wanted, expected) in [
            (Wanted::Default, vec!["m-Q4_K_M.gguf"]),
            (quant("q8_0"), vec!["m-Q8_0.gguf"]),
            (
                quant("f16"),
                vec!["m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"],
            ),
            (quant("ud-q4_k_m"), vec!["m-UD-Q4_K_M.gguf"]),
            (Wanted::Auto, vec!["m-UD-Q4_K_M.gguf"]),
            (
                Wanted::File("mmproj-m-Q8_0.gguf".into()),
                vec!["mmproj-m-Q8_0.gguf"],
            ),
        ] {
            assert_eq!(chosen(&REPO, &wanted).unwrap(), expected, "{wanted:?}");
        }
        // Without the second part, there is no Q5_K_M.
        let error = chosen(&REPO, &quant("Q5_K_M")).unwrap_err().to_string();
        assert!(
            error.contains("hf:u/r") && error.contains("m-Q2_K.gguf (20 B)"),
            "{error}"
        );
    }

    #[test]
    fn several_matches_are_listed() {
        let two = [("a-Q4_K_M.gguf", 1), ("b-Q4_K_M.gguf", 1)];
        for wanted in [Wanted::Default, quant("Q4_K_M")] {
            let error = chosen(&two, &wanted).unwrap_err();
            assert!(
                matches!(&error, Error::Ambiguous { matches, .. } if matches.len() == 2),
                "{error}"
            );
        }
        let other = [
            ("a-IQ4_XS.gguf", 4),
            ("a-Q6_K.gguf", 6),
            ("a-Q3_K_S.gguf", 3),
        ];
        assert_eq!(chosen(&other, &Wanted::Default).unwrap(), ["a-IQ4_XS.gguf"]);
        assert!(matches!(
            chosen(&[("a-Q6_K.gguf", 60)], &Wanted::Auto),
            Err(Error::NoFit { .. })
        ));
    }

    #[test]
    fn safetensors_come_with_their_configuration() {
        let repo = [
            ("model.safetensors", 9),
            ("consolidated.safetensors", 9),
            ("config.json", 1),
            ("1_Pooling/config.json", 1),
            ("tokenizer.model", 1),
            ("README.md", 1),
            ("onnx/model.onnx", 9),
            ("pytorch_model.bin", 9),
        ];
        let expected = [
            "model.safetensors",
            "config.json",
            "1_Pooling/config.json",
            "tokenizer.model",
        ];
        assert_eq!(chosen(&repo, &Wanted::Default).unwrap(), expected);
        assert!(matches!(
            chosen(&repo[5..], &Wanted::Default),
            Err(Error::NoModel { .. })
        ));
    }
}

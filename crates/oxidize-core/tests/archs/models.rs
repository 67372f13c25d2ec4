//! Golden models: the fixtures of the project, and larger sets beside the checkout.

use oxidize_core::arch::{ARCHS, Arch};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_golden::{Case, Fixture, Form, fingerprint};
use std::path::{Path, PathBuf};

/// A golden model.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) cases: Vec<Case>,
    pub(crate) forms: Vec<Form>,
    files: Files,
}

/// Kind of a golden model, which determines its reference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Logits at every position.
    Decoder,
    /// Hidden states at every position, and an embedding.
    Encoder,
    /// Logits of a decoder with an encoder.
    EncoderDecoder,
}

enum Files {
    /// Files that follow from a fixture.
    Fixture(Box<Fixture>),
    /// Stored files.
    Directory(PathBuf),
}

impl Golden {
    /// The files of the model.
    pub(crate) fn open(&self) -> oxidize_golden::Golden {
        match &self.files {
            Files::Fixture(fixture) => fixture.build(),
            Files::Directory(path) => oxidize_golden::Golden::stored(path.clone()),
        }
    }

    fn of_fixture(fixture: Fixture) -> Golden {
        let first = &fixture.cases[0];
        let kind = match (first.decoder_tokens.is_empty(), first.hidden.is_empty()) {
            (false, _) => Kind::EncoderDecoder,
            (true, false) => Kind::Encoder,
            (true, true) => Kind::Decoder,
        };
        let both = [Form::Directory, Form::Gguf];
        Golden {
            name: fixture.name.clone(),
            kind,
            cases: fixture.cases.clone(),
            forms: both.into_iter().filter(|form| fixture.has(*form)).collect(),
            files: Files::Fixture(Box::new(fixture)),
        }
    }
}

/// Golden models of the project: `fixtures/golden`, and the stored models of `fixtures/encoders`.
pub(crate) fn own() -> Vec<Golden> {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/encoders");
    let mut models: Vec<Golden> = Fixture::all().into_iter().map(Golden::of_fixture).collect();
    models.extend(listed(&stored));
    wanted(models)
}

/// Golden models beside the checkout. The running test is skipped if they are missing.
pub(crate) fn beside() -> Vec<Golden> {
    let sets = ["golden", "golden-extra"].map(oxidize_testing::beside);
    let models: Vec<Golden> = sets.iter().flat_map(|set| listed(set)).collect();
    assert!(models.len() >= 100, "only {} models found", models.len());
    wanted(models)
}

/// The models whose name contains `OXIDIZE_GOLDEN`.
fn wanted(mut models: Vec<Golden>) -> Vec<Golden> {
    let wanted = std::env::var("OXIDIZE_GOLDEN").unwrap_or_default();
    models.retain(|model| model.name.contains(&wanted));
    models
}

/// The models in the `INDEX.tsv` of a directory that have a usable form.
fn listed(directory: &Path) -> Vec<Golden> {
    let index = std::fs::read_to_string(directory.join("INDEX.tsv")).unwrap();
    let models = index.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let (name, arch, status, kind) = (fields[0], fields[2], fields[3], fields[5]);
        let kind = match kind {
            "lm" => Kind::Decoder,
            // The index calls GPT-2 an encoder, because of how its logits were computed.
            "encoder" if name == "gpt2" => Kind::Decoder,
            "encoder" => Kind::Encoder,
            _ => Kind::EncoderDecoder,
        };
        let dir = directory.join(name);
        let forms = forms(name, &dir, arch, status == "gold");
        Golden {
            name: name.to_owned(),
            kind,
            cases: if forms.is_empty() {
                Vec::new()
            } else {
                stored_cases(&dir)
            },
            forms,
            files: Files::Directory(dir),
        }
    });
    models.filter(|model| !model.forms.is_empty()).collect()
}

/// Forms of a stored model: the GGUF file if the index marks it as valid, and the safetensors directory.
fn forms(name: &str, dir: &Path, arch: &str, is_valid: bool) -> Vec<Form> {
    let mut forms = Vec::new();
    let is_known = ARCHS.iter().any(|known| known.name == arch);
    if is_valid && is_known && dir.join("model.gguf").exists() {
        forms.push(Form::Gguf);
    }
    // The class in the model's own configuration; the index has the one that computed the reference.
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap_or_default();
    let class = |class: &&str| config.contains(&format!("\"{class}\""));
    // References of these follow the GGUF implementation of the family.
    let gguf_only = name.ends_with("-lcsem");
    if !gguf_only && ARCHS.iter().any(|known| known.hf_classes.iter().any(class)) {
        forms.push(Form::Directory);
    }
    forms
}

/// The inputs and outputs in `ref.safetensors`, which has all positions.
fn stored_cases(dir: &Path) -> Vec<Case> {
    let file = ModelFile::open(dir.join("ref.safetensors"), &OpenOptions::default()).unwrap();
    let read = |name: String| -> Vec<[u8; 4]> {
        let data = file.tensor(&name).map(|info| file.data(info).unwrap());
        let (numbers, _) = data.as_deref().unwrap_or_default().as_chunks();
        numbers.to_vec()
    };
    let ids = |name: String| -> Vec<u32> {
        let ids = read(name).into_iter().map(u32::from_le_bytes);
        ids.collect()
    };
    let floats = |name: String| read(name).into_iter().map(f32::from_le_bytes).collect();
    let case = |i: usize| {
        let (tokens, decoder_tokens) = (
            ids(format!("tokens_{i}")),
            ids(format!("decoder_tokens_{i}")),
        );
        let n_positions = match decoder_tokens.len() {
            0 => tokens.len(),
            n => n,
        };
        Case {
            tokens,
            decoder_tokens,
            positions: (0..n_positions).collect(),
            logits: floats(format!("logits_{i}")),
            hidden: floats(format!("hidden_{i}")),
            pooled: floats(format!("pooled_{i}")),
            pair: floats(format!("pair_{i}")),
        }
    };
    (0..3).map(case).collect()
}

/// Every descriptor reads a golden directory, if it reads directories, and a golden GGUF file, if it is the one that
/// reads GGUF files of this name.
pub(crate) fn every_architecture_has_golden_models() {
    let mut read: Vec<(&'static Arch, Form)> = Vec::new();
    for golden in own() {
        let files = golden.open();
        for form in golden.forms {
            let file = ModelFile::open(files.path(form), &OpenOptions::default()).unwrap();
            read.push((Arch::detect(&file).unwrap(), form));
        }
    }
    let has = |arch: &Arch, form| {
        let same = |(known, its_form): &(&Arch, _)| std::ptr::eq(*known, arch) && *its_form == form;
        read.iter().any(same)
    };
    let mut missing = Vec::new();
    for arch in ARCHS.iter().copied() {
        if !arch.hf_classes.is_empty() && !has(arch, Form::Directory) {
            missing.push(format!(
                "{}: no directory of {:?}",
                arch.name, arch.hf_classes
            ));
        }
        let first = ARCHS.iter().find(|other| other.name == arch.name);
        if first.is_some_and(|first| std::ptr::eq(*first, arch)) && !has(arch, Form::Gguf) {
            missing.push(format!("{}: no GGUF file", arch.name));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Both forms of a model would still agree if the converter and the loader made the same mistake, such as rows of q in
/// another order. Files of llama.cpp's converter would not load correctly then.
pub(crate) fn gguf_files_have_the_stored_form() {
    let mut wrong = Vec::new();
    for fixture in Fixture::all() {
        let file = ModelFile::open(fixture.build().gguf(), &OpenOptions::default()).unwrap();
        let found = fingerprint(&file).unwrap();
        let stored = fixture.gguf_fingerprint;
        if stored.is_none_or(|stored| (stored - found).abs() > 1e-3) {
            let name = &fixture.name;
            wrong.push(format!(
                "{name}: \"gguf_fingerprint\": {found:.4}, not {stored:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

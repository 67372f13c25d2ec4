//! Every template of the test cache renders to exactly what Jinja2 gives. The vectors come from
//! `scripts/template_vectors.py`; a few small ones are committed in `fixtures/`.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use oxidize_core::chat::{ChatError, ChatOptions, ChatTemplate};
use serde_json::Value as Json;

/// The moment the vectors were rendered at.
fn options() -> ChatOptions {
    ChatOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        ..Default::default()
    }
}

/// Checks one file of vectors and returns how many conversations rendered and what differed.
fn check(path: &Path) -> (usize, Vec<String>) {
    let name = path.file_stem().unwrap().to_string_lossy().into_owned();
    let vectors: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let template = match ChatTemplate::new(vectors["source"].as_str().unwrap(), options()) {
        Ok(template) => template,
        Err(error) => return (0, vec![format!("{name}: {error}")]),
    };
    let mut rendered = 0;
    let mut failures = Vec::new();
    for case in vectors["cases"].as_array().unwrap() {
        let ours = template.render_variables(case["variables"].as_object().unwrap());
        match (case["expected"].as_str(), ours) {
            (Some(want), Ok(got)) if got == want => rendered += 1,
            (Some(want), Ok(got)) => {
                let at = want
                    .bytes()
                    .zip(got.bytes())
                    .take_while(|(a, b)| a == b)
                    .count();
                let tail = |text: &str| {
                    let from = text.floor_char_boundary(at.saturating_sub(20));
                    text[from..].chars().take(80).collect::<String>()
                };
                failures.push(format!(
                    "{name} {}: differs at byte {at}\n    want …{:?}\n    got  …{:?}",
                    case["name"],
                    tail(want),
                    tail(&got)
                ));
            }
            (Some(_), Err(error)) => failures.push(format!("{name} {}: {error}", case["name"])),
            // What a template refuses on purpose we refuse in its words. Where Python trips over a type (a loop
            // over None), we may be kinder.
            (None, ours) => {
                let error = case["error"].as_str().unwrap();
                if let Some(message) = error.strip_prefix("TemplateError: ")
                    && !matches!(&ours, Err(ChatError::Refused(refused)) if refused == message)
                {
                    failures.push(format!(
                        "{name} {}: {ours:?} instead of {error}",
                        case["name"]
                    ));
                }
            }
        }
    }
    (rendered, failures)
}

fn vectors_in(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    paths.sort();
    paths
}

fn assert_all(paths: &[PathBuf]) -> usize {
    let mut rendered = 0;
    let mut failures = Vec::new();
    for path in paths {
        let (n, failed) = check(path);
        rendered += n;
        failures.extend(failed);
    }
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
    rendered
}

#[test]
fn templates_of_the_cache_render_as_jinja2_does() {
    let cache = std::env::var_os("OXIDIZE_TEST_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/oxidize")
        });
    let paths = vectors_in(&cache.join("vectors/templates"));
    if paths.is_empty() {
        eprintln!(
            "SKIPPED: no vectors in {}/vectors/templates; run scripts/template_vectors.py",
            cache.display()
        );
        return;
    }
    let rendered = assert_all(&paths);
    eprintln!("{} templates, {rendered} renderings equal", paths.len());
    assert!(
        rendered > paths.len() * 5,
        "most conversations should render"
    );
}

#[test]
fn committed_templates_render_as_jinja2_does() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/chat_templates");
    let paths = vectors_in(&folder);
    assert!(!paths.is_empty(), "no fixtures in {}", folder.display());
    assert!(assert_all(&paths) >= 10);
}

//! `oxidize embed`.

use super::{model, oxidize, text_file};

#[test]
fn blank_lines_of_a_file_are_skipped_and_named() {
    let model = model();
    let embed = |text: &str| {
        let (_dir, path) = text_file(text);
        oxidize(&["embed", "-m", &model, "-f", &path])
    };
    let whole = embed("one\ntwo\n");
    assert!(!whole.stderr.contains("warning"), "{}", whole.stderr);
    let whole = whole.ok();
    assert_eq!(whole.lines().count(), 2);
    let gaps = embed("one\n\ntwo\n  \n");
    assert!(
        gaps.stderr.contains("lines 2, 4 are blank"),
        "{}",
        gaps.stderr
    );
    assert_eq!(gaps.ok(), whole);
    let gap = embed("\none\ntwo\n");
    assert!(gap.stderr.contains("line 1 is blank"), "{}", gap.stderr);
    assert!(embed("\n \n").error().contains("no text"));
    let long = format!("one\n{}\n", "word ".repeat(5000));
    let error = embed(&long).error();
    assert!(error.contains("line 2: input has"), "{error}");
}

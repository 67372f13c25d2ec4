//! `oxidize archs`.

use super::oxidize;

#[test]
fn architectures_are_listed_with_their_properties() {
    let names = oxidize(&["archs", "--names"]).ok();
    assert!(names.lines().count() >= 60, "{names}");
    let table = oxidize(&["archs"]).ok();
    assert!(names.lines().all(|name| table.contains(name)));
    let row = |name: &str| {
        let mut rows = table
            .lines()
            .filter(|line| line.split(' ').next() == Some(name));
        rows.next().unwrap_or_default().to_owned()
    };
    assert!(row("gemma2").contains("windows but every 2nd"), "{table}");
    assert!(row("deepseek2").contains("latent attention"));
    assert!(row("falcon").contains("layer parallel"));

    let one = oxidize(&["archs", "smollm3"]).ok();
    let rope_layers = one.lines().find(|line| line.contains("rope_layers"));
    assert!(rope_layers.unwrap().contains("* rope_layers"), "{one}");
    assert!(one.lines().any(|line| line.contains("  glu_limit")));
    // A Hugging Face class name selects the same descriptor.
    assert_eq!(oxidize(&["archs", "SmolLM3ForCausalLM"]).ok(), one);
    let list = oxidize(&["archs", "qwen3", "--json"]).json();
    let list = list.as_array().unwrap();
    assert_eq!((list.len(), &list[0]["name"]), (1, &"qwen3".into()));
    assert_eq!(list[0]["summary"]["norm"], "RMS before");
    assert!(list[0]["properties"].as_object().unwrap().is_empty());
    assert!(oxidize(&["archs", "nothing"]).error().contains("nothing"));
}

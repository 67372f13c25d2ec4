//! Importance matrices, comparisons, reports and target sizes.

use std::sync::Mutex;

use oxidize_core::backend::cpu::Cpu;
use oxidize_core::backend::{Batch, SeqSlice, SessionConfig};
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::kv::BlockId;
use oxidize_core::model::Model;
use oxidize_quantize::compare::{self, compare};
use oxidize_quantize::imatrix::{self, collect};
use oxidize_quantize::output::Parts;
use oxidize_quantize::plan::{Plan, QuantizeParams, model_info};
use oxidize_quantize::quantize::{
    Options, Progress, QuantJob, ReportOptions, quantize, tensors_of,
};
use oxidize_quantize::report::Report;
use oxidize_quantize::split::rewrite;
use oxidize_quantize::target::plan_for_size;
use oxidize_quantize::text::Text;
use oxidize_quantize::workers::Workers;

use super::{fingerprint, importance, open, params, quantized, synthetic, tiny};

fn text() -> Text {
    Text {
        file: "text.txt".into(),
        content: "The quick brown fox jumps over the lazy dog; 1, 2, 3. ".repeat(60),
    }
}

/// The plan for an average of `bits` per weight.
fn fitted(
    file: &ModelFile,
    bits: f64,
    params: &QuantizeParams,
    progress: impl Fn(Progress<'_>) + Sync,
) -> oxidize_quantize::Result<Plan> {
    let (tensors, info) = (tensors_of(file), model_info(file, false));
    let elements: u64 = tensors.iter().map(|tensor| tensor.elements()).sum();
    let bytes = (bits * elements as f64 / 8.0) as u64;
    let wanted = (params, &info);
    plan_for_size(&tensors, bytes, None, wanted, &Workers::default(), progress)
}

fn load(path: &std::path::Path) -> Model {
    Model::load_with(path, &OpenOptions::default()).unwrap()
}

fn options(n_ctx: usize) -> compare::Options {
    compare::Options {
        n_ctx: Some(n_ctx),
        chunks: Some(3),
        ..compare::Options::default()
    }
}

pub(crate) fn comparison_with_itself_is_zero() {
    let model = load(&tiny());
    let same = compare(&model, &model, &text(), &options(64), |_, _, _| Ok(())).unwrap();
    assert_eq!((same.mean_kl, same.top1_agreement), (0.0, 1.0));
    assert_eq!(same.perplexity_ratio, 1.0);
    assert_eq!(same.tokens, 3 * 31);
}

/// Requests that score no token are errors that name the flag or the text.
pub(crate) fn requests_without_scored_tokens_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let model = load(&tiny());
    let short = Text {
        content: "short".into(),
        ..text()
    };
    let none = compare::Options {
        chunks: Some(0),
        ..options(64)
    };
    for (text, compare_options, expected) in [
        (&text(), none, "--chunks 0: at least 1 is required"),
        (&text(), options(1), "-c 1: at least 3 is required"),
        (&text(), options(2), "-c 2: at least 3 is required"),
        (&short, options(64), "text.txt: the text has"),
        (&short, options(0), "text.txt: the text has"),
    ] {
        let error = compare(&model, &model, text, &compare_options, |_, _, _| Ok(()));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        let report = ReportOptions {
            command: String::new(),
            text: Some(text),
            compare: compare_options,
        };
        let options = Options {
            report: Some(report),
            ..Options::default()
        };
        let error = quantized(&tiny(), &path, &params("Q4_0"), &options).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    let asked = compare::Options {
        n_ctx: Some(3),
        chunks: Some(1),
        ..options(3)
    };
    let least = compare(&model, &model, &text(), &asked, |_, _, _| Ok(())).unwrap();
    assert_eq!(least.tokens, 1);
}

pub(crate) fn kl_divergence_grows_with_fewer_bits() {
    let dir = tempfile::tempdir().unwrap();
    let model = load(&tiny());
    let mut before = 0.0;
    for recipe in ["Q8_0", "INT8", "Q5_0", "Q4_0"] {
        let path = dir.path().join("out.gguf");
        quantized(&tiny(), &path, &params(recipe), &Options::default()).unwrap();
        let result = compare(
            &model,
            &load(&path),
            &text(),
            &options(64),
            |_, _, _| Ok(()),
        )
        .unwrap();
        assert!(
            result.mean_kl > before,
            "{recipe}: {} after {before}",
            result.mean_kl
        );
        assert!(result.max_kl >= result.kl_99 && result.kl_99 >= result.median_kl);
        before = result.mean_kl;
    }
}

/// The sums are those of the matrices' inputs: in the first layer, of the normalized embeddings.
pub(crate) fn importance_sums_squared_inputs() {
    let model = load(&tiny());
    let collect_options = imatrix::Options {
        n_ctx: 64,
        chunks: Some(2),
        skip: 0,
        output: false,
        settings: Default::default(),
        ..imatrix::Options::default()
    };
    let all = collect(&model, &text(), &collect_options, |_, _, _| Ok(())).unwrap();
    assert_eq!((all.chunks, all.chunk_size), (2, 64));
    let q = &all.entries["blk.0.attn_q.weight"];
    assert_eq!((q.sums.len(), q.counts.as_slice()), (64, &[128.0][..]));
    // Matrices with the same inputs have equal sums, and one of them has the sketch.
    let k = &all.entries["blk.0.attn_k.weight"];
    assert_eq!((&q.sums, &q.counts), (&k.sums, &k.counts));
    assert!(q.sketch.is_some() && k.sketch.is_none());
    assert_eq!(all.entries["blk.1.ffn_down.weight"].sums.len(), 96);
    assert!(!all.entries.contains_key("token_embd.weight"));

    // Reference: x / √mean(x²) · weight.
    let file = open(&tiny());
    let floats = |name: &str| {
        let mut floats = Vec::new();
        let info = file.tensor(name).unwrap();
        file.for_each_f32::<oxidize_core::Error>(info, |piece| {
            floats.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        floats
    };
    let (table, norm) = (
        floats("token_embd.weight"),
        floats("blk.0.attn_norm.weight"),
    );
    let chunks = oxidize_quantize::evaluate::Chunks::new(&model, &text(), 64, Some(2)).unwrap();
    let mut expected = vec![0.0f64; 64];
    for (input, _) in chunks.iter() {
        for token in input {
            let row = &table[token as usize * 64..][..64];
            let mean = row.iter().map(|x| x * x).sum::<f32>() / 64.0;
            let scale = 1.0 / (mean + model.hparams().epsilon).sqrt();
            for ((sum, x), weight) in expected.iter_mut().zip(row).zip(&norm) {
                *sum += f64::from(x * scale * weight).powi(2);
            }
        }
    }
    for (ours, expected) in q.sums.iter().zip(&expected) {
        assert!(
            (f64::from(*ours) / expected - 1.0).abs() < 1e-3,
            "{ours} {expected}"
        );
    }

    // Two partial runs add up to the same sums.
    let first = imatrix::Options {
        chunks: Some(1),
        ..collect_options.clone()
    };
    let second = imatrix::Options {
        skip: 1,
        ..collect_options
    };
    let mut parts = collect(&model, &text(), &first, |_, _, _| Ok(())).unwrap();
    let rest = collect(&model, &text(), &second, |_, _, _| Ok(())).unwrap();
    parts.merge(&rest).unwrap();
    for (name, entry) in &all.entries {
        for (a, b) in entry.sums.iter().zip(&parts.entries[name].sums) {
            assert!((a - b).abs() <= 1e-4 * a.abs(), "{name}");
        }
    }
    assert_eq!(parts.chunks, 2);
}

/// Columns with higher importance have smaller errors.
pub(crate) fn important_columns_have_smaller_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F32", 1);
    let importance = importance(&input, |column| if column % 4 == 0 { 1000.0 } else { 1.0 });
    let error = |recipe: &str, importance| {
        let options = Options {
            importance,
            ..Options::default()
        };
        let asked = oxidize_quantize::plan::QuantizeParams {
            pure: true,
            ..params(recipe)
        };
        quantized(&input, &output, &asked, &options).unwrap();
        let (from, to) = (open(&input), open(&output));
        let read = |file: &oxidize_core::file::ModelFile| {
            let mut floats = Vec::new();
            let info = file.tensor("blk.0.ffn_down.weight").unwrap();
            file.for_each_f32::<oxidize_core::Error>(info, |piece| {
                floats.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
            floats
        };
        let (from, to) = (read(&from), read(&to));
        let errors = from.iter().zip(&to).step_by(4);
        errors.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    for recipe in [
        "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M",
        "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    ] {
        let (plain, weighted) = (error(recipe, None), error(recipe, Some(&importance)));
        assert!(weighted < plain, "{recipe}: {weighted} and {plain}");
    }
}

pub(crate) fn report_is_stored_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let text = text();
    let options = Options {
        report: Some(ReportOptions {
            command: "oxidize quantize \"in\" out Q4_0".into(),
            text: Some(&text),
            compare: options(64),
        }),
        ..Options::default()
    };
    quantized(&tiny(), &path, &params("Q4_0"), &options).unwrap();
    let file = open(&path);
    let report = Report::of(&file).unwrap();
    assert_eq!(
        (report.recipe.as_str(), report.source.as_str()),
        ("Q4_0", "model.gguf")
    );
    assert_eq!(report.command, "oxidize quantize \"in\" out Q4_0");
    assert_eq!(report.tensors.len(), file.tensors().len());
    for tensor in &report.tensors {
        assert_eq!(
            tensor.error.is_some(),
            tensor.from != tensor.to,
            "{}",
            tensor.name
        );
        assert!(tensor.error.is_none_or(|error| (0.0..0.2).contains(&error)));
    }
    assert!(report.comparison.as_ref().unwrap().mean_kl > 0.0);
    // The report is written into reserved space and does not change the tensors.
    let plain = dir.path().join("plain.gguf");
    quantized(&tiny(), &plain, &params("Q4_0"), &Options::default()).unwrap();
    assert_eq!(fingerprint(&path), fingerprint(&plain));
    assert!(oxidize_quantize::html::page(&report).contains("Error by tensor"));
}

pub(crate) fn int8_files_have_the_key() {
    use oxidize_core::file::TensorType;
    use oxidize_core::gguf::INT8_KEY;

    let dir = tempfile::tempdir().unwrap();
    let [int8, copied, plain] = ["int8", "copied", "plain"].map(|name| dir.path().join(name));
    quantized(&tiny(), &int8, &params("INT8"), &Options::default()).unwrap();
    let types = |path: &std::path::Path, ty| {
        let file = open(path);
        file.tensors().iter().filter(|t| t.ty == ty).count()
    };
    let matrices = types(&int8, TensorType::INT8);
    assert!(matrices > 0 && types(&int8, TensorType::Q8_0) == 0);
    // Other programs read the tensors as Q8_0.
    let bytes = std::fs::read(&int8).unwrap();
    let length = bytes.len() as u64;
    let bytes = oxidize_core::io::SharedBytes::from(bytes);
    let header = oxidize_core::gguf::parse(&bytes, length, &Default::default());
    let stored = header.unwrap().tensors;
    let q8_0 = stored.iter().filter(|t| t.ty == TensorType::Q8_0).count();
    assert_eq!(q8_0, matrices);
    // The key is copied with INT8 tensors and dropped when they are requantized.
    rewrite(
        &open(&int8),
        &copied,
        &Parts::One,
        &Workers::default(),
        |_| {},
    )
    .unwrap();
    assert_eq!(types(&copied, TensorType::INT8), matrices);
    let requantize = Options {
        allow_requantize: true,
        ..Options::default()
    };
    quantized(&int8, &plain, &params("Q8_0"), &requantize).unwrap();
    assert_eq!(open(&plain).metadata().bool(INT8_KEY), None);
}

/// Measuring types, writing and comparing report their progress up to the end.
pub(crate) fn long_steps_report_progress() {
    let dir = tempfile::tempdir().unwrap();
    let (file, text) = (open(&tiny()), text());
    let tensors = tensors_of(&file);
    let measured = Mutex::new(Vec::new());
    let plan = fitted(&file, 6.0, &params("Q4_K_M"), |at| match at {
        Progress::Measuring { done, total } => measured.lock().unwrap().push((done, total)),
        other => panic!("{other:?}"),
    });
    let count = tensors.len() as u64;
    let expected: Vec<(u64, u64)> = (1..=count).map(|done| (done, count)).collect();
    assert_eq!(measured.into_inner().unwrap(), expected);

    let report = ReportOptions {
        command: String::new(),
        text: Some(&text),
        compare: options(64),
    };
    let options = Options {
        report: Some(report),
        ..Options::default()
    };
    let job = QuantJob::of_gguf(&file, tensors, plan.unwrap(), ("Q4_K_M", 15), None);
    let (mut written, mut compared) = (Vec::new(), Vec::new());
    let path = dir.path().join("out.gguf");
    quantize(&file, job, &path, &options, |at| match at {
        Progress::Writing { done, total, .. } => written.push((done, total)),
        Progress::Comparing {
            mean_kl,
            done,
            total,
        } => {
            assert!(mean_kl > 0.0);
            compared.push((done, total));
        }
        other @ Progress::Measuring { .. } => panic!("{other:?}"),
    })
    .unwrap();
    assert_eq!(written.len() as u64, count);
    assert!(written.is_sorted() && written.iter().all(|(done, total)| done < total));
    assert_eq!(compared, [(1, 3), (2, 3), (3, 3)]);
}

/// A requantized file does not keep the report and imatrix keys of its source.
pub(crate) fn report_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
    let known = importance(&tiny(), |_| 1.0);
    let reported = Options {
        importance: Some(&known),
        report: Some(ReportOptions {
            command: "a".into(),
            text: None,
            compare: options(64),
        }),
        ..Options::default()
    };
    quantized(&tiny(), &first, &params("Q8_0"), &reported).unwrap();
    assert!(Report::of(&open(&first)).is_some());
    let again = Options {
        allow_requantize: true,
        ..Options::default()
    };
    quantized(&first, &second, &params("Q4_0"), &again).unwrap();
    let made = open(&second);
    assert!(Report::of(&made).is_none());
    let keys = made.metadata().iter().map(|(key, _)| key.to_owned());
    let stale: Vec<String> = keys.filter(|key| key.starts_with("quantize.")).collect();
    assert!(stale.is_empty(), "{stale:?}");
}

/// Reports work with split output and with characters that JSON escapes.
pub(crate) fn reports_support_parts_and_escaped_names() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let text = text();
    let report = |text| ReportOptions {
        command: "\u{1}\"".repeat(50),
        text,
        compare: options(64),
    };
    let parts = Options {
        parts: Parts::MaxTensors(7),
        report: Some(report(Some(&text))),
        ..Options::default()
    };
    let files = quantized(&tiny(), &output, &params("Q8_0"), &parts).unwrap();
    let made = Report::of(&open(&files[0])).unwrap();
    assert!(made.comparison.unwrap().mean_kl > 0.0);

    let mut writer = oxidize_core::gguf::Writer::new();
    let architecture = oxidize_core::gguf::Value::Str("llama");
    writer.key("general.architecture", &architecture).unwrap();
    for i in 0..40 {
        let name = format!("blk.{i}.{}.weight", "\u{1}".repeat(50));
        let ty = oxidize_core::file::TensorType::F32;
        writer.tensor(&name, ty, &[32, 2]).unwrap();
    }
    let mut bytes = Vec::new();
    writer
        .write(&mut bytes, |tensor, out| {
            out.write_all(&vec![0; tensor.bytes as usize])?;
            Ok::<_, Box<dyn std::error::Error>>(())
        })
        .unwrap();
    std::fs::write(&input, bytes).unwrap();
    let options = Options {
        report: Some(report(None)),
        ..Options::default()
    };
    quantized(&input, &output, &params("Q8_0"), &options).unwrap();
    let made = open(&output);
    assert_eq!(Report::of(&made).unwrap().tensors.len(), 40);
}

/// Overrides apply, and with enough room every tensor keeps its type.
pub(crate) fn target_size_respects_overrides() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.gguf");
    synthetic(&input, "F32", 4);
    let file = open(&input);
    let tensors = tensors_of(&file);
    let mut overridden = params("Q4_K_M");
    overridden.pattern("ffn_down=Q5_1").unwrap();
    let types = fitted(&file, 5.0, &overridden, |_| ()).unwrap().types;
    let downs = tensors.iter().zip(&types);
    let mut downs = downs.filter(|(tensor, _)| tensor.name.contains("ffn_down"));
    assert!(downs.all(|(_, ty)| ty.name() == "Q5_1"));
    let types = fitted(&file, 32.0, &params("Q4_K_M"), |_| ())
        .unwrap()
        .types;
    assert!(types.iter().all(|ty| ty.name() == "F32"), "{types:?}");
}

pub(crate) fn target_size_is_used_up() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    synthetic(&input, "F32", 4);
    let file = open(&input);
    let elements: u64 = file.tensors().iter().map(|tensor| tensor.elements()).sum();
    let mut before = 0;
    for bits in [3.5, 4.5, 6.0, 8.6] {
        let bytes = (bits * elements as f64 / 8.0) as u64;
        let tensors = tensors_of(&file);
        let plan = fitted(&file, bits, &params("Q4_K_M"), |_| ()).unwrap();
        let size = plan.bytes(&tensors);
        assert!(
            size <= bytes && size as f64 > 0.97 * bytes as f64,
            "{bits}: {size} of {bytes}"
        );
        assert!(size > before);
        before = size;
        let job = QuantJob::of_gguf(&file, tensors, plan, ("Q4_K_M", 15), None);
        quantize(&file, job, &output, &Options::default(), |_| {}).unwrap();
        let made: u64 = open(&output)
            .tensors()
            .iter()
            .map(|tensor| tensor.bytes)
            .sum();
        assert_eq!(made, size);
    }
}

pub(crate) fn split_and_merge_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let (input, joined) = (dir.path().join("in.gguf"), dir.path().join("joined.gguf"));
    synthetic(&input, "Q4_K_M", 3);
    let file = open(&input);
    let workers = Workers::default();
    for parts in [Parts::MaxTensors(7), Parts::MaxBytes(200_000)] {
        let made = rewrite(&file, &dir.path().join("p.gguf"), &parts, &workers, |_| {}).unwrap();
        assert!(made.len() > 2 && made[0].ends_with(format!("p-00001-of-{:05}.gguf", made.len())));
        let split = open(&made[1]);
        assert_eq!(split.tensors().len(), file.tensors().len());
        rewrite(&split, &joined, &Parts::One, &workers, |_| {}).unwrap();
        assert_eq!(
            std::fs::read(&joined).unwrap(),
            std::fs::read(&input).unwrap()
        );
        // Quantizing keeps the division into parts.
        let options = Options {
            allow_requantize: true,
            parts: oxidize_quantize::quantize::parts_of(&split),
            ..Options::default()
        };
        let smaller = quantized(
            &made[0],
            &dir.path().join("q.gguf"),
            &params("Q2_K"),
            &options,
        );
        assert_eq!(smaller.unwrap().len(), made.len());
        for path in made {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Quantization at load gives the same logits as the quantized file.
pub(crate) fn quantization_in_memory_matches_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let recipe = oxidize_core::recipe::QuantRecipe::named("Q8_0").unwrap();
    let made = oxidize_quantize::in_memory::quantized(
        &open(&tiny()),
        recipe,
        None,
        &Workers::default(),
        |_| (),
    );
    quantized(&tiny(), &path, &params("Q8_0"), &Options::default()).unwrap();
    let logits = |model: &Model| {
        let config = SessionConfig::for_context(8);
        let mut session = model.session(&Cpu::default(), &config).unwrap();
        let blocks: Vec<BlockId> = (0..config.n_blocks as u32).map(BlockId).collect();
        let sequences = [SeqSlice {
            n_tokens: 4,
            blocks: &blocks,
            ..SeqSlice::default()
        }];
        let batch = Batch {
            tokens: &[5, 6, 7, 8],
            positions: &[0, 1, 2, 3],
            sequences: &sequences,
            outputs: &[3],
        };
        session.run(&batch).unwrap();
        session.output(0).unwrap().to_vec()
    };
    let (a, b) = (Model::from_file(made.unwrap()).unwrap(), load(&path));
    assert_eq!(logits(&a), logits(&b));
}

/// Releasing weights after use does not change the sums, and an excerpt is one chunk.
pub(crate) fn released_weights_give_the_same_importance() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    synthetic(&model, "F16", 2);
    let text = text();
    let collected = |release_weights: bool, excerpt: bool| {
        let options = OpenOptions {
            huge_pages: false,
            ..OpenOptions::default()
        };
        let model = Model::load_with(&model, &options).unwrap();
        let options = imatrix::Options {
            n_ctx: 40,
            chunks: (!excerpt).then_some(3),
            excerpt,
            release_weights,
            ..imatrix::Options::default()
        };
        collect(&model, &text, &options, |_, _, _| Ok(())).unwrap()
    };
    assert_eq!(collected(true, false), collected(false, false));
    let excerpt = collected(true, true);
    assert_eq!((excerpt.chunks, excerpt.chunk_size), (1, 40));
    for (name, entry) in &excerpt.entries {
        assert_eq!(entry.counts, [40.0], "{name}");
    }
}

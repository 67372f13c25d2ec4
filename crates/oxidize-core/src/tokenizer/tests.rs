//! Tests with small synthetic vocabularies.

use super::*;

const PLAIN: EncodeOptions = EncodeOptions::PLAIN;

fn table(texts: &[&str]) -> StringTable {
    texts.iter().collect()
}

/// `<unk>`, `<s>`, `</s>`, bytes `<0x00>` to `<0xFF>`, then words with scores.
fn sentencepiece(words: &[(&str, f32)]) -> VocabSpec {
    let mut tokens = table(&["<unk>", "<s>", "</s>"]);
    let mut kinds = vec![TokenKind::Unknown, TokenKind::Control, TokenKind::Control];
    let mut scores = vec![0.0; 3];
    for byte in 0..256 {
        tokens.push(format!("<0x{byte:02X}>")).unwrap();
        kinds.push(TokenKind::Byte);
        scores.push(0.0);
    }
    for (word, score) in words {
        tokens.push(word).unwrap();
        kinds.push(TokenKind::Normal);
        scores.push(*score);
    }
    let mut spec = VocabSpec::new(
        ModelSpec::CharBpe {
            pre: None,
            order: CharMerges::Scores(scores),
            ignore_merges: false,
            fuse_unknown: false,
            byte_fallback: true,
        },
        tokens,
    );
    spec.kinds = kinds;
    spec.special = SpecialIds {
        unk: Some(0),
        bos: Some(1),
        eos: Some(2),
        ..SpecialIds::default()
    };
    spec.prefix = vec![1];
    spec.normalizers = vec![
        Normalize::Prepend(" ".into()),
        Normalize::Replace {
            from: " ".into(),
            to: "▁".into(),
        },
    ];
    spec.strip_leading_space = true;
    spec
}

fn byte_bpe(merges: &[(&str, &str)], special: &[&str]) -> VocabSpec {
    let mut tokens: StringTable = (0..=255).map(|byte| byte_level::encode(&[byte])).collect();
    let mut pairs = StringTable::default();
    for (left, right) in merges {
        tokens.push(format!("{left}{right}")).unwrap();
        pairs.push(left).unwrap();
        pairs.push(right).unwrap();
    }
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    for name in special {
        tokens.push(name).unwrap();
        kinds.push(TokenKind::Control);
    }
    let pre = PreTokenizer::named("gpt-2").unwrap();
    let model = ModelSpec::ByteBpe {
        pre,
        merges: pairs,
        ignore_merges: false,
        unknown: None,
    };
    VocabSpec {
        kinds,
        ..VocabSpec::new(model, tokens)
    }
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let words = [
        ("▁", -9.0),
        ("a", -8.0),
        ("b", -7.0),
        ("▁a", -2.0),
        ("ab", -1.0),
        ("▁ab", -5.0),
    ];
    let tokenizer = Tokenizer::new(sentencepiece(&words)).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    assert_eq!(tokenizer.encode("ab", PLAIN), [id("▁ab")]);
    assert_eq!(tokenizer.encode("aab", PLAIN), [id("▁a"), id("ab")]);
    assert_eq!(
        tokenizer.encode("é", PLAIN),
        [id("▁"), id("<0xC3>"), id("<0xA9>")]
    );
    assert_eq!(tokenizer.encode("", EncodeOptions::default()), [1]);
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("ab é", EncodeOptions::default())),
        "ab é"
    );
    // The name of a control token is text unless special tokens are parsed.
    assert!(!tokenizer.encode("</s>", PLAIN).contains(&2));
    assert_eq!(tokenizer.encode("</s>", EncodeOptions::default()), [1, 2]);
    assert!(tokenizer.adds_bos() && !tokenizer.adds_eos());
    assert!(tokenizer.is_end_of_generation(2) && !tokenizer.is_end_of_generation(1));
}

#[test]
fn words_split_only_where_no_token_crosses() {
    // `a▁` joins a word to the space after it, `b▁` does not exist.
    let words = [
        ("▁", -9.0),
        ("a", -8.0),
        ("b", -7.0),
        ("a▁", -1.0),
        ("▁b", -2.0),
    ];
    let tokenizer = Tokenizer::new(sentencepiece(&words)).unwrap();
    let id = |text: &str| tokenizer.token_id(text).unwrap();
    assert_eq!(
        tokenizer.encode("a b b", PLAIN),
        [id("▁"), id("a▁"), id("b"), id("▁b")]
    );
}

#[test]
fn byte_bpe_follows_its_merges() {
    let spec = byte_bpe(
        &[("l", "l"), ("h", "e"), ("he", "ll"), ("Ġ", "w")],
        &["<|im_end|>"],
    );
    let tokenizer = Tokenizer::new(spec).unwrap();
    let pieces = |text: &str, options| -> Vec<String> {
        let tokens = tokenizer.encode(text, options);
        tokens
            .iter()
            .map(|&id| tokenizer.token_text(id).unwrap().into())
            .collect()
    };
    assert_eq!(pieces("hello w", PLAIN), ["hell", "o", "Ġw"]);
    assert_eq!(
        pieces("he<|im_end|>", EncodeOptions::default()),
        ["he", "<|im_end|>"]
    );
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert!(tokenizer.is_special(end) && tokenizer.is_end_of_generation(end));
    assert_eq!(tokenizer.eot(), Some(end));
    let all: Vec<TokenId> = tokenizer.encode("he<|im_end|>", EncodeOptions::default());
    assert_eq!(tokenizer.decode(&all), "he");
    let render = DecodeOptions {
        render_special: true,
        ..DecodeOptions::default()
    };
    assert_eq!(tokenizer.decode_with(&all, render), "he<|im_end|>");
}

#[test]
fn stream_matches_decode() {
    let tokenizer = Tokenizer::new(byte_bpe(&[("h", "e")], &["<s>"])).unwrap();
    let text = "he said: 漢字 🚀!";
    let tokens = tokenizer.encode(text, PLAIN);
    let mut stream = tokenizer.stream();
    let mut streamed = String::new();
    for &token in &tokens {
        streamed.push_str(stream.push(token));
        assert!(text.starts_with(&streamed));
    }
    streamed.push_str(stream.finish());
    assert_eq!(streamed, text);
    assert_eq!(stream.push(tokenizer.token_id("<s>").unwrap()), "");
    assert_eq!(stream.push(u32::MAX), "");
}

#[test]
fn malformed_vocabularies_are_rejected_or_tolerated() {
    let nothing = VocabSpec::new(ModelSpec::Rwkv, StringTable::default());
    assert!(matches!(
        Tokenizer::new(nothing),
        Err(TokenizerError::Missing(_))
    ));

    // Invalid byte tokens, merges of missing tokens, ids out of range.
    let mut spec = byte_bpe(&[("h", "e")], &[]);
    for odd in ["<0x-1>", "<0xGG>", "<0x>", "<0x123>", ""] {
        spec.tokens.push(odd).unwrap();
        spec.kinds.push(TokenKind::Byte);
    }
    if let ModelSpec::ByteBpe { merges, .. } = &mut spec.model {
        for part in ["no", "such", "h", "zz", "", ""] {
            merges.push(part).unwrap();
        }
    }
    spec.special.bos = Some(1_000_000);
    spec.prefix = vec![1_000_000, 3];
    spec.strip = vec![(
        1_000_000,
        Strip {
            left: true,
            right: true,
        },
    )];
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.encode("", EncodeOptions::default()), [3]);
    assert_eq!(tokenizer.piece(257), Some(&b"<0x-1>"[..]));
    assert_eq!(tokenizer.decode(&[u32::MAX, 999_999]), "");
    assert_eq!(tokenizer.token_id(""), None);

    // Scores that are not finite: BPE merging terminates, Unigram rejects them.
    let words = [
        ("▁", 0.0),
        ("a", f32::NAN),
        ("aa", f32::INFINITY),
        ("aaa", f32::NEG_INFINITY),
    ];
    let tokenizer = Tokenizer::new(sentencepiece(&words)).unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("aaaaa", PLAIN)), "aaaaa");
    let mut spec = VocabSpec::new(
        ModelSpec::Unigram {
            pre: None,
            scores: vec![f32::NAN],
            byte_fallback: false,
        },
        table(&["<unk>"]),
    );
    spec.special.unk = Some(0);
    assert!(matches!(
        Tokenizer::new(spec),
        Err(TokenizerError::Invalid { .. })
    ));
}

#[test]
fn unigram_picks_the_likeliest_segmentation() {
    let scores = vec![0.0, -1.0, -1.5, -2.0, -2.2, -3.0];
    let tokens = table(&["<unk>", "▁", "a", "b", "ab", "▁ab"]);
    let mut spec = VocabSpec::new(
        ModelSpec::Unigram {
            pre: None,
            scores,
            byte_fallback: false,
        },
        tokens,
    );
    spec.kinds = vec![TokenKind::Unknown];
    spec.special.unk = Some(0);
    spec.normalizers = vec![
        Normalize::CollapseSpaces,
        Normalize::Prepend(" ".into()),
        Normalize::Replace {
            from: " ".into(),
            to: "▁".into(),
        },
    ];
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.encode("  ab   a ", PLAIN), [5, 1, 2]);
    // Adjacent unknown characters become one token.
    assert_eq!(tokenizer.encode("xyab", PLAIN), [1, 0, 4]);
    assert!(tokenizer.encode("", PLAIN).is_empty());
}

#[test]
fn wordpiece_picks_the_longest_match() {
    for (marker, tokens) in [
        (
            WordMarker::Continuation("##".into()),
            ["[UNK]", "un", "##able", "##a", ",", "able"],
        ),
        (
            WordMarker::Beginning("▁".into()),
            ["[UNK]", "▁un", "able", "a", "▁,", "▁able"],
        ),
    ] {
        let model = ModelSpec::WordPiece {
            marker,
            max_word_chars: 6,
        };
        let mut spec = VocabSpec::new(model, table(&tokens));
        spec.kinds = vec![TokenKind::Unknown];
        spec.special.unk = Some(0);
        let tokenizer = Tokenizer::new(spec).unwrap();
        assert_eq!(tokenizer.encode("unable, able", PLAIN), [1, 2, 4, 5]);
        assert_eq!(tokenizer.encode("unx un unaaaaa", PLAIN), [0, 1, 0]);
        assert_eq!(tokenizer.decode(&[1, 2, 5]), " unable able");
    }
}

#[test]
fn encodes_a_megabyte_of_one_character() {
    let spm = Tokenizer::new(sentencepiece(&[
        ("▁", -1.0),
        ("▁▁", -2.0),
        ("a", -1.0),
        ("aa", -2.0),
    ]));
    let bpe = Tokenizer::new(byte_bpe(&[("a", "a"), ("aa", "aa"), ("Ġ", "Ġ")], &[]));
    for tokenizer in [spm.unwrap(), bpe.unwrap()] {
        for unit in ["a", " ", "漢", "<"] {
            let text = unit.repeat(1_000_000 / unit.len());
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text, PLAIN)), text);
        }
    }
}

#[test]
fn tokenizer_is_shared_between_threads() {
    let tokenizer = Tokenizer::new(byte_bpe(&[("h", "e")], &[])).unwrap();
    let expected = tokenizer.encode("hehe he", PLAIN);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(tokenizer.encode("hehe he", PLAIN), expected);
                }
            });
        }
    });
}

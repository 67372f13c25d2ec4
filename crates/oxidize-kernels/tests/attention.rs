//! Attention on every instruction set of this machine against the reference implementation, and that against the formula.

#[allow(dead_code, reason = "each test uses some of it")]
mod random;

use std::ops::Range;

use oxidize_kernels::{
    Alibi, AttentionArgs, Isa, Kernels, KvType, PagedKv, RelativeBias, Scratch, TileMut,
    merge_attention,
};
use random::Random;

/// A cache whose blocks are in random order, with rows of other heads between them.
struct Cache {
    k_ty: KvType,
    v_ty: KvType,
    k: Vec<u8>,
    v: Vec<u8>,
    table: Vec<u32>,
    block_size: usize,
    k_dim: usize,
    v_dim: usize,
}

impl Cache {
    fn new(
        random: &mut Random,
        (k_ty, v_ty): (KvType, KvType),
        len: usize,
        k_dim: usize,
        v_dim: usize,
    ) -> Self {
        let block_size = 16;
        let blocks = len.div_ceil(block_size);
        let mut table: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            table.swap(i, random.bits() as usize % (i + 1));
        }
        let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
        let mut rows = |ty: KvType, dim: usize| {
            let mut out = vec![0; 2 * blocks * block_size * ty.row_bytes(dim).unwrap()];
            for row in out.chunks_exact_mut(ty.row_bytes(dim).unwrap()) {
                scalar.store_kv(ty, &random.floats(dim), row);
            }
            out
        };
        let (k, v) = (rows(k_ty, k_dim), rows(v_ty, v_dim));
        Self {
            k_ty,
            v_ty,
            k,
            v,
            table,
            block_size,
            k_dim,
            v_dim,
        }
    }

    fn view(&self) -> PagedKv<'_> {
        let (k_row, v_row) = (
            self.k_ty.row_bytes(self.k_dim).unwrap(),
            self.v_ty.row_bytes(self.v_dim).unwrap(),
        );
        PagedKv {
            k_ty: self.k_ty,
            v_ty: self.v_ty,
            k: &self.k,
            v: &self.v,
            table: &self.table,
            block_size: self.block_size,
            k_block_stride: 2 * self.block_size * k_row,
            v_block_stride: 2 * self.block_size * v_row,
            k_row_stride: k_row,
            v_row_stride: v_row,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
        }
    }
}

fn run(kernels: &Kernels, args: &AttentionArgs<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; args.tokens() * args.heads * args.kv.v_dim];
    let cols = args.heads * args.kv.v_dim;
    kernels.attention(args, TileMut::new(&mut out, cols), &mut Scratch::new());
    out
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (got - want).abs() < 2e-5,
            "{what}: element {i} is {got}, not {want}"
        );
    }
}

#[test]
fn attention_matches_reference() {
    let mut random = Random::new(21);
    let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
    let dims = [(64, 64), (128, 96), (32, 160), (72, 40), (6, 5)];
    let mixed = [(KvType::F16, KvType::Q8_0), (KvType::Q4_0, KvType::F32)];
    for types in KvType::ALL.map(|ty| (ty, ty)).into_iter().chain(mixed) {
        let (k_ty, v_ty) = types;
        for (k_dim, v_dim) in dims {
            if k_ty.row_bytes(k_dim).is_none() || v_ty.row_bytes(v_dim).is_none() {
                continue;
            }
            for (tokens, heads, len) in
                [(1, 1, 1), (1, 4, 200), (2, 3, 77), (7, 5, 130), (33, 2, 90)]
            {
                let cache = Cache::new(&mut random, types, len, k_dim, v_dim);
                let q_stride = heads * k_dim + 8;
                let q: Vec<f32> = random
                    .floats(tokens * q_stride)
                    .iter()
                    .map(|x| x * 4.0)
                    .collect();
                let start = len.saturating_sub(tokens);
                let causal: Vec<Range<u32>> = (0..tokens)
                    .map(|t| 0..(start + t + 1).min(len) as u32)
                    .collect();
                let windowed: Vec<Range<u32>> = causal
                    .iter()
                    .map(|r| r.end.saturating_sub(9)..r.end)
                    .collect();
                let mut first_sees_nothing = causal.clone();
                first_sees_nothing[0] = 3..3;
                let sinks = random.floats(heads);
                let slopes: Vec<f32> = (0..heads).map(|h| 0.5 / (h + 1) as f32).collect();
                let positions: Vec<u32> = causal.iter().map(|r| r.end - 1).collect();
                let plain = AttentionArgs {
                    q: &q,
                    q_stride,
                    heads,
                    kv: cache.view(),
                    visible: &causal,
                    scale: 1.0 / (k_dim as f32).sqrt(),
                    softcap: None,
                    sinks: None,
                    alibi: None,
                    relative: None,
                };
                let alibi = Some(Alibi {
                    slopes: &slopes,
                    positions: &positions,
                });
                let table = random.floats(heads * 11);
                let relative = Some(RelativeBias {
                    table: &table,
                    positions: &positions,
                });
                let variants = [
                    ("causal", plain),
                    (
                        "window",
                        AttentionArgs {
                            visible: &windowed,
                            ..plain
                        },
                    ),
                    (
                        "no visible keys",
                        AttentionArgs {
                            visible: &first_sees_nothing,
                            ..plain
                        },
                    ),
                    (
                        "softcap",
                        AttentionArgs {
                            softcap: Some(2.0),
                            ..plain
                        },
                    ),
                    (
                        "sinks",
                        AttentionArgs {
                            sinks: Some(&sinks),
                            ..plain
                        },
                    ),
                    ("alibi", AttentionArgs { alibi, ..plain }),
                    ("relative", AttentionArgs { relative, ..plain }),
                ];
                for (name, args) in &variants {
                    let want = run(scalar, args);
                    for kernels in Isa::ALL.into_iter().skip(1).filter_map(Kernels::for_isa) {
                        let isa = kernels.isa();
                        let what = format!(
                            "{name}, {types:?} on {isa}, {tokens} tokens, {heads} heads, \
                             {len} keys of {k_dim}, values of {v_dim}"
                        );
                        assert_close(&run(kernels, args), &want, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn merged_parts_match_whole_attention() {
    let mut random = Random::new(22);
    let cache = Cache::new(&mut random, (KvType::F16, KvType::F16), 300, 64, 64);
    let q = random.floats(2 * 3 * 64);
    let visible = [0..299, 10..300];
    let sinks = random.floats(3);
    let args = AttentionArgs {
        q: &q,
        q_stride: 3 * 64,
        heads: 3,
        kv: cache.view(),
        visible: &visible,
        scale: 0.125,
        softcap: None,
        sinks: Some(&sinks),
        alibi: None,
        relative: None,
    };
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
        let whole = run(kernels, &args);
        let n = args.part_len();
        let mut parts = vec![f32::NAN; 3 * n];
        for (keys, part) in [0..5, 5..128, 128..300]
            .into_iter()
            .zip(parts.chunks_exact_mut(n))
        {
            kernels.attention_part(&args, keys, part, &mut Scratch::new());
        }
        let mut merged = vec![0.0; whole.len()];
        merge_attention(&parts, args.sinks, 64, TileMut::new(&mut merged, 3 * 64));
        assert_close(&merged, &whole, kernels.isa().name());
    }
}

#[test]
fn reference_matches_formula() {
    let mut random = Random::new(23);
    let cache = Cache::new(&mut random, (KvType::F32, KvType::F32), 20, 8, 8);
    let q = random.floats(8);
    let visible = vec![0..20; 1];
    let args = AttentionArgs {
        q: &q,
        q_stride: 8,
        heads: 1,
        kv: cache.view(),
        visible: &visible,
        scale: 0.7,
        softcap: None,
        sinks: None,
        alibi: None,
        relative: None,
    };
    let row = |slice: &[u8], p: usize| -> Vec<f32> {
        let start = cache.table[p / 16] as usize * 2 * 16 * 32 + p % 16 * 32;
        let bytes = slice[start..][..32].chunks_exact(4);
        bytes
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    };
    let weights: Vec<f32> = (0..20)
        .map(|p| {
            row(&cache.k, p)
                .iter()
                .zip(&q)
                .map(|(k, q)| k * q)
                .sum::<f32>()
                * 0.7
        })
        .map(f32::exp)
        .collect();
    let sum: f32 = weights.iter().sum();
    let want: Vec<f32> = (0..8)
        .map(|d| {
            (0..20)
                .map(|p| weights[p] * row(&cache.v, p)[d])
                .sum::<f32>()
                / sum
        })
        .collect();
    assert_close(
        &run(Kernels::for_isa(Isa::Scalar).unwrap(), &args),
        &want,
        "scalar",
    );
}

#[test]
#[should_panic(expected = "outside the cache")]
fn block_outside_the_cache_panics() {
    let mut cache = Cache::new(&mut Random::new(24), (KvType::F32, KvType::F32), 20, 8, 8);
    cache.table[1] = 1000;
    let visible = vec![0..20; 1];
    let args = AttentionArgs {
        q: &[0.0; 8],
        q_stride: 8,
        heads: 1,
        kv: cache.view(),
        visible: &visible,
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
        relative: None,
    };
    run(Kernels::for_isa(Isa::Scalar).unwrap(), &args);
}

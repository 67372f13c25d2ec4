//! Quantization writes the same bytes with every instruction set and on every machine, so that files from
//! different machines can be compared.

#[allow(dead_code, reason = "each test uses a part of it")]
mod random;

use oxidize_kernels::quant::{RANK, SecondMoment, TensorType, can_quantize};
use oxidize_kernels::{Isa, Kernels};
use random::Random;

const ROWS: usize = 3;
const COLUMNS: usize = 512;

/// [`digest`]s of the same rows quantized without importance, with importance, and with the second moment of
/// the inputs. After an intended change of a search, the failing test prints the new table.
#[rustfmt::skip]
const DIGESTS: &[(&str, [u64; 3])] = &[
    ("Q4_0", [0x9187064acc5f1ba4, 0xc77ae7b2b0f3ec5e, 0xa26a49ec142fba35]),
    ("Q4_1", [0x40c1a7303d9c040b, 0xa47b960415544847, 0x243836064f5f3ee9]),
    ("Q5_0", [0xb6a85d6d49a2db76, 0x7ae0c543b5d2eb63, 0x287b1f9ffd3abe81]),
    ("Q5_1", [0xa12358a0bdb5240d, 0x79e5c090ac3763ea, 0x7cda7e18dcae6a05]),
    ("Q8_0", [0xb8a824a7def0593d, 0xb8a824a7def0593d, 0xe0e13901f79026ee]),
    ("Q8_1", [0x420cf2def2b484da, 0x420cf2def2b484da, 0xd9265898e5f5a5d7]),
    ("Q2_K", [0xfd4da52bc3940b27, 0x51deb49e9f1cd52b, 0xc155670c6a5ebdb3]),
    ("Q3_K", [0x21d4b1e4ae38813a, 0x411b0252703acb05, 0x3c6b139199938383]),
    ("Q4_K", [0x645fa802e630f71a, 0x65bc7de846e30816, 0xee8faf36ff8a5211]),
    ("Q5_K", [0xbfcadca8683050b1, 0xb4ef4043d34c52ed, 0xdf7f5fac50754239]),
    ("Q6_K", [0x21d886c7b31ebc43, 0xb5c1289041216c5b, 0x491bdd24118c80d7]),
    ("Q8_K", [0x3175a3881056b969, 0x3175a3881056b969, 0x35e1c74ba272b3fa]),
    ("IQ1_S", [0x12618cff11b42101, 0xe70ee7e8cb248cdb, 0x0675a215a0c46a7e]),
    ("IQ1_M", [0xf79e2df885afed18, 0x55012f8e73eba55c, 0xa7bc1e2ffc1c4394]),
    ("IQ2_XXS", [0xd4c37c79cfde8a17, 0x467e493bd4ad2492, 0x5abb8b3c8ade3b87]),
    ("IQ2_XS", [0x1faadf106ac16008, 0x68020e4277084cad, 0x9e3bc37ed965b28b]),
    ("IQ2_S", [0xecd482f580fa038e, 0x1c058dffee937945, 0x5730cb57128b5621]),
    ("IQ3_XXS", [0xf89eb3a2cd481fab, 0xce1c7a90af178866, 0x5b8b7b1619d50bdd]),
    ("IQ3_S", [0xe47b5acc35c6f564, 0x942b047845d1f077, 0x9bf4247964c24f27]),
    ("IQ4_NL", [0x9f356a3ac679b086, 0xa54bee1b685383bb, 0xa9de53e5576f17ed]),
    ("IQ4_XS", [0x178a89377ca1a411, 0x508310134852dca8, 0xc5d7dce8b3570542]),
    ("TQ1_0", [0x6e8e20ee4a9f3106, 0x6e8e20ee4a9f3106, 0x3b5a4613d3a89968]),
    ("TQ2_0", [0x09e22a1ac30474a8, 0x09e22a1ac30474a8, 0x508bce75fcb44719]),
    ("MXFP4", [0x4de53d26c83854a5, 0x4de53d26c83854a5, 0x5bb85e99e0eae968]),
    ("NVFP4", [0x640e1e92dc3b0bc0, 0x640e1e92dc3b0bc0, 0xd23ad353a986851a]),
    ("INT8", [0x1c551e975e486d58, 0xfb31c81a213abe62, 0x14750921b188b5d4]),
];

#[test]
fn quantized_bytes_match_digests() {
    let types = TensorType::all().filter(|ty| ty.is_quantized() && can_quantize(*ty));
    let want = |ty: TensorType| DIGESTS.iter().find(|(name, _)| *name == ty.name());
    let (mut table, mut wrong) = (String::new(), Vec::new());
    for ty in types {
        for kernels in Isa::ALL.into_iter().filter_map(Kernels::for_isa) {
            let got = quantized(kernels, ty).map(|bytes| digest(&bytes));
            if kernels.isa() == Isa::Scalar {
                let [plain, weighted, compensated] = got;
                table += &format!(
                    "    (\"{}\", [{plain:#018x}, {weighted:#018x}, {compensated:#018x}]),\n",
                    ty.name()
                );
            }
            if want(ty).is_none_or(|(_, want)| *want != got) {
                wrong.push(format!("{ty} on {}", kernels.isa()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{table}", wrong.join(", "));
}

/// Returns blocks quantized without importance, with importance, and with the second moment of the inputs.
fn quantized(kernels: &Kernels, ty: TensorType) -> [Vec<u8>; 3] {
    let mut random = Random::new(1);
    // More small weights than large ones, as in models.
    let rows: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|_| random.uniform() * random.uniform())
        .collect();
    let importance: Vec<f32> = random.floats(COLUMNS).iter().map(|x| x * x).collect();
    let factors = importance.iter().map(|square| {
        let factor: [f32; RANK] = std::array::from_fn(|_| random.uniform());
        factor.map(|u| u * square.sqrt() * 0.3)
    });
    let second_moment = SecondMoment::new(factors.collect(), &importance);
    let bytes = ty.bytes_for(rows.len() as u64).unwrap() as usize;
    let run = |quantize_weights: &dyn Fn(&mut [u8])| {
        let mut out = vec![0; bytes];
        quantize_weights(&mut out);
        out
    };
    let by_rows = |importance, out: &mut [u8]| {
        let done = kernels.quantize_weight_rows(ty, &rows, COLUMNS, importance, out);
        done.unwrap();
    };
    [
        run(&|out| by_rows(None, out)),
        run(&|out| by_rows(Some(&importance), out)),
        run(&|out| {
            let done =
                kernels.quantize_weights_compensated(ty, &rows, &importance, &second_moment, out);
            done.unwrap();
        }),
    ]
}

/// FNV-1a hash.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

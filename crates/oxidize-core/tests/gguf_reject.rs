//! Broken GGUF files: each gives an error or a correct load, within the memory that was promised.

mod raw_gguf;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use oxidize_core::Error;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{Array, Problem, Value};
use raw_gguf::{ARRAY, RawGguf, STRING, small};

/// Counts what this thread has allocated.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grew(bytes: usize) {
    // The counters are gone while a thread ends; nothing is measured then.
    let _ = NOW.try_with(|now| {
        now.set(now.get().wrapping_add(bytes));
        PEAK.with(|peak| peak.set(peak.get().max(now.get())));
    });
}

fn shrank(bytes: usize) {
    let _ = NOW.try_with(|now| now.set(now.get().saturating_sub(bytes)));
}

// SAFETY: every call goes on to the system's allocator as it came; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrank(layout.size());
        // SAFETY: the pointer came from `System` through `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most this thread held at once during `work`, beyond what it held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// Opens `bytes` and checks what every outcome has to satisfy. `true` if it is a model.
fn open(bytes: Vec<u8>) -> bool {
    let len = bytes.len();
    let (result, peak) = peak_of(|| ModelFile::from_bytes(bytes, &OpenOptions::default()));
    assert!(
        peak <= 16 * len + (1 << 20),
        "{peak} bytes allocated for a file of {len}"
    );
    match result {
        Ok(model) => {
            check_load(&model, len as u64);
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            false
        }
    }
}

/// Everything a model offers can be walked, and lies inside the file.
fn check_load(model: &ModelFile, len: u64) {
    assert_eq!(model.metadata().iter().count(), model.metadata().len());
    for (key, value) in model.metadata().iter() {
        assert!(model.metadata().get(key).is_some());
        if let Value::Array(array) = value {
            check_array(&array);
        }
    }
    for tensor in model.tensors() {
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        assert!(tensor.offset + tensor.bytes <= len);
        assert_eq!(tensor.ty.bytes_for(tensor.elements()), Some(tensor.bytes));
        assert_eq!(model.data(tensor).unwrap().len() as u64, tensor.bytes);
    }
}

fn check_array(array: &Array<'_>) {
    assert_eq!(array.iter().count(), array.len());
    array
        .iter()
        .filter_map(|value| value.as_array())
        .for_each(|inner| check_array(&inner));
}

#[test]
fn a_hundred_thousand_broken_files() {
    let start = Instant::now();
    let (mut files, mut loads) = (0u64, 0u64);
    let mut try_one = |bytes: Vec<u8>| {
        files += 1;
        loads += u64::from(open(bytes));
    };
    for version in [1, 2, 3] {
        let good = small(version);
        try_one(good.bytes.clone());
        for len in 0..good.bytes.len() {
            try_one(good.bytes[..len].to_vec());
        }
        every_byte_changed(&good, &mut try_one);
        every_integer_at_its_limits(&good, &mut try_one);
        several_bytes_at_random(&good, 20_000, &mut try_one);
    }
    println!(
        "{files} files, {loads} of them load, in {:.1?}",
        start.elapsed()
    );
    assert!(files >= 100_000, "only {files} files");
    assert!(loads >= 3, "the good files load");
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// Each byte of the header: every single bit, and a few values that mean something.
fn every_byte_changed(good: &RawGguf, try_one: &mut impl FnMut(Vec<u8>)) {
    for at in 0..good.header_len {
        let old = good.bytes[at];
        let flips = (0..8).map(|bit| old ^ (1 << bit));
        let others = [
            0,
            1,
            9,
            0x20,
            0x7f,
            0x80,
            0xfe,
            0xff,
            old.wrapping_add(1),
            !old,
        ];
        for new in flips.chain(others) {
            let mut bytes = good.bytes.clone();
            bytes[at] = new;
            try_one(bytes);
        }
    }
}

fn every_integer_at_its_limits(good: &RawGguf, try_one: &mut impl FnMut(Vec<u8>)) {
    let len = good.bytes.len() as u64;
    let mut values: Vec<u64> = (0..14).collect();
    for bits in [
        6, 7, 8, 15, 16, 20, 26, 31, 32, 33, 40, 48, 56, 60, 61, 62, 63,
    ] {
        values.extend([(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1]);
    }
    values.extend([
        len - 1,
        len,
        len + 1,
        len / 8,
        len * 2,
        u64::MAX - 1,
        u64::MAX,
    ]);
    values.extend([
        -32i64 as u64,
        -64i64 as u64,
        u64::MAX / 8,
        u64::MAX / 16 + 1,
    ]);
    for field in &good.integers {
        for value in &values {
            let mut bytes = good.bytes.clone();
            bytes[field.clone()].copy_from_slice(&value.to_le_bytes()[..field.len()]);
            try_one(bytes);
        }
    }
}

fn several_bytes_at_random(good: &RawGguf, n: usize, try_one: &mut impl FnMut(Vec<u8>)) {
    // xorshift64: the same files on every run.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..n {
        let mut bytes = good.bytes.clone();
        for _ in 0..2 + random(4) {
            let field = &good.integers[random(good.integers.len())];
            let at = field.start + random(field.len());
            bytes[at] = [0, 1, 2, 4, 8, 9, 0x40, 0x7f, 0x80, 0xff][random(10)];
        }
        try_one(bytes);
    }
}

/// The problem that a file is refused for.
fn problem(file: &RawGguf) -> Problem {
    match ModelFile::from_bytes(file.bytes.clone(), &OpenOptions::default()) {
        Err(Error::Gguf { error, .. }) => error.problem,
        Err(Error::Limit { limit, .. }) => Problem::Limit(limit),
        other => panic!("not refused as GGUF: {other:?}"),
    }
}

macro_rules! refused {
    ($file:expr, $problem:pat) => {
        let problem = problem(&$file);
        assert!(matches!(problem, $problem), "{problem:?}");
    };
}

fn one_key(value: impl FnOnce(&mut RawGguf) -> &mut RawGguf) -> RawGguf {
    let mut file = RawGguf::new(3, 0, 1);
    value(&mut file);
    file
}

#[test]
fn each_fault_has_its_own_error() {
    let mut big_endian = RawGguf::new(3, 0, 0);
    big_endian.bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    refused!(big_endian, Problem::BigEndian);
    refused!(RawGguf::new(4, 0, 0), Problem::Version(4));
    refused!(RawGguf::new(3, 1_000_001, 0), Problem::Limit(_));
    refused!(RawGguf::new(3, 10, 0), Problem::Truncated { .. });
    refused!(RawGguf::new(3, 0, u64::MAX), Problem::Limit(_));
    refused!(
        one_key(|f| f.key("k", 13).raw(&[0; 8])),
        Problem::ValueType(13)
    );
    refused!(one_key(|f| f.key("k", 7).raw(&[2])), Problem::Bool(2));
    refused!(
        one_key(|f| f.key("k", STRING).u64(1 << 40)),
        Problem::Limit(_)
    );
    refused!(
        one_key(|f| f.key("k", STRING).u64(9)),
        Problem::Truncated { needed: 9, .. }
    );
    refused!(
        one_key(|f| f.string(b"\xff").u32(0).raw(&[0])),
        Problem::NotUtf8
    );
    refused!(
        one_key(|f| f.key("k", ARRAY).array(4, 1 << 62)),
        Problem::Truncated {
            needed: u64::MAX,
            ..
        }
    );
    refused!(
        one_key(|f| f.key("general.alignment", 4).u32(48)),
        Problem::Alignment
    );
    refused!(
        one_key(|f| f.key("general.alignment", 4).u32(1 << 21)),
        Problem::Limit(_)
    );

    let mut twice = RawGguf::new(3, 0, 2);
    twice.key("k", 0).raw(&[1]).key("k", 0).raw(&[2]);
    refused!(twice, Problem::Duplicate);
}

#[test]
fn each_fault_of_a_tensor_has_its_own_error() {
    let tensors = |tensors: &[(&str, &[u64], u32, u64)]| {
        let mut file = RawGguf::new(3, tensors.len() as u64, 0);
        for (name, shape, ty, offset) in tensors {
            file.tensor(name, shape, *ty, *offset);
        }
        file.data(32, 128);
        file
    };
    refused!(tensors(&[("a", &[4], 99, 0)]), Problem::TensorType(99));
    refused!(
        tensors(&[("a", &[4], 31, 0)]),
        Problem::RemovedTensorType("Q4_0_4_4")
    );
    refused!(tensors(&[("a", &[1, 1, 1, 1, 1], 0, 0)]), Problem::Limit(_));
    refused!(
        tensors(&[("a", &[1 << 32, 1 << 32], 0, 0)]),
        Problem::TooManyElements(_)
    );
    refused!(
        tensors(&[("a", &[1 << 40, 1 << 40, 0], 0, 0)]),
        Problem::TooManyElements(_)
    );
    refused!(
        tensors(&[("a", &[1 << 62], 28, 0)]),
        Problem::TooManyElements(_)
    );
    // The product is whole blocks, the row is not.
    refused!(
        tensors(&[("a", &[16, 2], 2, 0)]),
        Problem::PartialBlock { row: 16, block: 32 }
    );
    refused!(
        tensors(&[("a", &[4], 0, 8)]),
        Problem::Misaligned { offset: 8, .. }
    );
    refused!(tensors(&[("a", &[33], 0, 0)]), Problem::OutOfFile { .. });
    refused!(tensors(&[("a", &[4], 0, 128)]), Problem::OutOfFile { .. });
    refused!(
        tensors(&[("a", &[4], 0, u64::MAX - 31)]),
        Problem::OutOfFile { .. }
    );
    refused!(
        tensors(&[("a", &[4], 0, 0), ("a", &[4], 0, 32)]),
        Problem::Duplicate
    );
    refused!(
        tensors(&[("a", &[16], 0, 0), ("b", &[4], 0, 32)]),
        Problem::Overlap(_)
    );
    refused!(
        tensors(&[("a", &[4], 0, 32), ("b", &[4], 0, 32)]),
        Problem::Overlap(_)
    );
    assert!(open(
        tensors(&[("a", &[8], 0, 32), ("b", &[0], 0, 32)]).bytes
    ));
}

#[test]
fn errors_name_the_key_or_tensor_and_the_byte() {
    let mut file = RawGguf::new(3, 0, 2);
    file.key("general.name", STRING).string(b"x");
    let at = file.bytes.len() + 8 + "broken".len();
    file.key("broken", 77);
    let error = ModelFile::from_bytes(file.bytes, &OpenOptions::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("key `broken` at byte {at}: value type 77")),
        "{error}"
    );
}

#[test]
fn arrays_nest_four_deep_and_no_deeper() {
    let nested = |depth: u64| {
        one_key(|file| {
            file.key("k", ARRAY);
            for _ in 1..depth {
                file.array(ARRAY, 1);
            }
            file.array(0, 1).raw(&[7])
        })
    };
    assert!(open(nested(4).bytes));
    refused!(nested(5), Problem::Limit(_));
    let start = Instant::now();
    refused!(nested(100_000), Problem::Limit(_));
    assert!(start.elapsed() < Duration::from_millis(50));
}

#[test]
fn a_small_file_of_many_short_entries_stays_within_the_bound() {
    // The shortest entries there are, so that what is kept for each weighs most.
    let n = 20_000;
    let mut keys = RawGguf::new(1, 0, n);
    let mut tensors = RawGguf::new(1, n, 0);
    let mut strings = RawGguf::new(1, 0, 1);
    strings.key("k", ARRAY).array(STRING, n);
    for i in 0..n {
        keys.key(&format!("{i:x}"), 0).raw(&[0]);
        tensors.tensor(&format!("{i:x}"), &[0], 0, 0);
        strings.string(b"");
    }
    for file in [keys, tensors, strings] {
        assert!(open(file.bytes));
    }
}

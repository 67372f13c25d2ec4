//! Corrupt GGUF files: each gives an error or a valid model, within the memory limit.

mod raw_gguf;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use oxidize_core::Error;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::gguf::{Array, Problem, Value};
use raw_gguf::{ARRAY, RawGguf, STRING, small};

/// Allocator that counts the bytes allocated by each thread.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grew(bytes: usize) {
    // The counters are destroyed when a thread ends; later allocations are not counted.
    let _ = NOW.try_with(|now| {
        now.set(now.get().wrapping_add(bytes));
        PEAK.with(|peak| peak.set(peak.get().max(now.get())));
    });
}

fn shrank(bytes: usize) {
    let _ = NOW.try_with(|now| now.set(now.get().saturating_sub(bytes)));
}

// SAFETY: every call is forwarded to the system allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: `layout` has a nonzero size, which the contract of `alloc` requires of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrank(layout.size());
        // SAFETY: `pointer` was allocated by `System` in `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of the bytes that this thread allocated during `work`, beyond those it had before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// Opens `bytes` and checks the properties of every outcome. Returns true if it is a model.
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

/// Checks that all metadata and tensors can be read and lie inside the file.
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
fn corrupt_files_are_rejected_or_valid() {
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
        change_every_byte(&good, &mut try_one);
        change_every_integer(&good, &mut try_one);
        change_random_bytes(&good, 20_000, &mut try_one);
    }
    println!("{files} files, {loads} of them load");
    assert!(files >= 100_000, "only {files} files");
    assert!(loads >= 3, "the unchanged files load");
}

/// Flips each bit of the header, and sets each byte to significant values.
fn change_every_byte(good: &RawGguf, try_one: &mut impl FnMut(Vec<u8>)) {
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

fn change_every_integer(good: &RawGguf, try_one: &mut impl FnMut(Vec<u8>)) {
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

fn change_random_bytes(good: &RawGguf, n: usize, try_one: &mut impl FnMut(Vec<u8>)) {
    // xorshift64 with a fixed seed: the same files on every run.
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

/// The problem for which a file is rejected.
fn problem(file: &RawGguf) -> Problem {
    match ModelFile::from_bytes(file.bytes.clone(), &OpenOptions::default()) {
        Err(Error::Gguf { error, .. }) => error.problem,
        Err(Error::Limit { limit, .. }) => Problem::Limit(limit),
        other => panic!("not rejected as GGUF: {other:?}"),
    }
}

macro_rules! assert_rejected {
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
fn each_metadata_fault_has_its_own_error() {
    let mut big_endian = RawGguf::new(3, 0, 0);
    big_endian.bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_rejected!(big_endian, Problem::BigEndian);
    assert_rejected!(RawGguf::new(4, 0, 0), Problem::Version(4));
    assert_rejected!(RawGguf::new(3, 1_000_001, 0), Problem::Limit(_));
    assert_rejected!(RawGguf::new(3, 10, 0), Problem::Truncated { .. });
    assert_rejected!(RawGguf::new(3, 0, u64::MAX), Problem::Limit(_));
    assert_rejected!(
        one_key(|f| f.key("k", 13).raw(&[0; 8])),
        Problem::ValueType(13)
    );
    assert_rejected!(one_key(|f| f.key("k", 7).raw(&[2])), Problem::Bool(2));
    assert_rejected!(
        one_key(|f| f.key("k", STRING).u64(1 << 40)),
        Problem::Limit(_)
    );
    assert_rejected!(
        one_key(|f| f.key("k", STRING).u64(9)),
        Problem::Truncated { needed: 9, .. }
    );
    assert_rejected!(
        one_key(|f| f.string(b"\xff").u32(0).raw(&[0])),
        Problem::NotUtf8
    );
    assert_rejected!(
        one_key(|f| f.key("k", ARRAY).array(4, 1 << 62)),
        Problem::Truncated {
            needed: u64::MAX,
            ..
        }
    );
    assert_rejected!(
        one_key(|f| f.key("general.alignment", 4).u32(48)),
        Problem::Alignment
    );
    assert_rejected!(
        one_key(|f| f.key("general.alignment", 4).u32(1 << 21)),
        Problem::Limit(_)
    );

    let mut twice = RawGguf::new(3, 0, 2);
    twice.key("k", 0).raw(&[1]).key("k", 0).raw(&[2]);
    assert_rejected!(twice, Problem::Duplicate);
}

#[test]
fn each_tensor_fault_has_its_own_error() {
    let tensors = |tensors: &[(&str, &[u64], u32, u64)]| {
        let mut file = RawGguf::new(3, tensors.len() as u64, 0);
        for (name, shape, ty, offset) in tensors {
            file.tensor(name, shape, *ty, *offset);
        }
        file.data(32, 128);
        file
    };
    assert_rejected!(tensors(&[("a", &[4], 99, 0)]), Problem::TensorType(99));
    assert_rejected!(
        tensors(&[("a", &[4], 31, 0)]),
        Problem::RemovedTensorType("Q4_0_4_4")
    );
    assert_rejected!(tensors(&[("a", &[1, 1, 1, 1, 1], 0, 0)]), Problem::Limit(_));
    assert_rejected!(
        tensors(&[("a", &[1 << 32, 1 << 32], 0, 0)]),
        Problem::TooManyElements(_)
    );
    assert_rejected!(
        tensors(&[("a", &[1 << 40, 1 << 40, 0], 0, 0)]),
        Problem::TooManyElements(_)
    );
    assert_rejected!(
        tensors(&[("a", &[1 << 62], 28, 0)]),
        Problem::TooManyElements(_)
    );
    // The tensor is whole blocks, but its rows are not.
    assert_rejected!(
        tensors(&[("a", &[16, 2], 2, 0)]),
        Problem::PartialBlock { row: 16, block: 32 }
    );
    assert_rejected!(
        tensors(&[("a", &[4], 0, 8)]),
        Problem::Misaligned { offset: 8, .. }
    );
    assert_rejected!(tensors(&[("a", &[33], 0, 0)]), Problem::OutOfFile { .. });
    assert_rejected!(tensors(&[("a", &[4], 0, 128)]), Problem::OutOfFile { .. });
    assert_rejected!(
        tensors(&[("a", &[4], 0, u64::MAX - 31)]),
        Problem::OutOfFile { .. }
    );
    assert_rejected!(
        tensors(&[("a", &[4], 0, 0), ("a", &[4], 0, 32)]),
        Problem::Duplicate
    );
    assert_rejected!(
        tensors(&[("a", &[16], 0, 0), ("b", &[4], 0, 32)]),
        Problem::Overlap(_)
    );
    assert_rejected!(
        tensors(&[("a", &[4], 0, 32), ("b", &[4], 0, 32)]),
        Problem::Overlap(_)
    );
    assert!(open(
        tensors(&[("a", &[8], 0, 32), ("b", &[0], 0, 32)]).bytes
    ));
}

#[test]
fn errors_name_the_key_and_the_byte() {
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
fn arrays_nest_at_most_four_deep() {
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
    assert_rejected!(nested(5), Problem::Limit(_));
    assert_rejected!(nested(100_000), Problem::Limit(_));
}

#[test]
fn many_short_entries_stay_within_memory_limit() {
    // The shortest possible entries have the largest overhead in memory.
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

//! Memory of the caller: texts, arrays and structs behind pointers, checked as far as a pointer can be.
//!
//! Every function refuses null and misaligned pointers, and lengths that no memory can have. That the memory is there
//! is what callers promise in the documentation of each function.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, align_of, size_of};

use crate::status::{Failure, Status};

/// Length of a text that ends at its first NUL.
pub const NUL_TERMINATED: usize = usize::MAX;

/// The text of an argument.
///
/// # Safety
///
/// `data` is null, or points to `length` bytes, or with [`NUL_TERMINATED`] to bytes up to a NUL. Nobody writes to them
/// as long as the result lives.
pub(crate) unsafe fn text<'a>(
    name: &str,
    data: *const c_char,
    length: usize,
) -> Result<&'a str, Failure> {
    let bytes = if length == NUL_TERMINATED {
        if data.is_null() {
            return Err(null(name));
        }
        // SAFETY: not null; the caller of this function promises bytes up to a NUL that nobody writes to.
        unsafe { CStr::from_ptr(data) }.to_bytes()
    } else {
        // SAFETY: the caller of this function promises `length` readable bytes; null is refused there.
        unsafe { slice(name, data.cast::<u8>(), length)? }
    };
    str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Failure::new(
            Status::InvalidUtf8,
            format!("{name} is not UTF-8: the byte at {at} is wrong"),
        )
    })
}

/// The elements of an array.
///
/// # Safety
///
/// `data` is null, or points to `n` elements that are initialized if their type has invalid values. Nobody writes to
/// them as long as the result lives.
pub(crate) unsafe fn slice<'a, T>(
    name: &str,
    data: *const T,
    n: usize,
) -> Result<&'a [T], Failure> {
    if n == 0 {
        return Ok(&[]);
    }
    check(name, data, n)?;
    // SAFETY: not null, aligned, and at most isize::MAX bytes, checked above; the caller of this function promises `n`
    // elements that nobody writes to.
    Ok(unsafe { std::slice::from_raw_parts(data, n) })
}

/// Writes a value that the caller asked for.
///
/// # Safety
///
/// `out` is null, or points to room for a `T` that nobody else uses during the call.
pub(crate) unsafe fn write<T>(name: &str, out: *mut T, value: T) -> Result<(), Failure> {
    check(name, out, 1)?;
    // SAFETY: not null and aligned, checked above; the caller of this function promises room for a `T`.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a value, or nothing if the pointer is null.
///
/// # Safety
///
/// As for [`write`].
pub(crate) unsafe fn write_optional<T>(name: &str, out: *mut T, value: T) -> Result<(), Failure> {
    match out.is_null() {
        true => Ok(()),
        // SAFETY: the obligations of this function are those of `write`.
        false => unsafe { write(name, out, value) },
    }
}

/// Writes a text and a NUL into a buffer of `capacity` bytes, and the length of the text without the NUL.
///
/// # Safety
///
/// `buffer` is null, or points to `capacity` writable bytes; `length` is null, or points to room for a length. Nobody
/// else uses either during the call.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<Status, Failure> {
    // SAFETY: the caller of this function promises room for a length, unless the pointer is null.
    unsafe { write_optional("length", length, text.len())? };
    if capacity <= text.len() {
        return Err(too_small("bytes", capacity, text.len() + 1));
    }
    check("buffer", buffer, capacity)?;
    // SAFETY: `buffer` is not null, and the caller of this function promises `capacity` bytes, which are more than the
    // text has; the text is memory of the library, so the two do not overlap.
    unsafe {
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(Status::Ok)
}

/// Writes elements into a buffer with room for `capacity`, and their number.
///
/// # Safety
///
/// `buffer` is null, or points to room for `capacity` elements; `count` is null, or points to room for a number. Nobody
/// else uses either during the call.
pub(crate) unsafe fn write_slice<T: Copy>(
    values: &[T],
    buffer: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<Status, Failure> {
    // SAFETY: the caller of this function promises room for a number, unless the pointer is null.
    unsafe { write_optional("count", count, values.len())? };
    if capacity < values.len() {
        return Err(too_small("elements", capacity, values.len()));
    }
    if values.is_empty() {
        return Ok(Status::Ok);
    }
    check("buffer", buffer, capacity)?;
    // SAFETY: `buffer` is not null and aligned, and the caller of this function promises room for `capacity` elements,
    // which are enough; the values are memory of the library, so the two do not overlap.
    unsafe { buffer.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(Status::Ok)
}

/// Writes the number of elements that [`write_slice`] is going to write, and fails if there is no room for them.
///
/// # Safety
///
/// As for [`write_slice`].
pub(crate) unsafe fn check_room<T>(
    needed: usize,
    buffer: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function promises room for a number, unless the pointer is null.
    unsafe { write_optional("count", count, needed)? };
    if capacity < needed {
        return Err(too_small("elements", capacity, needed));
    }
    match needed {
        0 => Ok(()),
        _ => check("buffer", buffer, capacity),
    }
}

/// A struct of options: plain data whose first field, a `usize`, is the size of the struct that the caller knows.
///
/// # Safety
///
/// Every bit pattern that callers may write is a valid value of the type.
pub(crate) unsafe trait Options: Copy {
    /// Name in C.
    const NAME: &'static str;
    /// Size of the first version of the struct.
    const FIRST_SIZE: usize;

    /// The defaults, with a size of `size_of::<Self>()`.
    fn defaults() -> Self;
}

/// The options of a caller. Fields that the caller does not know have their defaults, as all do for a null pointer.
///
/// # Safety
///
/// `options` is null, or points to a struct that begins with its size in bytes, and has that size.
pub(crate) unsafe fn options<T: Options>(options: *const T) -> Result<T, Failure> {
    let mut copy = MaybeUninit::new(T::defaults());
    if !options.is_null() {
        check(T::NAME, options, 1)?;
        // SAFETY: not null and aligned for a struct whose first field is a usize; the caller of this function promises
        // at least that field.
        let size = unsafe { options.cast::<usize>().read() };
        check_size::<T>(size)?;
        // SAFETY: `size` is at most the size of `copy`, and the caller of this function promises so many bytes; the
        // copy is a local variable.
        unsafe {
            copy.as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping(options.cast(), size);
        }
    }
    // SAFETY: initialized by the defaults, then by bytes of the caller, of which every pattern is valid (`Options`).
    Ok(unsafe { copy.assume_init() })
}

/// Writes `defaults` to options of `size` bytes.
///
/// # Safety
///
/// `options` is null, or points to `size` writable bytes that nobody else uses during the call.
pub(crate) unsafe fn write_options<T: Options>(
    options: *mut T,
    size: usize,
    defaults: T,
) -> Result<Status, Failure> {
    check(T::NAME, options, 1)?;
    check_size::<T>(size)?;
    // SAFETY: not null and aligned; the caller of this function promises `size` bytes, which are at most those of
    // `defaults` and at least a usize, the first field.
    unsafe {
        options
            .cast::<u8>()
            .copy_from_nonoverlapping((&raw const defaults).cast(), size);
        options.cast::<usize>().write(size);
    }
    Ok(Status::Ok)
}

fn check_size<T: Options>(size: usize) -> Result<(), Failure> {
    let (least, most) = (T::FIRST_SIZE, size_of::<T>());
    if (least..=most).contains(&size) {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{} of {size} bytes; this library knows {least} to {most} (call {}_init first)",
        T::NAME,
        T::NAME
    )))
}

fn check<T>(name: &str, pointer: *const T, n: usize) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    if !pointer.is_aligned() {
        let align = align_of::<T>();
        return Err(Failure::argument(format!(
            "{name} is not aligned to {align} bytes"
        )));
    }
    let bytes = n.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!(
            "{name} has {n} elements, more than memory"
        )));
    }
    Ok(())
}

pub(crate) fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is null"))
}

fn too_small(what: &str, capacity: usize, needed: usize) -> Failure {
    let message = format!("a buffer of {capacity} {what}; {needed} are needed");
    Failure::new(Status::BufferTooSmall, message)
}

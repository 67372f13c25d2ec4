//! Writer of NumPy files, format version 1.0:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use std::io::Write;
use std::path::Path;

use oxidize_core::Error;
use oxidize_core::io::save_atomically;

/// Writes an f32 array; `rows` passes its rows in order to a writer.
pub(crate) fn write_rows<E: From<Error>>(
    path: &Path,
    dims: &[usize],
    rows: impl FnOnce(&mut dyn FnMut(&[f32]) -> Result<(), Error>) -> Result<(), E>,
) -> Result<(), E> {
    save_atomically(path, |file| {
        file.write_all(&header(dims)).map_err(Error::io(path))?;
        rows(&mut |floats| {
            let mut bytes = Vec::with_capacity(size_of_val(floats));
            bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
            file.write_all(&bytes).map_err(Error::io(path))
        })
    })
}

/// The header of an f32 array.
fn header(dims: &[usize]) -> Vec<u8> {
    const PREFIX: &[u8] = b"\x93NUMPY\x01\x00";
    const ALIGNMENT: usize = 64;
    // A Python tuple of one element needs a trailing comma, and longer ones allow it.
    let shape: String = dims.iter().map(|dim| format!("{dim},")).collect();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    let unpadded = PREFIX.len() + 2 + text.len() + 1;
    let padding = unpadded.next_multiple_of(ALIGNMENT) - unpadded;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    // Four dimensions of twenty digits stay far below 64 KiB.
    let len = (text.len() as u16).to_le_bytes();
    [PREFIX, &len, text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_aligned_and_has_the_shape() {
        for (dims, shape) in [(&[][..], "()"), (&[3][..], "(3,)"), (&[2, 3][..], "(2,3,)")] {
            let header = header(dims);
            assert_eq!(header.len() % 64, 0);
            let text = String::from_utf8_lossy(&header[10..]);
            assert!(text.contains(&format!("'shape': {shape}")), "{text}");
            assert!(text.ends_with('\n'));
        }
    }
}

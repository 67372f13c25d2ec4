//! Outputs of kernels: [`TileMut`], an exclusive rectangle of a row-major matrix, and [`SharedMatrix`], from
//! which each thread of a pool takes its own tile.

use std::marker::PhantomData;
use std::ops::Range;

/// Exclusive access to a rectangle of a row-major `f32` matrix.
///
/// The rows of a tile are `stride` elements apart, so that a tile may be some columns of a wider matrix. Safe
/// code creates a tile over a whole slice and splits it.
pub struct TileMut<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a tile is an exclusive borrow of its elements, like `&mut [f32]`, which is `Send`.
unsafe impl Send for TileMut<'_> {}
// SAFETY: `&TileMut` gives no access to the elements: every method that does takes `&mut self`.
unsafe impl Sync for TileMut<'_> {}

impl<'a> TileMut<'a> {
    /// A tile over all of `data`, a matrix of rows of `cols` elements.
    ///
    /// # Panics
    /// If `data` is not whole rows.
    pub fn new(data: &'a mut [f32], cols: usize) -> Self {
        assert!(
            cols > 0 && data.len().is_multiple_of(cols),
            "{} / {cols}",
            data.len()
        );
        let rows = data.len() / cols;
        Self {
            ptr: data.as_mut_ptr(),
            rows,
            cols,
            stride: cols,
            borrow: PhantomData,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row of the tile.
    ///
    /// # Panics
    /// If the tile has no such row.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: `row` is below `rows`, so that `cols` elements from there on are inside the rectangle,
        // which this tile borrows exclusively and lends to the result.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(row * self.stride), self.cols) }
    }

    /// The tile for a shorter lifetime.
    pub fn reborrow(&mut self) -> TileMut<'_> {
        self.part(0..self.rows, 0..self.cols)
    }

    /// A rectangle of this tile.
    ///
    /// # Panics
    /// If the rectangle does not lie inside the tile.
    pub fn part(&mut self, rows: Range<usize>, cols: Range<usize>) -> TileMut<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols);
        TileMut {
            // `wrapping_add`, because the start of an empty part may lie past the end of the matrix.
            ptr: self.ptr.wrapping_add(rows.start * self.stride + cols.start),
            rows: rows.len(),
            cols: cols.len(),
            stride: self.stride,
            borrow: PhantomData,
        }
    }
}

/// A matrix that several threads write at the same time, each in its own tiles.
#[derive(Clone, Copy)]
pub struct SharedMatrix<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: elements are only reached through `tile`, whose caller guarantees disjoint tiles of plain floats.
unsafe impl Send for SharedMatrix<'_> {}
// SAFETY: a shared reference gives access to elements only through `tile`, whose caller guarantees disjoint
// tiles.
unsafe impl Sync for SharedMatrix<'_> {}

impl<'a> SharedMatrix<'a> {
    /// Borrows `data`, rows of `cols` elements, for several writers.
    ///
    /// # Panics
    /// If `data` is not whole rows.
    pub fn new(data: &'a mut [f32], cols: usize) -> Self {
        let tile = TileMut::new(data, cols);
        Self {
            ptr: tile.ptr,
            rows: tile.rows,
            cols,
            borrow: PhantomData,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The tile of these rows and columns.
    ///
    /// # Safety
    /// While the tile lives, no other tile of this matrix may overlap it.
    ///
    /// # Panics
    /// If the tile does not lie inside the matrix.
    pub unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>) -> TileMut<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols);
        TileMut {
            ptr: self.ptr.wrapping_add(rows.start * self.cols + cols.start),
            rows: rows.len(),
            cols: cols.len(),
            stride: self.cols,
            borrow: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_addresses_its_rectangle() {
        let mut data = vec![0.0; 12];
        let mut tile = TileMut::new(&mut data, 4);
        tile.part(1..3, 2..4).row(1).copy_from_slice(&[1.0, 2.0]);
        tile.row(0)[3] = 3.0;
        assert_eq!(
            data,
            [0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
        );
    }

    #[test]
    fn threads_write_disjoint_tiles() {
        let mut data = vec![0.0; 64];
        let shared = SharedMatrix::new(&mut data, 8);
        std::thread::scope(|scope| {
            for c in 0..4 {
                scope.spawn(move || {
                    // SAFETY: columns `2 · c` and `2 · c + 1` belong to one thread only.
                    let mut tile = unsafe { shared.tile(0..8, 2 * c..2 * c + 2) };
                    for row in 0..8 {
                        tile.row(row).fill(c as f32);
                    }
                });
            }
        });
        assert!(
            data.iter()
                .enumerate()
                .all(|(i, &v)| v == (i % 8 / 2) as f32)
        );
    }

    #[test]
    #[should_panic]
    fn part_outside_the_tile_panics() {
        TileMut::new(&mut [0.0; 6], 3).part(0..3, 0..1);
    }
}

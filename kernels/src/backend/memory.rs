//! The arenas of a backend on the host: one allocation, cut by views.
//!
//! This module knows the meaning of a view, and no operations.

use std::ops::Range;

use super::{Indices, Sizes, View};

/// The alignment of arenas, bytes: that of a cache line, and of the widest vectors. In a row that
/// begins elsewhere, every vector crosses two lines.
const ALIGNMENT: usize = 64;

/// Arenas of elements `T`, and the indices.
pub struct Memory<T> {
    elements: Vec<T>,
    indices: Vec<u32>,
    /// Elements of each arena, in the order of [`Arena`](super::Arena).
    arenas: [Range<usize>; 4],
}

impl<T: Copy + Default> Memory<T> {
    /// Allocates memory of these sizes, filled with zeros.
    pub fn new(sizes: Sizes) -> Self {
        let line = ALIGNMENT / size_of::<T>();
        let Sizes { parameters, activations, statistics, .. } = sizes;
        let lens = [parameters, parameters, activations, statistics];
        let count: usize = lens.iter().map(|len| len.next_multiple_of(line)).sum();
        let elements = vec![T::default(); count + line];
        prefer_huge_pages(&elements);
        let mut start = elements.as_ptr().align_offset(ALIGNMENT);
        let arenas = lens.map(|len| {
            let arena = start..start + len;
            start += len.next_multiple_of(line);
            arena
        });
        Self { elements, indices: vec![0; sizes.indices], arenas }
    }

    /// The bytes that [`Memory::new`] allocates.
    pub fn bytes_of(sizes: Sizes) -> usize {
        let line = ALIGNMENT / size_of::<T>();
        let Sizes { parameters, activations, statistics, indices, .. } = sizes;
        let lens = [parameters, parameters, activations, statistics];
        let count: usize = lens.iter().map(|len| len.next_multiple_of(line)).sum();
        size_of::<T>() * (count + line) + size_of::<u32>() * indices
    }

    /// The elements of `view`.
    pub fn read(&self, view: View) -> &[T] {
        &self.elements[self.range(view)]
    }

    /// The elements of `view`, for changes.
    pub fn change(&mut self, view: View) -> &mut [T] {
        let range = self.range(view);
        &mut self.elements[range]
    }

    /// The elements of several views at once.
    pub fn split<const N: usize>(&mut self, views: [View; N]) -> [&mut [T]; N] {
        self.split_indexed(Indices { offset: 0, len: 0 }, views).1
    }

    /// Indices, and the elements of several views.
    pub fn split_indexed<const N: usize>(
        &mut self,
        indices: Indices,
        views: [View; N],
    ) -> (&[u32], [&mut [T]; N]) {
        let ranges = views.map(|view| self.range(view));
        let parts = self.elements.get_disjoint_mut(ranges);
        let parts = parts.expect("operands of one operation lie in the arenas and do not overlap");
        (&self.indices[indices.offset..indices.offset + indices.len], parts)
    }

    /// Overwrites indices.
    pub fn write_indices(&mut self, to: Indices, values: &[u32]) {
        self.indices[to.offset..to.offset + to.len].copy_from_slice(values);
    }

    /// The bytes of elements and indices that are allocated.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.elements[..]) + size_of_val(&self.indices[..])
    }

    fn range(&self, view: View) -> Range<usize> {
        assert!(!view.transposed, "only products take a transposed view");
        let arena = self.arenas[view.arena as usize].clone();
        assert!(view.offset + view.len() <= arena.len(), "{view:?} lies outside its arena");
        let start = arena.start + view.offset;
        start..start + view.len()
    }
}

/// Asks for pages of 2 MiB, if the system gives them: strided reads of large matrices touch more
/// small pages than the processor can remember. It is only a wish. Without it everything is only
/// slower.
#[cfg(target_os = "linux")]
fn prefer_huge_pages<T>(elements: &[T]) {
    use rustix::mm::Advice;
    const PAGE: usize = 2 << 20;
    let start = elements.as_ptr().addr().next_multiple_of(PAGE);
    let end = elements.as_ptr_range().end.addr() / PAGE * PAGE;
    if start < end {
        let first = elements.as_ptr().with_addr(start).cast_mut().cast();
        // SAFETY: the range lies inside the allocation, and its contents stay as they are.
        let _ = unsafe { rustix::mm::madvise(first, end - start, Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages<T>(_elements: &[T]) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Arena;

    #[test]
    fn every_arena_begins_at_a_cache_line() {
        let sizes =
            Sizes { parameters: 1001, activations: 33, statistics: 35, indices: 0, sequence: 0 };
        let memory = Memory::<f32>::new(sizes);
        use Arena::{Activations, Gradients, Parameters, Statistics};
        for arena in [Parameters, Gradients, Activations, Statistics] {
            let start = memory.read(View::new(arena, 0, 1, 33)).as_ptr();
            assert_eq!(start.addr() % ALIGNMENT, 0, "{arena:?}");
        }
    }
}

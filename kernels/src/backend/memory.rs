//! The arenas of a backend whose device is the host: one allocation, cut by views.
//!
//! It knows what a view means, and nothing of operations.

use std::ops::Range;

use super::{Arena, Indices, Sizes, View};

/// Arenas of elements `T`, and the indices.
pub struct Memory<T> {
    elements: Vec<T>,
    indices: Vec<u32>,
    parameters: usize,
}

impl<T: Copy + Default> Memory<T> {
    /// Allocates everything, zeroed.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            elements: vec![T::default(); 2 * sizes.parameters + sizes.activations],
            indices: vec![0; sizes.indices],
            parameters: sizes.parameters,
        }
    }

    /// The elements of `view`.
    pub fn read(&self, view: View) -> &[T] {
        &self.elements[self.range(view)]
    }

    /// The elements of `view`, to be changed.
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

    /// The bytes allocated.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.elements[..]) + size_of_val(&self.indices[..])
    }

    fn range(&self, view: View) -> Range<usize> {
        assert!(!view.transposed, "only products take a transposed view");
        let (start, size) = match view.arena {
            Arena::Parameters => (0, self.parameters),
            Arena::Gradients => (self.parameters, self.parameters),
            Arena::Activations => (2 * self.parameters, self.elements.len() - 2 * self.parameters),
        };
        assert!(view.offset + view.len() <= size, "{view:?} lies outside its arena");
        start + view.offset..start + view.offset + view.len()
    }
}

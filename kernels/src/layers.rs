//! Layers: parameters, the memory of their outputs, and a forward and backward pass written in
//! backend operations.
//!
//! A layer is planned once: [`MemoryPlan`] places its parameters in the flat vector and its output
//! in the activation arena. `forward` takes the input's view and returns the output's, cut to as
//! many rows. `backward` takes that input again with the gradient of the output (`dy`), adds to the
//! gradients of the parameters, and passes the gradient of the input on (`dx`). A residual
//! connection is [`Backend::add`](crate::backend::Backend::add): the output of a branch becomes the
//! stream.
//!
//! Layers know no batches, no network, and no kind of device.

use crate::backend::{Arena, Indices, Sizes, View};
use crate::layout::{Init, Layout};

mod attention;
mod cross_entropy;
mod embedding;
mod gelu;
mod layer_norm;
mod linear;

pub use attention::CausalAttention;
pub use cross_entropy::CrossEntropy;
pub use embedding::{Embedding, Positions, TiedHead};
pub use gelu::Gelu;
pub use layer_norm::LayerNorm;
pub use linear::Linear;

/// The numbers in a cache line: 64 bytes of f32. In a row that begins elsewhere, every wide vector
/// crosses two lines.
const LINE: usize = 16;

/// The places of everything in a model: parameters, activations, statistics and indices, in the
/// order of the requests.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlan {
    layout: Layout,
    activations: usize,
    statistics: usize,
    indices: usize,
    sequence: usize,
}

/// Memory of activations and statistics that parts of a model use in turn. A part's values there
/// are lost when the next part begins.
#[derive(Clone, Copy, Debug)]
pub struct SharedArea {
    start: Ends,
    end: Ends,
}

/// The places of the next activations and statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    activations: usize,
    statistics: usize,
}

impl MemoryPlan {
    /// Places a parameter: a vector as a single row, or a matrix.
    pub fn parameter(&mut self, name: String, shape: &[usize], init: Init) -> View {
        let range = self.layout.push(name, shape, init);
        let columns = shape[shape.len() - 1];
        View::new(Arena::Parameters, range.start, range.len() / columns, columns)
    }

    /// Places a matrix of activations, at the beginning of a cache line.
    pub fn activation(&mut self, rows: usize, columns: usize) -> View {
        let offset = self.activations.next_multiple_of(LINE);
        self.activations = offset + rows * columns;
        View::new(Arena::Activations, offset, rows, columns)
    }

    /// Places a matrix of statistics, at the beginning of a cache line.
    pub fn statistics(&mut self, rows: usize, columns: usize) -> View {
        let offset = self.statistics.next_multiple_of(LINE);
        self.statistics = offset + rows * columns;
        View::new(Arena::Statistics, offset, rows, columns)
    }

    /// Plans a part that shares the memory of its activations and statistics with other parts of
    /// the same shapes. The first part makes the area.
    pub fn shared<T>(
        &mut self,
        area: &mut Option<SharedArea>,
        part: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outside = self.ends();
        let start = area.map_or(outside, |area| area.start);
        self.continue_at(start);
        let planned = part(self);
        let end = self.ends();
        match area {
            None => *area = Some(SharedArea { start, end }),
            Some(area) => {
                assert_eq!(area.end, end, "parts of the same shapes share an area");
                self.continue_at(outside);
            }
        }
        planned
    }

    fn ends(&self) -> Ends {
        Ends { activations: self.activations, statistics: self.statistics }
    }

    fn continue_at(&mut self, ends: Ends) {
        Ends { activations: self.activations, statistics: self.statistics } = ends;
    }

    /// Places tokens or targets.
    pub fn indices(&mut self, len: usize) -> Indices {
        let offset = self.indices;
        self.indices += len;
        Indices { offset, len }
    }

    /// Takes note that attention will see sequences of this length.
    pub fn sequence(&mut self, length: usize) {
        self.sequence = self.sequence.max(length);
    }

    /// The parameters placed so far.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The memory that the whole plan needs.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            parameters: self.layout.count(),
            activations: self.activations,
            statistics: self.statistics,
            indices: self.indices,
            sequence: self.sequence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_matrix_of_activations_or_statistics_begins_at_a_cache_line() {
        let mut plan = MemoryPlan::default();
        plan.activation(3, 5);
        let second = plan.activation(2, 2);
        assert_eq!(second, View::new(Arena::Activations, LINE, 2, 2));
        plan.statistics(3, 1);
        let second = plan.statistics(5, 2);
        assert_eq!(second, View::new(Arena::Statistics, LINE, 5, 2));
        let Sizes { activations, statistics, .. } = plan.sizes();
        assert_eq!((activations, statistics), (LINE + 4, LINE + 10));
    }

    #[test]
    fn parts_that_share_an_area_lie_at_the_same_place_and_what_is_between_them_beside_it() {
        let (mut plan, mut area) = (MemoryPlan::default(), None);
        plan.activation(1, 3);
        let part = |plan: &mut MemoryPlan| [plan.activation(2, 9), plan.statistics(2, 1)];
        let first = plan.shared(&mut area, part);
        let (kept, counted) = (plan.activation(1, 5), plan.statistics(1, 1));
        assert_eq!(plan.shared(&mut area, part), first);
        let next = plan.activation(1, 1);
        let at =
            |line: usize, rows, columns| View::new(Arena::Activations, line * LINE, rows, columns);
        assert_eq!((first[0], kept, next), (at(1, 2, 9), at(3, 1, 5), at(4, 1, 1)));
        assert_eq!(counted, View::new(Arena::Statistics, LINE, 1, 1));
    }

    #[test]
    #[should_panic(expected = "parts of the same shapes share an area")]
    fn parts_of_different_shapes_share_no_area() {
        let (mut plan, mut area) = (MemoryPlan::default(), None);
        plan.shared(&mut area, |plan| plan.activation(2, 9));
        plan.shared(&mut area, |plan| plan.activation(2, 8));
    }
}

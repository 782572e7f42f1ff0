//! The one allocation of the backend: the place of each arena in it, and of each view.
//!
//! Plain arithmetic, which does not know a device.

use std::ops::Range;

use super::driver::Address;
use crate::backend::{Arena, Indices, Sizes, View};
use crate::precision::Precision;

/// The alignment of each part, bytes: the best one for kernels, libraries and copies.
const ALIGNMENT: usize = 256;
/// The most f32 that are on their way to or from another precision at once.
const STAGING: usize = 1 << 20;
/// The f32 of the first passes of sums over rows.
const SCRATCH: usize = 1 << 20;

/// The parts, in bytes from the beginning of the allocation.
#[derive(Clone, Debug)]
pub struct Arenas {
    precision: Precision,
    /// In the order of [`Arena`].
    arenas: [Range<usize>; 4],
    indices: Range<usize>,
    order: Range<usize>,
    starts: Range<usize>,
    staging: Range<usize>,
    arrivals: Range<usize>,
    scratch: Range<usize>,
    base: Address,
}

impl Arenas {
    /// Places everything, from address 0 on.
    pub fn new(sizes: Sizes, precision: Precision) -> Self {
        let mut end = 0;
        let mut place = |count: usize, bytes: usize| {
            let start = end;
            end = (start + count * bytes).next_multiple_of(ALIGNMENT);
            start..start + count * bytes
        };
        let Sizes { parameters, activations, statistics, indices, .. } = sizes;
        let stored = precision.bytes();
        let staged = |count: usize| match precision {
            Precision::F32 => 0,
            _ => STAGING.min(count),
        };
        Self {
            precision,
            arenas: [
                place(parameters, stored),
                place(parameters, 4),
                place(activations, stored),
                place(statistics, 4),
            ],
            indices: place(indices, 4),
            order: place(indices, 4),
            starts: place(indices + 1, 4),
            staging: place(staged(parameters.max(activations)), 4),
            arrivals: place(staged(parameters), 4),
            scratch: place(SCRATCH, 4),
            base: Address(0),
        }
    }

    /// The same parts in an allocation that begins at `base`.
    pub fn at(self, base: Address) -> Self {
        Self { base, ..self }
    }

    /// The bytes of the allocation.
    pub fn bytes(&self) -> usize {
        self.scratch.end
    }

    /// The sizes of its parts, bytes, with their names.
    pub fn parts(&self) -> [(&'static str, usize); 6] {
        let [parameters, gradients, activations, statistics] = &self.arenas;
        let starts = [parameters, gradients, activations, statistics, &self.indices, &self.staging];
        let ends = starts[1..].iter().map(|part| part.start).chain([self.bytes()]);
        let mut sizes = starts.iter().zip(ends).map(|(part, end)| end - part.start);
        ["parameters", "gradients", "activations", "statistics", "tokens", "casts and sums"]
            .map(|name| (name, sizes.next().expect("as many as names")))
    }

    /// How the elements of an arena are stored.
    pub fn element(&self, arena: Arena) -> Precision {
        match arena {
            Arena::Parameters | Arena::Activations => self.precision,
            Arena::Gradients | Arena::Statistics => Precision::F32,
        }
    }

    /// Where a view begins, transposed or not.
    pub fn address(&self, view: View) -> Address {
        let arena = &self.arenas[view.arena as usize];
        let bytes = self.element(view.arena).bytes();
        assert!((view.offset + view.len()) * bytes <= arena.len(), "{view:?} is not in its arena");
        self.base.plus(arena.start + view.offset * bytes)
    }

    /// Where tokens or targets begin.
    pub fn indices(&self, indices: Indices) -> Address {
        let Indices { offset, len } = indices;
        assert!(4 * (offset + len) <= self.indices.len(), "{indices:?} are not on the device");
        self.base.plus(self.indices.start + 4 * offset)
    }

    /// Where the places of sorted tokens are written, and where the first of each token begins.
    pub fn segments(&self) -> [Address; 2] {
        [self.base.plus(self.order.start), self.base.plus(self.starts.start)]
    }

    /// Memory for f32 on their way, and how many it holds.
    pub fn staging(&self) -> (Address, usize) {
        (self.base.plus(self.staging.start), self.staging.len() / 4)
    }

    /// Memory for arriving f32 parameters, and how many it holds: none if the parameters are f32.
    pub fn arrivals(&self) -> (Address, usize) {
        (self.base.plus(self.arrivals.start), self.arrivals.len() / 4)
    }

    /// Memory for f32 inside one operation, and how many it holds.
    pub fn scratch(&self) -> (Address, usize) {
        (self.base.plus(self.scratch.start), self.scratch.len() / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_aligned_and_do_not_overlap(
            [parameters, activations, statistics, indices] in prop::array::uniform4(0usize..5000),
        ) {
            let sizes = Sizes { parameters, activations, statistics, indices, sequence: 0 };
            for precision in [Precision::F32, Precision::Bf16, Precision::Fp16] {
                let arenas = Arenas::new(sizes, precision);
                let Arenas { arenas: [a, b, c, d], indices, order, starts, .. } = &arenas;
                let Arenas { staging, arrivals, scratch, .. } = &arenas;
                let parts = [a, b, c, d, indices, order, starts, staging, arrivals, scratch];
                for pair in parts.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start);
                }
                prop_assert!(parts.iter().all(|part| part.start % ALIGNMENT == 0));
                prop_assert_eq!(scratch.end, arenas.bytes());
                let bytes: usize = arenas.parts().iter().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(bytes, arenas.bytes());
            }
        }

        #[test]
        fn views_lie_in_their_arenas_by_the_bytes_of_their_elements(
            offset in 0usize..100,
            rows in 0usize..10,
            columns in 0usize..10,
        ) {
            let sizes = Sizes { parameters: 200, activations: 200, statistics: 200, ..SIZES };
            let arenas = Arenas::new(sizes, Precision::Bf16).at(Address(1 << 40));
            for (arena, bytes) in [
                (Arena::Parameters, 2),
                (Arena::Gradients, 4),
                (Arena::Activations, 2),
                (Arena::Statistics, 4),
            ] {
                let start = (1 << 40) + arenas.arenas[arena as usize].start as u64;
                let view = View::new(arena, offset, rows, columns);
                prop_assert_eq!(arenas.address(view).0, start + bytes * offset as u64);
                prop_assert_eq!(arenas.address(view.t()), arenas.address(view));
            }
        }
    }

    const SIZES: Sizes =
        Sizes { parameters: 0, activations: 0, statistics: 0, indices: 3, sequence: 0 };

    #[test]
    #[should_panic(expected = "is not in its arena")]
    fn a_view_beyond_its_arena_is_a_mistake() {
        let sizes = Sizes { activations: 10, ..SIZES };
        Arenas::new(sizes, Precision::F32).address(View::new(Arena::Activations, 5, 2, 3));
    }

    #[test]
    #[should_panic(expected = "are not on the device")]
    fn indices_beyond_their_memory_are_a_mistake() {
        Arenas::new(SIZES, Precision::F32).indices(Indices { offset: 2, len: 2 });
    }
}

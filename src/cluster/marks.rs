//! Values at some places of a long list, in bounded memory.
//!
//! In: a value for each place, in order. Out: the value at a place that is not far before a given
//! one: among the first thousands at that very place.

/// The most values that stay in memory.
const MOST: usize = 4_096;

/// The values: those of each place at first, then of each second, fourth, and so on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Marks<T> {
    marks: Vec<(u64, T)>,
    /// How many places lie from one mark to the next.
    stride: u64,
    /// Places since the newest mark.
    since: u64,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self { marks: Vec::new(), stride: 1, since: 0 }
    }
}

impl<T: Copy> Marks<T> {
    /// Takes the value at the next place.
    pub(super) fn push(&mut self, place: u64, value: T) {
        self.since += 1;
        if self.since < self.stride {
            return;
        }
        self.since = 0;
        self.marks.push((place, value));
        if self.marks.len() >= MOST {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.stride *= 2;
        }
    }

    /// Forgets all after this place. Returns the newest place that is left, and its value.
    pub(super) fn back_to(&mut self, place: u64) -> Option<(u64, T)> {
        let kept = self.marks.partition_point(|(known, _)| *known <= place);
        self.marks.truncate(kept);
        self.since = 0;
        self.marks.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_near_any_place_is_found_again_in_bounded_memory() {
        let mut marks = Marks::default();
        for place in 1..=1_000_000 {
            marks.push(place, 3 * place);
            assert!(marks.marks.len() < MOST);
        }
        for place in [999_999, 500_000, 4_096] {
            let (found, value) = marks.back_to(place).expect("a mark before it");
            assert!(found <= place && place - found < 512, "{found} for {place}");
            assert_eq!(value, 3 * found);
        }
        assert_eq!(marks.back_to(0), None);
    }

    #[test]
    fn the_first_places_are_found_exactly() {
        let mut marks = Marks::default();
        (1..4_000).for_each(|place| marks.push(place, ()));
        assert_eq!(marks.back_to(3_999), Some((3_999, ())));
        assert_eq!(marks.back_to(77), Some((77, ())));
        marks.push(78, ());
        assert_eq!(marks.back_to(90), Some((78, ())));
    }
}
